"""What a step takes: the target's part and the drafting, learnt from the steps themselves."""

from __future__ import annotations

import numpy as np

from specfast.control.cost_profile import CostProfile
from specfast.control.least_squares import DecayingFit

FORGETTING = 0.98  # of what was seen, a step
PRIOR_WEIGHT = 0.2  # steps
MAX_SURPRISE = 4.0  # times the expected: what takes longer was something else's doing
ENOUGH = 8.0  # steps to expect by
NUM_TABLED = 1024  # rows
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
        self._steps = self.profile.of_rows(np.arange(NUM_TABLED)) / self._unit
        same_scale = [(0, 1, 1.0), (0, 2, 1.0)]
        self._fit = DecayingFit(3, same_scale, PRIOR_WEIGHT, FORGETTING)
        self._scale: np.ndarray | None = None

    @property
    def is_known(self) -> bool:
        return self._is_profiled or self._fit.weight > 0

    def observe(self, num_rows: int, row_context: int, seconds: float) -> None:
        """A step that decided for all its sequences; one of no row (all cancelled) says nothing."""
        if num_rows <= 0:
            return
        if self._fit.weight >= ENOUGH:
            seconds = min(seconds, MAX_SURPRISE * float(self.seconds(num_rows, row_context)))
        self._fit.observe(np.array([1.0, *self._parts(num_rows, row_context)]), seconds)
        self._scale = None

    def seconds(
        self, num_rows: np.ndarray | int, row_context: np.ndarray | float = 0
    ) -> np.ndarray:
        """Expected seconds of steps of num_rows; never less for more rows."""
        if self._scale is None:
            self._scale = self._scales()
        rows, context = self._parts(num_rows, row_context)
        return self._scale[0] + self._scale[1] * rows + self._scale[2] * context

    def _parts(
        self, num_rows: np.ndarray | int, row_context: np.ndarray | float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of rows past the first, and of context, in units of a step of one row."""
        at = np.asarray(num_rows)
        tabled = at.dtype.kind == "i" and at.max(initial=0) < NUM_TABLED
        steps = self._steps[at] if tabled else self.profile.of_rows(at) / self._unit
        context = np.asarray(row_context, float)
        return steps - 1.0, context * (self.profile.context_seconds / self._unit)

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
        self._parts: np.ndarray | None = None

    def observe(self, depth: int, num_seqs: int, seconds: float) -> None:
        """A proposal of paths up to `depth` for num_seqs sequences."""
        if self._fit.weight >= ENOUGH:
            seconds = min(seconds, MAX_SURPRISE * float(self.seconds(np.array(depth), num_seqs)))
        self._fit.observe(np.array([1.0, depth, depth * num_seqs]), seconds)
        self._parts = None

    def seconds(self, depth: np.ndarray, num_seqs: int) -> np.ndarray:
        """Expected seconds; nothing as long as nothing was seen, so that it will be."""
        if self._fit.weight == 0:
            return np.zeros_like(depth, float)
        if self._parts is None:
            self._parts = self._fit.solve()
        once, forward, row = self._parts
        return once + depth * (forward + num_seqs * row)
