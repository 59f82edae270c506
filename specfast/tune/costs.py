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
class Curve:
    """Straight between points (n, y), which ascend; flat beyond them."""

    n: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, n: np.ndarray) -> np.ndarray:
        return np.interp(n, self.n, self.y)


@dataclass(frozen=True)
class DrafterCost:
    """In plain steps of the same run, of num_seqs sequences, which take plain_seconds.

    drafting: of a step that drafted n deep, by n; searching: of one in which nothing was found to
    draft; verifying: all the rest of a step with n drafts a sequence to verify, by n: its first
    rows cost next to nothing, later ones more. A plain step is 1, so what it has above 1 at n = 0
    is what keeping the drafter costs each step.
    """

    plain_seconds: float
    drafting: Line
    searching: float
    verifying: Curve
    num_seqs: int = 1

    def draft_share(self, depths: np.ndarray) -> float:
        """Drafting a step, over steps of these depths [S]."""
        taken = np.where(depths > 0, self.drafting.at(depths), self.searching)
        return float(taken.mean()) if len(depths) else 0.0

    def verify_share(self, nodes: np.ndarray) -> float:
        """What a step takes more than a plain one, drafting apart, over steps of these drafts of a
        sequence. The average of several sequences varies less than the drafts of each.
        """
        if not len(nodes):
            return 0.0
        average = nodes.mean() + (nodes - nodes.mean()) / np.sqrt(self.num_seqs)
        return float(self.verifying.at(average).mean()) - 1.0

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
        verifying=fit_curve([(t.nodes, t.rest / unit) for t in whole], at_zero=1.0),
        num_seqs=num_seqs,
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
    x, means, counts = _by_number(points)
    if len(x) == 1:
        each = max(0.0, (means[0] - at_zero) / x[0]) if x[0] else 0.0
        return Line(float(means[0] - each * x[0]), float(each))
    each, fixed = np.polyfit(x, means, 1, w=np.sqrt(counts))
    mean_x, mean_y = (float(np.average(v, weights=counts)) for v in (x, means))
    if each < 0:
        return Line(mean_y, 0.0)
    if fixed < 0:
        return Line(0.0, mean_y / mean_x)
    return Line(float(fixed), float(each))


def fit_curve(points: Seqs[tuple[float, float]], at_zero: float) -> Curve:
    """Through typical values around each whole n, those that would descend pooled with the ones
    before them. It starts at_zero where no point is near 0.
    """
    x, y, counts = _by_number(points) if points else (np.empty(0),) * 3
    if not len(x) or x[0] >= 0.5:
        x, y, counts = (
            np.insert(v, 0, first) for v, first in ((x, 0.0), (y, at_zero), (counts, 1))
        )
    pools: list[tuple[float, float, int]] = []  # value, weight, points
    for value, weight in zip(y, counts):
        pool = (float(value), float(weight), 1)
        while pools and pools[-1][0] > pool[0]:
            pool = _pooled(pools.pop(), pool)
        pools.append(pool)
    ascending = [value for value, _, num in pools for _ in range(num)]
    return Curve(tuple(x.tolist()), tuple(ascending))


def _pooled(a: tuple[float, float, int], b: tuple[float, float, int]) -> tuple[float, float, int]:
    weight = a[1] + b[1]
    return (a[0] * a[1] + b[0] * b[1]) / weight, weight, a[2] + b[2]


def _by_number(points: Seqs[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> n, ascending; typical y; and the number of points around each whole n."""
    found: dict[int, list[tuple[float, float]]] = {}
    for n, y in sorted(points):
        found.setdefault(round(n), []).append((n, y))
    groups = list(found.values())
    x = np.array([np.mean([n for n, _ in some]) for some in groups])
    return (
        x,
        np.array([typical(y for _, y in some) for some in groups]),
        np.array(list(map(len, groups))),
    )
