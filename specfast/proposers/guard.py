"""What stands between the engine and a proposer: whatever it does, no request pays for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from specfast.proposers.base import Proposal, Proposer, source_names
from specfast.sequence import Batch, Sequence

logger = logging.getLogger(__name__)


class Guard:
    """Checks every proposal before the target runs; a request whose drafter fails goes on plainly.

    switch_off: told each sequence that is to be drafted for no more.
    """

    def __init__(
        self, proposer: Proposer, vocab_size: int, switch_off: Callable[[Sequence], None]
    ) -> None:
        self.proposer = proposer
        self._name = type(proposer).__name__
        self._vocab_size = vocab_size
        self._num_sources = len(source_names(proposer, ""))
        self._switch_off = switch_off
        self._blamed: set[int] = set()  # ids of sequences: one warning each

    def propose(self, batch: Batch) -> Proposal:
        """The proposer's trees. Where it fails, it is asked for one sequence at a time, and those
        for which it fails again are switched off: it doesn't see them any more.
        """
        trusted = [row for row, s in enumerate(batch.seqs) if s.seq_id not in self._blamed]
        if len(trusted) == len(batch):
            return self._asked(batch)
        proposal = self._asked(batch.only(trusted))
        order = np.full(len(batch), len(trusted))  # the others get the empty tree at the end
        order[trusted] = np.arange(len(trusted))
        return Proposal.joined([proposal, Proposal.empty(1)]).only(order)

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """As the proposer's; one that fails is in an unknown state for the whole batch."""
        try:
            self.proposer.observe(batch, proposal, forward, result)
        except Exception as error:
            for seq in batch.seqs:
                self._blame(seq, error)

    def release(self, seq: Sequence) -> None:
        """As the proposer's."""
        try:
            self.proposer.release(seq)
        except Exception as error:
            self._blame(seq, error)
        self._blamed.discard(seq.seq_id)

    def _asked(self, batch: Batch) -> Proposal:
        if len(batch) == 0:
            return Proposal.empty(0)
        try:
            return self._checked(batch)
        except Exception as error:
            if len(batch) == 1:
                self._blame(batch.seqs[0], error)
                return Proposal.empty(1)
        return Proposal.joined([self._asked(batch.only([row])) for row in range(len(batch))])

    def _checked(self, batch: Batch) -> Proposal:
        proposal = self.proposer.propose(batch)
        if not isinstance(proposal, Proposal):
            raise ValueError(f"propose must return a Proposal, not {proposal!r}.")
        proposal.check(batch.draft_limits, self._vocab_size, self._num_sources)
        return proposal

    def _blame(self, seq: Sequence, error: Exception) -> None:
        if seq.seq_id in self._blamed:
            return
        self._blamed.add(seq.seq_id)
        self._switch_off(seq)
        logger.warning(
            "%s failed (%s: %s): sequence %d goes on without drafts; its output stays the same.",
            *(self._name, type(error).__name__, error, seq.seq_id),
        )
        logger.debug("Where it failed:", exc_info=error)
