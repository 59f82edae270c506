"""How sure a figure is: the percentile bootstrap's interval, 95 % unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np

MIN_VALUES = 3
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A value with its interval, 95 % unless it is said to be another."""

    value: float
    low: float
    high: float


def bootstrap(
    values: Seqs[float] | np.ndarray,
    statistic: Callable[..., np.ndarray],
    transform: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    level: float = 0.95,
) -> Interval:
    """transform(statistic(values)) of what is not NaN, with the percentile bootstrap's interval.

    Fewer than MIN_VALUES values have no interval, and none at all no value: NaN.
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if len(known) < MIN_VALUES:
        value = float(transform(statistic(known, axis=0))) if len(known) else float("nan")
        return Interval(value, float("nan"), float("nan"))
    draws = np.random.default_rng(0).integers(len(known), size=(RESAMPLES, len(known)))
    spread = statistic(known[draws], axis=1)
    found = interval(float(statistic(known, axis=0)), spread, level)
    ends = map(np.float64, (found.value, found.low, found.high))
    return Interval(*(float(transform(p)) for p in ends))


def interval(value: float, spread: np.ndarray, level: float) -> Interval:
    """The middle `level` of the resampled values; NaN among them are left out."""
    tail = 50 * (1 - level)
    low, high = np.nanpercentile(spread, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def resampled_totals(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """values [R, ...] -> [RESAMPLES, ...]: sums of R drawn anew, by Poisson weights, which leave
    ratios of sums as they are.
    """
    weights = np.random.default_rng(seed).poisson(1.0, (RESAMPLES, len(values)))
    return np.tensordot(weights.astype(np.float64), values, axes=1)
