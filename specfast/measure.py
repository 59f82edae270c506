"""The one A/B harness: arms answer the same tasks in ABBA order and are compared task by task.

Each answer, or batch of answers, starts from empty caches and an empty drafter. Decoding speed
counts the tokens after the first emission, over the time since it; a task's speed is the median of
its repetitions. A ratio of two arms is the geometric mean over tasks, and an interval the
bootstrap's 95 % over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seqs
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol, cast

import numpy as np

from specfast.engine import Engine
from specfast.intervals import Interval, bootstrap
from specfast.request import Request
from specfast.sampler import forked
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.tokenizer import Tokenizer

MIN_DECODED = 8


@dataclass(frozen=True)
class Task:
    """One request; the same for every arm. copy: its number among requests of the same ids."""

    id: str
    category: str
    prompt_token_ids: tuple[int, ...]
    copy: int = 0


@dataclass(frozen=True)
class Sample:
    """One answer. times: seconds since the task was given, token by token; a step's share it."""

    token_ids: tuple[int, ...]
    times: tuple[float, ...]
    stats: SpecStats = SpecStats()

    @property
    def num_decoded(self) -> int:
        """Tokens after the first emission."""
        return sum(t > self.times[0] for t in self.times)

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first emission; NaN where they are too few to tell."""
        if self.num_decoded < MIN_DECODED:
            return float("nan")
        return self.num_decoded / (self.times[-1] - self.times[0])

    @property
    def total_rate(self) -> float:
        """Tokens a second, the prompt's computation included."""
        return len(self.times) / self.times[-1]

    @property
    def gaps(self) -> np.ndarray:
        """Seconds between one emission and the next."""
        return np.diff(np.unique(self.times))


def prompt_ids(tokenizer: Tokenizer, messages: Seqs[Mapping[str, str]]) -> list[int]:
    """A conversation as the model's chat template has it; a base model gets the bare texts."""
    if not tokenizer.has_chat_template:
        return tokenizer.encode("\n\n".join(m["content"] for m in messages))
    return tokenizer.encode_chat(messages)


class Arm(Protocol):
    """One way of answering."""

    name: str

    def answer(self, task: Task) -> Sample:
        """Answers with nothing left over from earlier answers."""


class BatchArm(Arm, Protocol):
    """An arm that can answer several tasks at once."""

    def answer_all(self, tasks: Seqs[Task]) -> list[Sample]:
        """As `answer`, all of them together; what is counted for all is the first sample's."""


class EngineArm:
    """One of our engines."""

    def __init__(self, name: str, engine: Engine, params: SamplingParams) -> None:
        self.name, self.engine, self.params = name, engine, params

    def answer(self, task: Task) -> Sample:
        return self.answer_all([task])[0]

    def answer_all(self, tasks: Seqs[Task]) -> list[Sample]:
        engine, params = self.engine, self.params
        engine.reset_prefix_cache()
        if engine.proposer:
            engine.proposer.reset()
        before = engine.metrics.stats
        requests = [engine.add_request(t.prompt_token_ids, forked(params, t.copy)) for t in tasks]
        while not all(r.finished for r in requests):
            engine.step()
        stats = [engine.metrics.stats - before, *[SpecStats()] * (len(tasks) - 1)]
        return [_sample(r, s) for r, s in zip(requests, stats)]


def _sample(request: Request, stats: SpecStats) -> Sample:
    start, times = request.metrics.arrival_time, request.metrics.token_times
    (seq,) = request.seqs
    if seq.finish and seq.finish.reason == "error":
        raise ValueError(f"No speed can be measured: {seq.finish.detail}")
    token_ids = tuple(seq.output_token_ids)
    return Sample(token_ids, tuple(t - start for t in times), stats)


@dataclass(frozen=True)
class Summary:
    """One arm over some tasks. Rates are tokens a second, the rest of the times seconds.

    inter_token_latency is the time between two emissions: a step's tokens come together.
    """

    num_tasks: int
    num_tokens: int
    decode_rate: Interval
    total_rate: Interval
    time_to_first_token: Interval
    inter_token_latency_p50: float
    inter_token_latency_p99: float
    acceptance_rate: float
    acceptance_length: float
    acceptance_per_pos: tuple[float, ...]
    gated_share: float
    draft_time_fraction: float


