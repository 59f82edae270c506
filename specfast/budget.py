"""The only place that decides how far to speculate."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seqs
from typing import Protocol

import numpy as np
from torch import Tensor

from specfast.calibration import Calibration
from specfast.cost_model import CostModel
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import MAX_NODES, SpeculativeConfig


class Decided(Protocol):
    """What the target said: path [B, N] and num_accepted [B], as in VerifyResult."""

    @property
    def path(self) -> Tensor: ...

    @property
    def num_accepted(self) -> Tensor: ...


class Budget:
    """plan() sets limits before anything is drafted; select() only trims what was proposed.

    Policy "fixed" keeps whatever is proposed. "auto" keeps the nodes with which the whole batch is
    expected to emit most tokens a second: by their survival, calibrated, and by what a row costs,
    measured.
    """

    def __init__(self, config: SpeculativeConfig | None) -> None:
        self.depth = config.num_speculative_tokens if config else 0
        self.nodes = min(config.max_tree_nodes or self.depth, MAX_NODES) if config else 0
        self._trims = bool(config and config.policy == "auto")
        self._switched_off: set[int] = set()  # ids of sequences whose drafter failed
        self._cost, self._calibration = CostModel(), Calibration()
        self._planned_at = self._selected_at = 0.0
        self._overhead = 0.0  # seconds of a step before the target runs, a decaying mean

    def plan(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """-> [B, 2] int32: depth and nodes. Never deeper than a sequence may still emit, less the
        bonus.
        """
        self._planned_at = time.perf_counter()
        limits = np.zeros((len(seqs), 2), np.int32)
        for row, seq in enumerate(seqs):
            depth = min(self._requested_depth(seq), seq.num_remaining_tokens - 1)
            if depth > 0:
                limits[row] = depth, max(self.nodes * depth // self.depth, depth)
        return limits

    def select(self, batch: Batch, proposal: Proposal) -> Proposal:
        """The nodes worth verifying, prefix-closed; of drafts that were drawn, all."""
        trims = self._trims and proposal.draft_laws is None
        if trims and proposal.num_nodes and self._cost.is_known:
            proposal = self._trimmed(batch, proposal)
        self._selected_at = time.perf_counter()
        return proposal

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Learns what the step took, and which drafts were accepted."""
        if not self._trims:
            return
        seconds = time.perf_counter() - self._selected_at
        self._cost.observe(int(batch.num_tokens.sum()) + proposal.num_nodes, seconds)
        self._overhead += 0.1 * (self._selected_at - self._planned_at - self._overhead)
        if proposal.num_nodes:
            is_tested, is_accepted = outcomes(proposal, result)
            confidence = proposal.confidence.numpy()[is_tested]
            self._calibration.observe(confidence, is_accepted[is_tested])

    def switch_off(self, seq: Sequence) -> None:
        """Plans no drafts for this sequence any more."""
        self._switched_off.add(seq.seq_id)

    def release(self, seq: Sequence) -> None:
        """Forgets a finished sequence."""
        self._switched_off.discard(seq.seq_id)

    def _trimmed(self, batch: Batch, proposal: Proposal) -> Proposal:
        """Adds nodes by their survival, likeliest first, and stops where tokens a second are most.

        A parent survives at least as often as its child and comes before it.
        """
        probability = self._calibration.probability(proposal.confidence.numpy())
        reach = survival(proposal, probability)
        order = np.argsort(-reach, axis=None, kind="stable")[: proposal.num_nodes]
        emitted = batch.decides.sum() + np.append(0.0, np.cumsum(reach.ravel()[order]))
        num_rows = int(batch.num_tokens.sum()) + np.arange(len(emitted))
        rate = emitted / (self._cost.seconds(num_rows) + self._overhead)
        keep = np.zeros(reach.size, bool)
        keep[order[: int(rate.argmax())]] = True
        if not keep.any():
            self._calibration.fade()
        return proposal.kept(keep.reshape(reach.shape))

    def _requested_depth(self, seq: Sequence) -> int:
        override = seq.params.speculation
        if not override.enabled or seq.seq_id in self._switched_off:
            return 0
        k = override.num_speculative_tokens
        return self.depth if k is None else min(k, self.depth)


def survival(proposal: Proposal, probability: np.ndarray) -> np.ndarray:
    """That each node and all its ancestors are accepted [B, N], from what each is given its parent;
    -1 for padding.
    """
    parents, every = proposal.parents.numpy(), np.arange(len(proposal.lengths))
    reach = np.empty(parents.shape)
    for node in range(parents.shape[1]):
        above = np.where(parents[:, node] < 0, 1.0, reach[every, parents[:, node]])
        reach[:, node] = above * probability[:, node]
    reach[~is_node(proposal)] = -1.0
    return reach


def outcomes(proposal: Proposal, result: Decided) -> tuple[np.ndarray, np.ndarray]:
    """[B, N] bool each: nodes that the target decided, since their parents were accepted; and those
    that it accepted.
    """
    shape = proposal.tokens.shape
    accepted = np.zeros((shape[0], shape[1] + 1), bool)  # the last column stands for the root
    path, counts = result.path.numpy(), result.num_accepted.numpy()
    row, column = np.nonzero(np.arange(shape[1]) < counts[:, None])
    accepted[row, path[row, column]] = True
    accepted[:, -1] = True
    is_tested = np.take_along_axis(accepted, proposal.parents.numpy(), 1) & is_node(proposal)
    return is_tested, accepted[:, :-1]


def is_node(proposal: Proposal) -> np.ndarray:
    """[B, N] bool: no padding."""
    return np.arange(proposal.tokens.shape[1]) < proposal.lengths.numpy()[:, None]
