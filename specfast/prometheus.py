"""An engine's counters for Prometheus, read when it asks: a step pays nothing for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from specfast.engine import Engine
from specfast.metrics import NO_LABEL
from specfast.spec_stats import SourceStats, SpecStats
from specfast.warning_signs import SIGNS

Values = Mapping[tuple[str, ...], float]


def exposition(engine: Engine, model_name: str | None = None) -> str:
    """Everything in Prometheus's text format. model_name: the label's value, else the config's."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model_name))
    return generate_latest(registry).decode()


class EngineCollector(Collector):
    """Register it with a registry of prometheus_client; names and meanings are in
    docs/metrics.md. A scrape during a step may see some of its counts and not yet the others.
    """

    def __init__(self, engine: Engine, model_name: str | None = None) -> None:
        self._engine = engine
        config = engine.config.speculative_config
        self._labels = (model_name or engine.config.model, config.method if config else "none")
        self._depth = config.num_speculative_tokens if config else 1

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.metrics.stats
        yield from self._speculation(stats)
        yield from self._by_proposer()
        yield from self._by_label()
        yield from self._engine_state(stats)
        yield from self._latencies()
        yield from self._verdicts()

    def _speculation(self, s: SpecStats) -> Iterator[Metric]:
        counts = {
            "num_drafts": (s.num_drafts, "Verify steps: steps of a sequence that had drafts."),
            "num_draft_tokens": (s.num_draft_tokens, "Drafts verified."),
            "num_draft_positions": (
                s.num_draft_positions,
                "Depths drafted; in chains the same as draft tokens.",
            ),
            "num_accepted_tokens": (s.num_accepted_tokens, "Drafts accepted that users got."),
            "num_emitted_tokens": (
                s.num_drafted_emitted_tokens,
                "Tokens that verify steps emitted, the bonus included.",
            ),
            "num_sequence_steps": (s.num_sequence_steps, "Steps of a sequence that could emit."),
            "num_gated_steps": (s.num_gated_steps, "Of those, with no drafts planned."),
            "num_rollbacks": (s.num_rollbacks, "Verify steps that dropped a draft."),
            "num_rolled_back_tokens": (s.num_rolled_back_tokens, "Drafts dropped."),
        }
        for name, (value, meaning) in counts.items():
            yield self._counter(f"spec_decode_{name}", meaning, value)
        yield self._counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted by depth, 0 first.",
            "position",
            _numbered(s.num_accepted_per_pos, self._depth),
        )
        yield self._counters(
            "spec_decode_num_steps_per_depth",
            "Steps of a sequence by the depth drafted; 0: none.",
            "depth",
            _numbered(s.k_chosen, self._depth + 1),
        )

    def _by_proposer(self) -> Iterator[Metric]:
        sources = self._engine.metrics.by_source
        yield from self._families("proposer", sources, _DRAFT_COUNTS)

    def _by_label(self) -> Iterator[Metric]:
        labels = self._engine.metrics.by_label or {NO_LABEL: SpecStats()}
        yield from self._families("label", labels, (*_DRAFT_COUNTS, "num_emitted_tokens"))

    def _families(
        self, key: str, groups: Mapping[str, SpecStats | SourceStats], names: Iterable[str]
    ) -> Iterator[Metric]:
        for name in names:
            values = {group: getattr(stats, name) for group, stats in groups.items()}
            meaning = f"{name} by {key}."
            yield self._counters(f"spec_decode_{name}_by_{key}", meaning, key, values)

    def _engine_state(self, s: SpecStats) -> Iterator[Metric]:
        scheduler = self._engine.scheduler
        events, blocks = scheduler.stats, scheduler.blocks
        counts = {
            "generation_tokens": (s.num_emitted_tokens, "Tokens emitted."),
            "engine_steps": (s.num_steps, "Engine steps."),
            "step_seconds": (s.step_seconds, "Seconds in engine steps."),
            "draft_seconds": (s.propose_seconds, "Of those, in the proposer."),
            "num_preemptions": (events.num_preempted, "Sequences that lost their KV blocks."),
            "prefix_cache_queries": (
                events.num_prefix_query_tokens,
                "Tokens of the sequences that were admitted.",
            ),
            "prefix_cache_hits": (
                events.num_prefix_hit_tokens,
                "Of those, found in the KV cache.",
            ),
        }
        for name, (value, meaning) in counts.items():
            yield self._counter(name, meaning, value)
        gauges = {
            "num_requests_running": (len(scheduler.running), "Sequences in the batch."),
            "num_requests_waiting": (len(scheduler.waiting), "Sequences that wait for room."),
            "kv_cache_usage_perc": (
                1 - blocks.num_free_blocks / blocks.num_blocks,
                "Share of the KV blocks in use, 0 to 1.",
            ),
            "kv_cache_max_usage_perc": (
                events.max_blocks / blocks.num_blocks,
                "The largest share within a step so far, drafts included.",
            ),
        }
        for name, (value, meaning) in gauges.items():
            yield self._gauge(name, meaning, value)

    def _latencies(self) -> Iterator[Metric]:
        for name, histogram in vars(self._engine.latencies).items():
            family = HistogramMetricFamily(f"specfast:{name}_seconds", name, labels=_LABELS)
            family.add_metric(self._labels, histogram.cumulative(), histogram.total)
            yield family

    def _verdicts(self) -> Iterator[Metric]:
        seen = self._engine.warning_signs.seen
        values = {sign.name: float(sign.name in seen) for sign in SIGNS}
        family = GaugeMetricFamily(
            "specfast:warning_sign", "1 once it was seen.", labels=(*_LABELS, "sign")
        )
        for name, value in values.items():
            family.add_metric((*self._labels, name), value)
        yield family
        if (error := self._engine.metrics.calibration_error) is not None:
            meaning = "Expected less seen survival of drafts, on average, 0 to 1."
            yield self._gauge("calibration_error", meaning, error)
        if speedup := self._engine.metrics.effective_speedup:
            meaning = "Speed with drafts over speed without, measured"
            yield self._gauge("effective_speedup", f"{meaning}.", speedup.value)
            yield self._gauge("effective_speedup_low", f"{meaning}: from.", speedup.low)
            yield self._gauge("effective_speedup_high", f"{meaning}: to.", speedup.high)

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(f"specfast:{name}", meaning, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"specfast:{name}", meaning, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counters(self, name: str, meaning: str, key: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"specfast:{name}", meaning, labels=(*_LABELS, key))
        for of, value in values.items():
            family.add_metric((*self._labels, of), value)
        return family


_LABELS = ("model_name", "method")
_DRAFT_COUNTS = ("num_drafts", "num_draft_tokens", "num_draft_positions", "num_accepted_tokens")


def _numbered(counts: tuple[int, ...], at_least: int) -> dict[str, float]:
    """By index, with a 0 for what never happened."""
    padded = (*counts, *[0] * (at_least - len(counts)))
    return {str(i): float(n) for i, n in enumerate(padded)}
