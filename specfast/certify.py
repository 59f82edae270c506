"""specfast certify: speculation on and off give the same bytes, over prompts and settings.

Plain decoding, one request at a time, is the reference. Each setting is an engine of its own that
speculates under other conditions; what it claims to have met (drafts accepted and rejected, and
where it applies preemptions, prefix hits, split prompts) it must have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seqs
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from specfast.certify_settings import Setting
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.margin import top_two_margin
from specfast.models.decoder import Model
from specfast.proposers.base import Proposer
from specfast.proposers.registry import make_proposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.tokenizer import Tokenizer

STALLED = 200  # steps that neither compute a prompt nor give a token: nothing will come any more


@dataclass(frozen=True)
class SettingResult:
    """events: what was seen, counted; failures: a record each."""

    setting: Setting
    checked: int
    identical: int
    events: dict[str, int]
    failures: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Certificate:
    results: tuple[SettingResult, ...]

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [failure for r in self.results for failure in r.failures]

    def to_dict(self) -> dict[str, Any]:
        return {
            "checked": sum(r.checked for r in self.results),
            "identical": sum(r.identical for r in self.results),
            "failures": self.failures,
            "settings": [
                {**asdict(r.setting), "events": r.events, "claims": r.setting.claims}
                for r in self.results
            ],
        }


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    finish_reason: str | None


class Certifier:
    """Answers the prompts plainly, then by each setting, and compares."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: EngineConfig,
        prompts: Seqs[list[int]],
        max_tokens: int,
        make: Callable[[Target], Proposer | None] = make_proposer,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config = config
        self.prompts = prompts
        self.max_tokens = max_tokens
        self.make = make
        self._expected: dict[SamplingParams, list[Answer]] = {}

    def certify(
        self, chosen: Iterable[Setting], on_result: Callable[[SettingResult], None]
    ) -> Certificate:
        results = []
        chosen = list(chosen)
        if any(setting.drafter.synthetic for setting in chosen):
            raise ValueError(
                "certify compares bytes, and synthetic_acceptance makes invalid text: leave it out."
            )
        for setting in chosen:
            results.append(self.check(setting))
            on_result(results[-1])
        return Certificate(tuple(results))

    def check(self, setting: Setting) -> SettingResult:
        """Runs one setting; a failed check of the engine's own is a failure like any other."""
        params = setting.params(self.max_tokens)
        engine = self._engine(setting)
        try:
            expected = self._plain(params)
            with _threads(setting.threads):
                answers = _answers(engine, self.prompts, params)
        except AssertionError as error:
            return _result(setting, engine, [], [{"kind": "integrity", "message": str(error)}])
        differing = [i for i, answer in enumerate(answers) if answer != expected[i]]
        failures = [_difference(i, expected[i], answers[i]) for i in differing]
        if failures:
            failures[0]["margin"] = self._margin(failures[0], params)
        return _result(setting, engine, answers, failures)

    def _plain(self, params: SamplingParams) -> list[Answer]:
        """Plain decoding, one request at a time and nothing shared, once for each law."""
        if params not in self._expected:
            config = replace(
                self.config,
                speculative_config=None,
                max_num_seqs=1,
                num_blocks=self._longest // self.config.block_size + 1,
                enable_prefix_caching=False,
            )
            engine = Engine(self.model, self.tokenizer, config, None)
            self._expected[params] = _answers(engine, self.prompts, params)
        return self._expected[params]

    def _engine(self, setting: Setting) -> Engine:
        config = replace(
            self.config,
            speculative_config=setting.speculation,
            max_num_seqs=setting.batch_size,
            max_num_batched_tokens=setting.chunk_size,
            block_size=setting.block_size,
            num_blocks=self._num_blocks(setting),
            enable_prefix_caching=setting.prefix_caching,
        )
        proposer = self.make(Target(self.model, self.tokenizer, config))
        return Engine(self.model, self.tokenizer, config, proposer)

    @property
    def _longest(self) -> int:
        """Tokens of the longest request."""
        return max(map(len, self.prompts)) + self.max_tokens

    def _num_blocks(self, setting: Setting) -> int:
        """Enough for all; or, to force preemption, for two prompts but not for both answers."""
        tokens = self._longest * (setting.batch_size + 2)
        if setting.preempt:
            typical = sorted(map(len, self.prompts))[len(self.prompts) // 2]
            tokens = max(self._longest, 2 * typical + self.max_tokens // 2)
        return tokens // setting.block_size + 1

    def _margin(self, failure: dict[str, Any], params: SamplingParams) -> float:
        """How close the target's decision was where the answers part."""
        prompt, at = failure["prompt"], failure["position"]
        answer = self._expected[params][prompt].token_ids
        prefix = [*self.prompts[prompt], *answer[:at]]
        return top_two_margin(self.model, prefix, params, self.config.kv_cache_dtype)


def _difference(prompt: int, want: Answer, got: Answer) -> dict[str, Any]:
    """Where two answers part."""
    pairs = enumerate(zip(want.token_ids, got.token_ids))
    shorter = min(len(want.token_ids), len(got.token_ids))
    at = next((i for i, (w, g) in pairs if w != g), shorter)
    return {
        "kind": "difference",
        "prompt": prompt,
        "position": at,
        "expected": want.token_ids[at : at + 1],
        "got": got.token_ids[at : at + 1],
        "finish_reasons": [want.finish_reason, got.finish_reason],
    }


def _result(
    setting: Setting, engine: Engine, answers: list[Answer], failures: list[dict[str, Any]]
) -> SettingResult:
    events = _events(engine, answers)
    missed = [
        {"kind": "unseen event", "message": f"claims {event!r} and never saw it"}
        for event in setting.claims
        if not events[event]
    ]
    named = [{"setting": asdict(setting), **failure} for failure in [*failures, *missed]]
    differing = sum(f["kind"] == "difference" for f in failures)
    return SettingResult(setting, len(answers), len(answers) - differing, events, named)


def _events(engine: Engine, answers: list[Answer]) -> dict[str, int]:
    counts, scheduled = engine.metrics.stats, engine.scheduler.stats
    return {
        "drafted": counts.num_draft_tokens,
        "accepted": counts.num_accepted_tokens,
        "rejected": counts.num_draft_tokens - counts.num_accepted_tokens,
        "preempted": scheduled.num_preempted,
        "prefix_hit_tokens": scheduled.num_prefix_hit_tokens,
        "chunk_splits": scheduled.num_chunk_splits,
        "stopped": sum(a.finish_reason == "stop" for a in answers),
    }


def _answers(engine: Engine, prompts: Seqs[list[int]], params: SamplingParams) -> list[Answer]:
    """All prompts at once, in the engine's own order; its pool is checked after each step."""
    requests = [engine.add_request(p, params) for p in prompts]
    idle, patience = 0, STALLED + max(map(len, prompts))
    while engine.has_unfinished:
        idle = 0 if engine.step() else idle + 1
        assert idle < patience, f"no request got a token in {patience} steps"
        engine.check_integrity()
    choices = [r.output().outputs[0] for r in requests]
    return [Answer(c.token_ids, c.finish_reason) for c in choices]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
