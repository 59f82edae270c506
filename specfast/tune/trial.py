"""Candidates at one batch size: fitted on half of the tasks, predicted, measured on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seqs
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specfast.intervals import Interval
from specfast.measure import Comparison, EngineArm, Task, compare, in_groups
from specfast.tune.acceptance import Acceptance, by_category
from specfast.tune.candidates import Candidate
from specfast.tune.costs import DrafterCost, drafter_cost
from specfast.tune.decision import Option, Workload, copied_share
from specfast.tune.prediction import Prediction, predict
from specfast.tune.traces import RecordingArm, Trace

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True)
class Fit:
    """What one candidate did on the first half: traces with the most drafts asked for; what its
    steps took, with fewer too; and by task, how many plain steps its first step took longer.
    """

    traces: tuple[Trace, ...]
    cost: DrafterCost
    starts: Mapping[str, float]

    @cached_property
    def acceptance(self) -> Acceptance:
        return Acceptance.of([s for t in self.traces for s in t.steps])

    @cached_property
    def by_category(self) -> dict[str, Acceptance]:
        return by_category(self.traces)


@dataclass(frozen=True)
class Trial:
    """predictions[name]: one a k, ascending; ks[name]: the k that is measured."""

    batch_size: int
    fits: Mapping[str, Fit]
    predictions: Mapping[str, tuple[Prediction, ...]]
    ks: Mapping[str, int]
    comparison: Comparison

    @cached_property
    def chosen(self) -> dict[str, Prediction]:
        """The prediction for that k."""
        found = self.predictions
        return {name: next(p for p in found[name] if p.k == k) for name, k in self.ks.items()}

    def measured(self, name: str, k: int | str) -> Interval | None:
        """Decoding over plain decoding with fixed k, or AUTO; None where that was not measured."""
        arm = arm_name(name, k)
        return self.comparison.ratio(arm, PLAIN) if arm in self.comparison.samples else None

    def option(self, candidate: Candidate) -> Option:
        name, k = candidate.name, self.ks[candidate.name]
        fixed, auto = arm_name(name, k), arm_name(name, AUTO)
        ratio = self.comparison.ratio
        return Option(
            name, candidate.method, k, ratio(fixed, PLAIN), ratio(auto, PLAIN), ratio(auto, fixed)
        )

    def error(self, name: str) -> float:
        """Predicted by the survival curve over measured speed-up at that k, less 1."""
        return self._error(name, self.chosen[name].survival)

    def closed_error(self, name: str) -> float:
        """The same of the closed form."""
        return self._error(name, self.chosen[name].closed)

    def _error(self, name: str, predicted: float) -> float:
        measured = self.measured(name, self.ks[name])
        return predicted / measured.value - 1 if measured else float("nan")

    @cached_property
    def workload(self) -> Workload:
        samples = [repeats[0] for repeats in self.comparison.samples[PLAIN]]
        before = sum(s.times[0] for s in samples)
        shares = [
            (copied_share(t.prompt_token_ids, s.token_ids), len(s.token_ids))
            for t, s in zip(self.comparison.tasks, samples)
        ]
        values, weights = zip(*shares)
        return Workload(
            self.batch_size,
            prefill_share=before / sum(s.times[-1] for s in samples),
            copied_share=float(np.average(values, weights=weights)),
        )


@dataclass(frozen=True)
class Halves:
    """Tasks to fit on, and tasks to hold predictions against."""

    fit: tuple[Task, ...]
    held: tuple[Task, ...]


def arm_name(candidate: str, k: int | str) -> str:
    return f"{candidate} {k if k == AUTO else f'k={k}'}"


def best_of(predictions: Seqs[Prediction]) -> Prediction:
    """The fastest by the survival curve, the smallest k of several; the first, if none is known."""
    return max(predictions, key=lambda p: (np.nan_to_num(p.survival), -p.k))


def fit(
    plain: RecordingArm,
    drafting: Seqs[RecordingArm],
    tasks: Seqs[Task],
    ks: Seqs[int],
    batch_size: int,
    on_sample: Callable[[], None],
) -> dict[str, Fit]:
    """Each group of tasks is answered by all arms with the most drafts, and then in the opposite
    order with fewer: those steps tell how cost grows with k.
    """
    groups, fewer = in_groups(tasks, batch_size), list(ks[:-1]) or list(ks)
    arms = [plain, *drafting]
    for arm in arms:
        arm.record(groups[0], 0 if arm is plain else ks[-1])
        arm.forget()
    for number, group in enumerate(groups):
        passes = ((arms, ks[-1]), (arms[::-1], fewer[number % len(fewer)]))
        for arm, k in ((arm, k) for order, k in passes for arm in order):
            arm.record(group, 0 if arm is plain else k)
            on_sample()
    return {arm.name: _fit(arm, drafter_cost(arm.times, plain.times), ks[-1]) for arm in drafting}


def _fit(arm: RecordingArm, cost: DrafterCost, k: int) -> Fit:
    """What a first step costs more does not depend on k: of its times the least disturbed."""
    starts: dict[str, float] = {}
    for trace in arm.traces:
        if trace.first:
            start = cost.surprise(trace.first)
            starts[trace.task.id] = min(start, starts.get(trace.task.id, start))
    return Fit(tuple(t for t in arm.traces if t.k == k), cost, starts)


def predictions(
    fits: Mapping[str, Fit], ks: Seqs[int], held: Seqs[Task]
) -> dict[str, tuple[Prediction, ...]]:
    """For tasks like those held."""
    categories = [t.category for t in held]
    return {
        name: tuple(predict(found.traces, found.cost, k, categories, found.starts) for k in ks)
        for name, found in fits.items()
    }


def num_answers(halves: Halves, num_fitted: int, num_measured: int, batch: int, cycles: int) -> int:
    """Groups answered in all, for a bar: num_fitted arms on one half, num_measured on the other."""
    fitted, held = (len(in_groups(half, batch)) for half in (halves.fit, halves.held))
    return 2 * num_fitted * fitted + 2 * cycles * num_measured * held


def hold(
    arms: Seqs[EngineArm],
    tasks: Seqs[Task],
    batch_size: int,
    cycles: int,
    on_sample: Callable[[], None],
) -> Comparison:
    """All arms, plain first, in ABBA order."""
    return compare(arms, tasks, cycles=cycles, batch_size=batch_size, on_sample=on_sample)
