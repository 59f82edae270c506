"""What drafting and verifying take, in plain steps, from the steps of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np

from specfast.tune.traces import StepTime

MAX_SURPRISE = 2.0  # times the median: what takes longer was something else's doing


@dataclass(frozen=True)
class Line:
    """fixed + each * n, both at least 0."""

    fixed: float
    each: float

    def at(self, n: np.ndarray) -> np.ndarray:
        return self.fixed + self.each * n


@dataclass(frozen=True)
class DrafterCost:
    """In plain steps of the same run, which take plain_seconds.

    drafting: of a step that drafted n deep, by n; searching: of one in which nothing was found to
    draft; verifying: all the rest of a step with n drafts to verify, by n. A plain step is 1, so
    verifying.fixed above 1 is what keeping the drafter costs each step.
    """

    plain_seconds: float
    drafting: Line
    searching: float
    verifying: Line

    def draft_share(self, depths: np.ndarray) -> float:
        """Drafting a step, over steps of these depths [S]."""
        taken = np.where(depths > 0, self.drafting.at(depths), self.searching)
        return float(taken.mean()) if len(depths) else 0.0

    def verify_share(self, nodes: np.ndarray) -> float:
        """What a step takes more than a plain one, drafting apart, over steps of these drafts."""
        return float(self.verifying.at(nodes).mean()) - 1.0 if len(nodes) else 0.0

    def surprise(self, step: StepTime) -> float:
        """By how many plain steps one took longer than it should have."""
        depths, nodes = np.array([step.depth]), np.array([step.nodes])
        expected = 1.0 + self.draft_share(depths) + self.verify_share(nodes)
        return max(0.0, (step.drafting + step.rest) / self.plain_seconds - expected)


def drafter_cost(times: Seqs[StepTime], plain: Seqs[StepTime]) -> DrafterCost:
    """From a drafter's steps and plain ones that took turns with them: those of whole batches."""
    num_seqs = Counter(t.num_seqs for t in plain).most_common(1)[0][0]
    whole = [t for t in times if t.num_seqs == num_seqs]
    unit = typical(t.rest for t in plain if t.num_seqs == num_seqs)
    drafted = [t for t in whole if t.depth > 0]
    idle = [t.drafting / unit for t in whole if t.depth == 0]
    return DrafterCost(
        plain_seconds=unit,
        drafting=fit_line([(t.depth, t.drafting / unit) for t in drafted], at_zero=0.0),
        searching=typical(idle) if idle else 0.0,
        verifying=fit_line([(t.nodes, t.rest / unit) for t in whole], at_zero=1.0),
    )


def typical(values: Iterable[float]) -> float:
    """The mean of those up to MAX_SURPRISE medians."""
    found = np.array(list(values))
    return float(found[found <= MAX_SURPRISE * np.median(found)].mean())


def fit_line(points: Seqs[tuple[float, float]], at_zero: float) -> Line:
    """Least squares over (n, y), by typical values around each whole n. Where all have one n, the
    line goes through at_zero; without any it is flat there.
    """
    if not points:
        return Line(at_zero, 0.0)
    found: dict[int, list[tuple[float, float]]] = {}
    for n, y in points:
        found.setdefault(round(n), []).append((n, y))
    x = np.array([np.mean([n for n, _ in some]) for some in found.values()])
    means = np.array([typical(y for _, y in some) for some in found.values()])
    if len(x) == 1:
        each = max(0.0, (means[0] - at_zero) / x[0]) if x[0] else 0.0
        return Line(float(means[0] - each * x[0]), float(each))
    counts = np.array([len(some) for some in found.values()])
    each, fixed = np.polyfit(x, means, 1, w=np.sqrt(counts))
    mean_x, mean_y = (float(np.average(v, weights=counts)) for v in (x, means))
    if each < 0:
        return Line(mean_y, 0.0)
    if fixed < 0:
        return Line(0.0, mean_y / mean_x)
    return Line(float(fixed), float(each))
