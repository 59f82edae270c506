"""What a step takes: the target's part and the drafting, learnt from the steps themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specfast.control.cost_profile import CostProfile
from specfast.control.least_squares import DecayingFit
from specfast.sequence import Batch

FORGETTING = 0.98  # of what was seen, a step
PRIOR_WEIGHT = 0.2  # steps
MAX_SURPRISE = 4.0  # times the expected: what takes longer was something else's doing
ENOUGH = 8.0  # steps to expect by
NUM_TABLED = 1024  # rows
CONTEXT_UNIT = 1000.0  # tokens
# Where nothing was profiled: a row more costs a twentieth of a step of one row, a token of context
# a twenty-thousandth, and for each row that attends to it a quarter of that.
UNPROFILED = CostProfile((1, 21), (1.0, 2.0), context_seconds=5e-5, row_context_seconds=1.25e-5)


@dataclass(frozen=True)
class StepLoad:
    """What a step computes, as numbers or arrays of one shape: rows; context: tokens of all its
    sequences; row_context: the same, counted for each of their rows.
    """

    rows: np.ndarray | int
    context: np.ndarray | float = 0.0
    row_context: np.ndarray | float = 0.0


def load_of(batch: Batch) -> StepLoad:
    """Without drafts."""
    return StepLoad(
        int(batch.num_tokens.sum()),
        int(batch.contexts.sum()),
        int(batch.contexts @ batch.num_tokens),
    )


class CostModel:
    """Seconds of the target's part of a step: a profile at first; what one row takes, what more
    add between those profiled, and the two parts of the context are then learnt from steps. What
    steps don't tell keeps its ratio to the rest.
    """

    def __init__(self, profile: CostProfile | None = None) -> None:
        self._is_profiled = profile is not None
        self.profile = profile or UNPROFILED
        expected = self._profiled()
        ratios = [
            (0, part, float(expected[part] / expected[0])) for part in range(1, len(expected))
        ]
        self._fit = DecayingFit(len(expected), ratios, PRIOR_WEIGHT, FORGETTING)
        self._tabled = self._parts(StepLoad(np.arange(NUM_TABLED)))[:-2]
        self._known: tuple[np.ndarray, float, float] | None = None  # until the next step is seen

    @property
    def is_known(self) -> bool:
        return self._is_profiled or self._fit.weight > 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step that decided for all its rows; one of no row (all cancelled) says nothing."""
        if load.rows <= 0:
            return
        if self._fit.weight >= ENOUGH:
            seconds = min(seconds, MAX_SURPRISE * float(self.seconds(load)))
        self._fit.observe(self._parts(load), seconds)
        if not self._fit.is_solved:
            self._known = None

    def seconds(self, load: StepLoad) -> np.ndarray:
        """Expected seconds; never less for more rows."""
        if self._known is None:
            self._known = self._in_seconds()
        tabled, once, each = self._known
        rows = np.asarray(load.rows)
        if rows.dtype.kind == "i" and rows.max() < NUM_TABLED:
            steps = tabled[rows]
        else:
            steps = np.tensordot(self._theta()[:-2], self._parts(StepLoad(rows))[:-2], 1)
        return steps + once * load.context + each * load.row_context

    def with_drafts(self, plain: StepLoad, num_drafts: int) -> tuple[np.ndarray, float]:
        """-> seconds [num_drafts + 1] by how many nodes are verified beside it, and what each token
        of context before a node adds.
        """
        rows = int(plain.rows) + np.arange(num_drafts + 1)
        seconds = self.seconds(StepLoad(rows, plain.context, plain.row_context))
        assert self._known is not None
        return seconds, self._known[2]

    def share(self, part: StepLoad, whole: StepLoad) -> float:
        """What one step takes of another's time."""
        return float(self.seconds(part) / self.seconds(whole)) if self.is_known else 1.0

    def _in_seconds(self) -> tuple[np.ndarray, float, float]:
        """Of steps by their rows [NUM_TABLED], of a token of context, and of one for each row."""
        theta = self._theta()
        once, each = theta[-2:] / CONTEXT_UNIT
        return theta[:-2] @ self._tabled, float(once), float(each)

    def _parts(self, load: StepLoad) -> np.ndarray:
        """[parts, ...]: 1, the rows within each stretch of the profile, the last one's also beyond
        it, and the two contexts.
        """
        rows, knots = np.asarray(load.rows, float), self.profile.rows
        ends = [*knots[1:-1], np.inf] if len(knots) > 1 else []
        stretches = [np.clip(rows, a, b) - a for a, b in zip(knots, ends)]
        contexts = (np.asarray(c) / CONTEXT_UNIT for c in (load.context, load.row_context))
        return np.array(np.broadcast_arrays(np.ones_like(rows), *stretches, *contexts))

    def _profiled(self) -> np.ndarray:
        """Seconds of each part by the profile alone."""
        p = self.profile
        steps = p.of_rows(np.array(p.rows))
        contexts = CONTEXT_UNIT * np.array([p.context_seconds, p.row_context_seconds])
        return np.concatenate([steps[:1], np.diff(steps) / np.diff(p.rows), contexts])

    def _theta(self) -> np.ndarray:
        """Seconds that each part takes."""
        if self._fit.weight == 0:
            return self._profiled()
        theta = self._fit.solve()
        return np.append(max(theta[0], 0.1 * self._fit.mean), theta[1:])


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
        once, forward, row = self._fit.solve()
        return once + depth * (forward + num_seqs * row)
