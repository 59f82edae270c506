"""What a step of the target takes, learnt from the steps themselves."""

from __future__ import annotations

import numpy as np

FORGETTING = 0.98  # of what was seen, a step
MAX_ROWS = 128  # larger steps are prefill, whose rows cost something else
PRIOR_ROW_COST = 0.05  # of a step of one row, before any was seen
PRIOR_WEIGHT = 0.2  # steps


class CostModel:
    """Seconds of a step as fixed + row * rows, by least squares over a decaying window.

    The prior only says how the two relate, so that one measured step is enough to begin with.
    """

    def __init__(self) -> None:
        self._moments = np.zeros((2, 2))
        self._targets = np.zeros(2)
        self._weight = self._seconds = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of num_rows that took so long; one of no row (all cancelled) says nothing."""
        if not 0 < num_rows <= MAX_ROWS:
            return
        features = np.array([1.0, num_rows])
        self._moments = FORGETTING * self._moments + np.outer(features, features)
        self._targets = FORGETTING * self._targets + features * seconds
        self._weight = FORGETTING * self._weight + 1.0
        self._seconds = FORGETTING * self._seconds + seconds

    def seconds(self, num_rows: np.ndarray) -> np.ndarray:
        """Expected seconds of steps of num_rows; never less for more rows."""
        fixed, row = self._fit()
        return fixed + row * num_rows

    def _fit(self) -> tuple[float, float]:
        """Ridge regression towards row = PRIOR_ROW_COST * (fixed + row), both at least 0."""
        assert self.is_known
        towards = np.array([PRIOR_ROW_COST, PRIOR_ROW_COST - 1.0])
        scale = PRIOR_WEIGHT * self._moments[1, 1] / self._weight
        moments = self._moments + scale * np.outer(towards, towards)
        fixed, row = np.linalg.solve(moments, self._targets)
        mean = self._seconds / self._weight
        return max(float(fixed), 0.1 * mean), max(float(row), 0.0)
