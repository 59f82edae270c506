"""The only place that decides how far to speculate. So far: a fixed k, less where it can't pay."""

from __future__ import annotations

from collections.abc import Sequence as Seqs

import numpy as np

from specfast.config import SpeculativeConfig
from specfast.proposers.base import MAX_NODES, Proposal
from specfast.sequence import Batch, Sequence


class Budget:
    """plan() sets limits before anything is drafted; select() only trims what was proposed."""

    def __init__(self, config: SpeculativeConfig | None) -> None:
        self.depth = config.num_speculative_tokens if config else 0
        self.nodes = min(config.max_tree_nodes or self.depth, MAX_NODES) if config else 0
        self._switched_off: set[int] = set()  # ids of sequences whose drafter failed

    def plan(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """-> [B, 2] int32: depth and nodes. Never deeper than a sequence may still emit, less the
        bonus.
        """
        limits = np.zeros((len(seqs), 2), np.int32)
        for row, seq in enumerate(seqs):
            depth = min(self._requested_depth(seq), seq.num_remaining_tokens - 1)
            if depth > 0:
                limits[row] = depth, max(self.nodes * depth // self.depth, depth)
        return limits

    def switch_off(self, seq: Sequence) -> None:
        """Plans no drafts for this sequence any more."""
        self._switched_off.add(seq.seq_id)

    def release(self, seq: Sequence) -> None:
        """Forgets a finished sequence."""
        self._switched_off.discard(seq.seq_id)

    def select(self, batch: Batch, proposal: Proposal) -> Proposal:
        """Keeps everything: a fixed k has nothing to trim."""
        return proposal

    def observe(self, batch: Batch, proposal: Proposal, result: object) -> None:
        """A fixed k learns nothing."""

    def _requested_depth(self, seq: Sequence) -> int:
        override = seq.params.speculation
        if not override.enabled or seq.seq_id in self._switched_off:
            return 0
        k = override.num_speculative_tokens
        return self.depth if k is None else min(k, self.depth)
