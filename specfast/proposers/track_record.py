"""What a source of drafts promised, kept and cost: by that a hybrid chooses."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specfast.proposers.base import Proposal

if TYPE_CHECKING:
    from specfast.verifier import VerifyResult

logger = logging.getLogger(__name__)

DECAY = 0.98  # of what was seen, a proposal
FRUITLESS, MAX_REST = 4, 32  # proposals in a row; steps
ENOUGH_DRAFTS, MIN_FORETOLD = 256, 4  # proposals to judge by; those that must foretell a token


@dataclass
class Average:
    """A decaying mean that starts at a prior worth one observation."""

    prior: float
    total: float = 0.0
    weight: float = 0.0

    @property
    def value(self) -> float:
        return (self.prior + self.total) / (1.0 + self.weight)

    def add(self, value: float) -> None:
        self.total = DECAY * self.total + value
        self.weight = DECAY * self.weight + 1.0


@dataclass
class Promises:
    """How much of the drafts that a source expected to be accepted were."""

    promised: float = 1.0
    kept: float = 1.0

    @property
    def kept_share(self) -> float:
        return self.kept / self.promised

    def add(self, promised: float, kept: float) -> None:
        """What promised nothing says nothing: were it to decay the sums, they would end at 0."""
        if promised == 0:
            return
        self.promised = DECAY * self.promised + promised
        self.kept = DECAY * self.kept + kept


@dataclass
class Watchdog:
    """Rests a source that brings a sequence nothing, twice as long each time; then asks again."""

    fruitless: int = 0
    rest: int = 0

    def is_awake(self) -> bool:
        """Whether to ask now; a step of rest passes otherwise."""
        if self.rest == 0:
            return True
        self.rest -= 1
        return False

    def saw(self, num_accepted: int) -> None:
        """What the last proposal brought."""
        self.fruitless = 0 if num_accepted else self.fruitless + 1
        if self.fruitless >= FRUITLESS:
            self.rest = min(2 ** (self.fruitless - FRUITLESS), MAX_REST)


class CostClock:
    """What a drafter's proposal takes, in units of the rest of its step."""

    def __init__(self, prior: float) -> None:
        self._cost = Average(prior)
        self._drafting = 0.0  # seconds, in the step that runs
        self._proposed_at = 0.0

    @property
    def draft_cost(self) -> float:
        return self._cost.value

    @contextmanager
    def drafting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._drafting = time.perf_counter() - start

    def proposed(self) -> None:
        """The target's turn begins."""
        self._proposed_at = time.perf_counter()

    def observed(self) -> None:
        """The target's turn is over. A prompt's first feeding says little about later steps."""
        if self._drafting:
            rest = time.perf_counter() - self._proposed_at
            self._cost.add(min(self._drafting / rest, 1.0))
        self._drafting = 0.0


class FitCheck:
    """Warns, once, of a trained head that foretells next to nothing: it belongs to another target,
    or its tensors mean something else. A step counts whether or not its drafts were verified.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._proposal: Proposal | None = None
        self._num_drafts = self._num_foretold = 0

    def proposed(self, proposal: Proposal) -> None:
        """What the head says of this step."""
        self._proposal = proposal

    def observe(self, verified: Proposal, result: VerifyResult) -> None:
        """What the target said, of the same batch."""
        own, self._proposal = self._proposal, None
        if self._num_drafts >= ENOUGH_DRAFTS or own is None:
            return
        if not own.num_nodes or len(own.lengths) != len(verified.lengths):
            return  # whoever was asked, it was not for this batch
        drafted = (own.lengths > 0) & (result.next_tokens >= 0)
        is_first = own.parents.numpy() == -1
        foretold = (is_first & (own.tokens.numpy() == first_said(verified, result)[:, None])).any(1)
        self._num_drafts += int(drafted.sum())
        self._num_foretold += int((foretold & drafted.numpy()).sum())
        if self._num_drafts >= ENOUGH_DRAFTS and self._num_foretold < MIN_FORETOLD:
            logger.warning(
                "%s: of %d drafts the target said %d. Check that the head was trained for this "
                "very target, and that its config.json is its own. The output stays the same.",
                *(self._what, self._num_drafts, self._num_foretold),
            )


def first_said(verified: Proposal, result: VerifyResult) -> np.ndarray:
    """The first token that the target decided [B] in a step; -1: none."""
    said = result.next_tokens.numpy().copy()
    rows = np.nonzero(result.num_accepted.numpy())[0]
    if len(rows):
        said[rows] = verified.tokens.numpy()[rows, result.path.numpy()[rows, 0]]
    return said
