"""How sure a figure is: the percentile bootstrap's 95 % interval."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np

MIN_VALUES = 3
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(
    values: Seqs[float] | np.ndarray,
    statistic: Callable[..., np.ndarray],
    transform: Callable[[np.ndarray], np.ndarray] = lambda x: x,
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
    points = [statistic(known, axis=0), *np.percentile(spread, [2.5, 97.5])]
    return Interval(*(float(transform(p)) for p in points))
