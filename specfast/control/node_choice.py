"""Which drafted nodes to verify: those with which the batch emits most tokens a second."""

from __future__ import annotations

import numpy as np

from specfast import _host
from specfast.control.cost_model import CostModel, load_of
from specfast.control.decided import Decided
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence


class NodeChoice:
    """Survival is calibrated by source of drafts, and a request's own luck comes on top: a new one
    starts from what all had.
    """

    def __init__(self, num_sources: int) -> None:
        self._choice = _host.NodeChoice(num_sources)

    def best(self, batch: Batch, proposal: Proposal, cost: CostModel, drafting: float) -> Proposal:
        """Adds nodes by their survival, likeliest first, and stops where tokens a second are most:
        the best of all prefix-closed choices, whatever the steps in the cost of rows. drafting:
        seconds of this step that are spent already.
        """
        seconds, row_context = cost.with_drafts(load_of(batch), proposal.num_nodes)
        keep = self._choice.best(
            *_trees(batch, proposal),
            seconds + drafting,
            row_context * batch.contexts,
            int(np.count_nonzero(batch.decides)),
        )
        return proposal.kept(keep)

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Learns from the nodes that the target decided."""
        decided = result.path.numpy(), result.num_accepted.numpy()
        self._choice.observe(*_trees(batch, proposal), *decided)

    def release(self, seq: Sequence) -> None:
        self._choice.release(seq.seq_id)

    @property
    def calibration_error(self) -> float | None:
        """Expected, of what was said before it was seen: the sources' largest."""
        return self._choice.calibration_error


Trees = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]


def _trees(batch: Batch, proposal: Proposal) -> Trees:
    sources = None if proposal.sources is None else proposal.sources.numpy()
    parents, lengths = proposal.parents.numpy(), proposal.lengths.numpy()
    ids = np.fromiter((s.seq_id for s in batch.seqs), np.int64, len(batch))
    return parents, lengths, proposal.confidence.numpy(), sources, ids
