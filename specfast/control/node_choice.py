"""Which drafted nodes to verify: those with which the batch emits most tokens a second."""

from __future__ import annotations

import numpy as np

from specfast.control.calibration import Calibration, Offset, sigmoid
from specfast.control.cost_model import CostModel, StepLoad, load_of
from specfast.control.survival import Decided, outcomes, survival
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence

NO_OFFSET = Offset()


class NodeChoice:
    """Survival is calibrated by source of drafts, and a request's own luck comes on top: a new one
    starts from what all had.
    """

    def __init__(self, num_sources: int) -> None:
        self._calibrations = [Calibration() for _ in range(num_sources)]
        self._offsets: dict[int, Offset] = {}

    def best(self, batch: Batch, proposal: Proposal, cost: CostModel, drafting: float) -> Proposal:
        """Adds nodes by their survival, likeliest first, and stops where tokens a second are most:
        the best of all prefix-closed choices, whatever the steps in the cost of rows. drafting:
        seconds of this step that are spent already.

        A parent survives at least as often as its child and comes before it.
        """
        reach = survival(proposal, sigmoid(self._log_odds(batch, proposal)))
        order = np.argsort(-reach, axis=None, kind="stable")[: proposal.num_nodes]
        emitted = batch.decides.sum() + np.append(0.0, np.cumsum(reach.ravel()[order]))
        plain, added = load_of(batch), np.cumsum(batch.contexts[order // reach.shape[1]])
        load = StepLoad(
            plain.rows + np.arange(len(emitted)),
            plain.context,
            plain.row_context + np.append(0, added),
        )
        rate = emitted / (cost.seconds(load) + drafting)
        keep = np.zeros(reach.size, bool)
        keep[order[: int(rate.argmax())]] = True
        self._fade(batch, proposal, keep.reshape(reach.shape))
        return proposal.kept(keep.reshape(reach.shape))

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Learns from the nodes that the target decided."""
        is_tested, is_accepted = outcomes(proposal, result)
        confidence, depths = proposal.confidence.numpy(), proposal.node_depths
        sources = _sources(proposal)
        plain = self._plain_log_odds(proposal)
        for number, calibration in enumerate(self._calibrations):
            own = is_tested & (sources == number)
            calibration.observe(confidence[own], depths[own], is_accepted[own])
        for row in np.flatnonzero(is_tested.any(axis=1)).tolist():
            tested = is_tested[row]
            offset = self._offsets.setdefault(batch.seqs[row].seq_id, Offset())
            offset.observe(plain[row, tested], is_accepted[row, tested])

    def release(self, seq: Sequence) -> None:
        self._offsets.pop(seq.seq_id, None)

    @property
    def calibration_error(self) -> float | None:
        """The sources' largest."""
        errors = [c.error for c in self._calibrations if c.error is not None]
        return max(errors, default=None)

    def _fade(self, batch: Batch, proposal: Proposal, keep: np.ndarray) -> None:
        """Doubts the verdict on what is not tested any more, so that it is some day."""
        if not keep.any():
            for calibration in self._calibrations:
                calibration.fade()
        for row in np.flatnonzero((proposal.lengths.numpy() > 0) & ~keep.any(axis=1)).tolist():
            if offset := self._offsets.get(batch.seqs[row].seq_id):
                offset.fade()

    def _log_odds(self, batch: Batch, proposal: Proposal) -> np.ndarray:
        """That each node is accepted, given its parent [B, N]."""
        own = [
            self._offsets[s.seq_id].value if s.seq_id in self._offsets else 0.0 for s in batch.seqs
        ]
        return self._plain_log_odds(proposal) + np.array(own)[:, None]

    def _plain_log_odds(self, proposal: Proposal) -> np.ndarray:
        """The same for any request."""
        confidence, depths = proposal.confidence.numpy(), proposal.node_depths
        if len(self._calibrations) == 1:
            return self._calibrations[0].log_odds(confidence, depths)
        by_source = np.stack([c.log_odds(confidence, depths) for c in self._calibrations])
        return np.take_along_axis(by_source, _sources(proposal)[None], 0)[0]


def _sources(proposal: Proposal) -> np.ndarray:
    """[B, N]: who drafted each node."""
    if proposal.sources is None:
        return np.zeros(proposal.tokens.shape, np.int64)
    return proposal.sources.numpy().astype(np.int64)
