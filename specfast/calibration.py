"""How often drafts are accepted that a proposer gives a certain confidence."""

from __future__ import annotations

import numpy as np

NUM_BINS = 16
FORGETTING = 0.995  # of what was seen, a step that had drafts
PRIOR_WEIGHT = 4.0  # drafts a bin


class Calibration:
    """Maps a proposer's confidence to a probability, by the share accepted of its like so far.

    Bins lie even in log-odds, where confidence is informative at both ends. Before anything was
    seen the confidence itself is believed.
    """

    def __init__(self) -> None:
        self._tested, self._accepted, self._believed = np.zeros((3, NUM_BINS))

    def probability(self, confidence: np.ndarray) -> np.ndarray:
        """That a node is accepted, given its parent; any shape, what is no number counts as 0."""
        believed = np.clip(np.nan_to_num(confidence, nan=0.0), 0.0, 1.0)
        bins = _bins(believed)
        excess = self._accepted - self._believed
        corrected = believed + (excess / (self._tested + PRIOR_WEIGHT))[bins]
        return np.clip(corrected, 0.0, 1.0)

    def fade(self) -> None:
        """After drafts of which none was tested, or what was once refuted were so for good."""
        for total in (self._tested, self._accepted, self._believed):
            total *= FORGETTING

    def observe(self, confidence: np.ndarray, accepted: np.ndarray) -> None:
        """Drafts [n] whose parent was accepted, and whether they were."""
        if not len(confidence):
            return
        believed = np.clip(np.nan_to_num(confidence, nan=0.0), 0.0, 1.0)
        bins = _bins(believed)
        self.fade()
        for total, values in (
            (self._tested, np.ones(len(bins))),
            (self._accepted, accepted.astype(float)),
            (self._believed, believed),
        ):
            total += np.bincount(bins, values, NUM_BINS)


def _bins(probability: np.ndarray) -> np.ndarray:
    safe = np.clip(probability, 1e-3, 1 - 1e-3)
    log_odds = np.log(safe / (1 - safe)) / np.log(999.0)  # -1 to 1
    return np.minimum((0.5 * (log_odds + 1) * NUM_BINS).astype(int), NUM_BINS - 1)
