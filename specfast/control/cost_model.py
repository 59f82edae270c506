"""What a step takes: the target's part and the drafting, learnt from the steps themselves."""

from __future__ import annotations

import numpy as np

from specfast.control.cost_profile import CostProfile
from specfast.control.least_squares import DecayingFit

FORGETTING = 0.98  # of what was seen, a step
PRIOR_WEIGHT = 0.2  # steps
MAX_SURPRISE = 4.0  # times the expected: what takes longer was something else's doing
ENOUGH = 8.0  # steps to expect by
# Where nothing was profiled: a row more costs a twentieth of a step of one row, and a token of
# context a row a fifty-thousandth.
UNPROFILED = CostProfile(rows=(1, 21), seconds=(1.0, 2.0), context_seconds=2e-5)


class CostModel:
    """Seconds of the target's part of a step: a profile, of which the fixed part, the rows' and the
    context's are each scaled to what steps really take.

    row_context: sum over rows of the tokens before them.
    """

    def __init__(self, profile: CostProfile | None = None) -> None:
        self._is_profiled = profile is not None
        self.profile = profile or UNPROFILED
        self._unit = float(self.profile.of_rows(np.array(1)))
        same_scale = [(0, 1, 1.0), (0, 2, 1.0)]
        self._fit = DecayingFit(3, same_scale, PRIOR_WEIGHT, FORGETTING)

    @property
    def is_known(self) -> bool:
        return self._is_profiled or self._fit.weight > 0

    def observe(self, num_rows: int, row_context: int, seconds: float) -> None:
        """A step that decided for all its sequences; one of no row (all cancelled) says nothing."""
        if num_rows <= 0:
            return
        if self._fit.weight >= ENOUGH:
            expected = self.seconds(np.array(num_rows), row_context)
            seconds = min(seconds, MAX_SURPRISE * float(expected))
        x = np.array([float(part) for part in self._parts(np.array(num_rows), row_context)])
        self._fit.observe(x, seconds)

    def seconds(self, num_rows: np.ndarray, row_context: np.ndarray | int = 0) -> np.ndarray:
        """Expected seconds of steps of num_rows; never less for more rows."""
        fixed, rows, context = self._parts(num_rows, row_context)
        scale = self._scales()
        return scale[0] * fixed + scale[1] * rows + scale[2] * context

    def _parts(
        self, num_rows: np.ndarray, row_context: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """In units of a step of one row."""
        steps = self.profile.of_rows(num_rows) / self._unit
        context = np.asarray(row_context, float) * self.profile.context_seconds / self._unit
        return np.ones_like(steps), steps - 1.0, context

    def _scales(self) -> np.ndarray:
        """Seconds that each part's unit takes."""
        if self._fit.weight == 0:
            return np.full(3, self._unit)
        return np.maximum(self._fit.solve(), [0.1 * self._fit.mean, 0.0, 0.0])


class DraftCost:
    """Seconds that a proposal takes: so much at all, so much a depth, so much a sequence and depth.

    A drafter that retrieves costs next to nothing a depth; one that computes, a forward each.
    """

    def __init__(self) -> None:
        beliefs = [(0, 1, 1.0), (1, 2, 0.25)]
        self._fit = DecayingFit(3, beliefs, PRIOR_WEIGHT, FORGETTING)

    def observe(self, depth: int, num_seqs: int, seconds: float) -> None:
        """A proposal of paths up to `depth` for num_seqs sequences."""
        if self._fit.weight >= ENOUGH:
            seconds = min(seconds, MAX_SURPRISE * float(self.seconds(np.array(depth), num_seqs)))
        self._fit.observe(np.array([1.0, depth, depth * num_seqs]), seconds)

    def seconds(self, depth: np.ndarray, num_seqs: int) -> np.ndarray:
        """Expected seconds; nothing as long as nothing was seen, so that it will be."""
        if self._fit.weight == 0:
            return np.zeros_like(depth, float)
        once, forward, row = np.maximum(self._fit.solve(), 0.0)
        return once + depth * (forward + num_seqs * row)