@dataclass(frozen=True)
class Comparison:
    """samples[arm][task]: that task's repetitions, in the order of `tasks`."""

    tasks: tuple[Task, ...]
    samples: Mapping[str, tuple[tuple[Sample, ...], ...]]

    @cached_property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(t.category for t in self.tasks))

    def differing(self, *arms: str) -> list[str]:
        """Ids of the tasks that were not answered alike by every repetition of these arms."""
        return [
            task.id
            for i, task in enumerate(self.tasks)
            if len({s.token_ids for arm in arms for s in self.samples[arm][i]}) > 1
        ]

    def ratio(self, arm: str, base: str, categories: Iterable[str] | None = None) -> Interval:
        """Decoding speed of arm over base; tasks too short to tell are left out."""
        chosen = self._chosen(categories)
        rates = [
            [_median(s.decode_rate for s in self.samples[name][i]) for i in chosen]
            for name in (arm, base)
        ]
        return bootstrap(np.log(rates[0]) - np.log(rates[1]), np.mean, np.exp)

    def summary(self, arm: str, categories: Iterable[str] | None = None) -> Summary:
        repeated = [self.samples[arm][i] for i in self._chosen(categories)]
        samples = [s for repeats in repeated for s in repeats]
        stats = sum((s.stats for s in samples), SpecStats())
        gaps = np.concatenate([s.gaps for s in samples]) if samples else np.empty(0)

        def median(of: Callable[[Sample], float]) -> Interval:
            return bootstrap([_median(map(of, repeats)) for repeats in repeated], np.median)

        return Summary(
            num_tasks=len(repeated),
            num_tokens=sum(len(repeats[0].token_ids) for repeats in repeated),
            decode_rate=median(lambda s: s.decode_rate),
            total_rate=median(lambda s: s.total_rate),
            time_to_first_token=median(lambda s: s.times[0]),
            inter_token_latency_p50=_percentile(gaps, 50),
            inter_token_latency_p99=_percentile(gaps, 99),
            acceptance_rate=stats.acceptance_rate,
            acceptance_length=stats.acceptance_length,
            acceptance_per_pos=stats.acceptance_per_pos,
            gated_share=stats.gated_share,
            draft_time_fraction=stats.draft_time_fraction,
        )

    def _chosen(self, categories: Iterable[str] | None) -> list[int]:
        wanted = set(self.categories if categories is None else categories)
        return [i for i, task in enumerate(self.tasks) if task.category in wanted]


def compare(
    arms: Seqs[Arm],
    tasks: Seqs[Task],
    *,
    cycles: int = 1,
    batch_size: int = 1,
    on_sample: Callable[[], None] = lambda: None,
) -> Comparison:
    """Each cycle answers a group of tasks by every arm and then again in the opposite order (ABBA).

    A group is batch_size tasks of one category at once; more than one takes arms that are
    BatchArms. So each arm has 2 * cycles samples a task, and a drift of the machine meets all arms
    alike. Before, every arm answers the first group once, uncounted.
    """
    groups = in_groups(tasks, batch_size)
    for arm in arms:
        _answers(arm, groups[0])
    samples: dict[str, list[tuple[Sample, ...]]] = {arm.name: [] for arm in arms}
    for group in groups:
        taken: dict[str, list[list[Sample]]] = {arm.name: [] for arm in arms}
        for arm in [*arms, *reversed(arms)] * cycles:
            taken[arm.name].append(_answers(arm, group))
            on_sample()
        for name, repeats in taken.items():
            samples[name] += zip(*repeats)
    return Comparison(tuple(chain(*groups)), {name: tuple(s) for name, s in samples.items()})


def in_groups(tasks: Seqs[Task], size: int) -> list[list[Task]]:
    """At most `size` tasks of one category each; of one task, in the order given."""
    if size == 1:
        return [[task] for task in tasks]
    categories = dict.fromkeys(t.category for t in tasks)
    of_one = ([t for t in tasks if t.category == c] for c in categories)
    return [group[i : i + size] for group in of_one for i in range(0, len(group), size)]


def _answers(arm: Arm, group: Seqs[Task]) -> list[Sample]:
    return [arm.answer(group[0])] if len(group) == 1 else cast(BatchArm, arm).answer_all(group)


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _percentile(values: np.ndarray, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")
