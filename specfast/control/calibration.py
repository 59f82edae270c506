"""How often drafts are accepted that a proposer gives a certain confidence."""

from __future__ import annotations

import numpy as np

FORGETTING = 0.995  # of what was seen, a step that had drafts
# Beta calibration's three weights as they are where confidence is right, and the depth's; how sure.
PRIOR = np.array([1.0, 1.0, 0.0, 0.0])
PRIOR_PRECISION = np.array([4.0, 4.0, 4.0, 16.0])
LOWEST = np.float64(1e-3)
SUREST = 7.0  # log-odds
NUM_BINS = 10
OFFSET_PRECISION = 40.0  # of a request's own log-odds, in drafts that were as likely as not


class Calibration:
    """log-odds = a ln c - b ln(1 - c) + const + depth, learnt online for one source of drafts.

    Source: Kull, Silva Filho and Flach, "Beta calibration", 2017; the weights follow by Newton
    steps on a decaying window that forgets towards the prior, by which confidence is believed.
    """

    def __init__(self) -> None:
        self._weights = PRIOR.copy()
        self._precision = np.diag(PRIOR_PRECISION)
        self._error = CalibrationError()

    def log_odds(self, confidence: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """That a node at this depth is accepted, given its parent; what is no number counts as 0.
        Any shape; never a certainty, so that what is refuted can come back.
        """
        found = features(confidence, depth) @ self._weights
        return np.minimum(np.maximum(found, -SUREST), SUREST)

    def observe(self, confidence: np.ndarray, depth: np.ndarray, accepted: np.ndarray) -> None:
        """Drafts [n] whose parent was accepted, and whether they were."""
        if not len(confidence):
            return self.fade()
        x, probability = features(confidence, depth), sigmoid(self.log_odds(confidence, depth))
        self._error.observe(probability, accepted)
        gradient = x.T @ (accepted - probability)
        self._step(gradient, (x * curvature(probability, accepted)[:, None]).T @ x)

    def fade(self) -> None:
        """Believes the confidence a little more: what was once refuted is not so for good."""
        self._step(0.0, 0.0)

    def _step(self, gradient: np.ndarray | float, information: np.ndarray | float) -> None:
        """Newton's, on a window that forgets towards the prior."""
        pull = (1 - FORGETTING) * PRIOR_PRECISION
        self._precision *= FORGETTING
        self._precision += information
        self._precision[np.diag_indices(len(PRIOR))] += pull
        towards = gradient + pull * (PRIOR - self._weights)
        self._weights = self._weights + np.linalg.solve(self._precision, towards)

    @property
    def error(self) -> float | None:
        """The expected calibration error of what was said before it was seen."""
        return self._error.value


class CalibrationError:
    """The mean gap between what was foretold and what came, over bins of what was foretold."""

    def __init__(self) -> None:
        self._count, self._foretold, self._came = np.zeros((3, NUM_BINS))

    def observe(self, probability: np.ndarray, accepted: np.ndarray) -> None:
        bins = np.minimum((probability * NUM_BINS).astype(int), NUM_BINS - 1)
        for total, values in (
            (self._count, np.ones(len(bins))),
            (self._foretold, probability),
            (self._came, accepted.astype(float)),
        ):
            total *= FORGETTING
            total += np.bincount(bins, values, NUM_BINS)

    @property
    def num_drafts(self) -> float:
        """Those that still count."""
        return float(self._count.sum())

    @property
    def value(self) -> float | None:
        """None before anything was seen."""
        if not self.num_drafts:
            return None
        return float(np.abs(self._foretold - self._came).sum() / self.num_drafts)


class Offset:
    """How much luckier one request's drafts are than their like: its own log-odds, shrunk."""

    def __init__(self) -> None:
        self._surplus = self._information = 0.0

    @property
    def value(self) -> float:
        return self._surplus / (self._information + OFFSET_PRECISION / 4)

    def observe(self, log_odds: np.ndarray, accepted: np.ndarray) -> None:
        """Drafts that were tested: what was foretold without the offset, and what came."""
        probability = sigmoid(log_odds + self.value)
        information = float(curvature(probability, accepted).sum())
        surplus = float((accepted - probability).sum()) + information * self.value
        self.fade()
        self._surplus += surplus
        self._information += information

    def fade(self) -> None:
        """After a step, and after drafts of which none was tested."""
        self._surplus *= FORGETTING
        self._information *= FORGETTING


def features(confidence: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """[..., 4] of what the calibration is linear in."""
    found = np.empty((*np.shape(confidence), len(PRIOR)))
    safe = np.minimum(np.fmax(confidence, LOWEST), 1 - LOWEST)  # fmax takes no NaN
    np.log(safe, out=found[..., 0])
    np.negative(np.log1p(-safe), out=found[..., 1])
    found[..., 2] = 1.0
    np.log1p(depth, out=found[..., 3])
    return found


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * log_odds))


def curvature(probability: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Of the likelihood, for a Newton step: where the outcome is a surprise, that of a coin, or
    one that was thought certain would throw the weights anywhere.
    """
    return np.maximum(probability * (1 - probability), 0.25 * np.abs(accepted - probability))
