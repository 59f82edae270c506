"""Least squares over a decaying window, drawn towards what is believed beforehand."""

from __future__ import annotations

from collections.abc import Sequence as Seqs

import numpy as np

SOLVED_EVERY = 8  # observations at most: solving takes longer than what few more say is worth
LEAST = 1e-6  # of a part's mean square: what was never seen follows the belief alone


class DecayingFit:
    """Finds theta [d] in y = x . theta, recursively, in the information form.

    beliefs: (i, j, ratio), that theta[j] is ratio * theta[i], each worth `weight` observations of
    part j's usual size. They leave the scale open, so that one observation is enough to begin with;
    and what is no longer excited goes back to its ratio instead of drifting.
    """

    def __init__(
        self, dim: int, beliefs: Seqs[tuple[int, int, float]], weight: float, forgetting: float
    ) -> None:
        self._beliefs, self._belief_weight, self._forgetting = beliefs, weight, forgetting
        self._moments, self._targets = np.zeros((dim, dim)), np.zeros(dim)
        self.weight = 0.0  # observations that still count
        self._total = 0.0
        self._unsolved = 0
        self._solution: np.ndarray | None = None

    def observe(self, x: np.ndarray, y: float) -> None:
        self._moments = self._forgetting * self._moments + np.outer(x, x)
        self._targets = self._forgetting * self._targets + x * y
        self.weight = self._forgetting * self.weight + 1.0
        self._total = self._forgetting * self._total + y
        self._unsolved += 1
        if self._unsolved > min(self.weight / 8, SOLVED_EVERY):
            self._solution = None

    @property
    def is_solved(self) -> bool:
        """Whether solve() has an answer still."""
        return self._solution is not None

    @property
    def mean(self) -> float:
        """Of the y that still count."""
        return self._total / self.weight

    def solve(self) -> np.ndarray:
        """theta [d], none below 0, but for the last few observations; one at least must have been
        made.
        """
        assert self.weight > 0
        if self._solution is None:
            self._solution = nonnegative(self._believed(), self._targets)
            self._unsolved = 0
        return self._solution

    def _believed(self) -> np.ndarray:
        """The moments, with what is believed added."""
        moments = self._moments.copy()
        for i, j, ratio in self._beliefs:
            size = self._belief_weight * max(self._moments[j, j] / self.weight, LEAST)
            moments[j, j] += size
            moments[i, i] += size * ratio**2
            moments[i, j] -= size * ratio
            moments[j, i] -= size * ratio
        return moments


def nonnegative(moments: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """theta [d] of moments . theta = targets; what would be negative is 0, and the others are
    fitted without it.
    """
    theta, kept = np.zeros(len(targets)), np.arange(len(targets))
    while len(kept):
        found = np.linalg.solve(moments[np.ix_(kept, kept)], targets[kept])
        if (found >= 0).all():
            theta[kept] = found
            break
        kept = np.delete(kept, found.argmin())
    return theta
