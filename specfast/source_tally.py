"""Who drafted what was verified, and what was accepted of it."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from specfast.proposers.base import Proposal
from specfast.spec_stats import SourceStats

if TYPE_CHECKING:
    from specfast.outputs import StepOutput
    from specfast.sequence import Batch


class Decided(Protocol):
    """What the target said: path [B, N], as in VerifyResult."""

    @property
    def path(self) -> Tensor: ...


class SourceTally:
    """Counts by source. counts [sources, 4]: the fields of SourceStats in order."""

    def __init__(self, names: Seqs[str]) -> None:
        self._names = names
        self._counts = np.zeros((len(names), 4), np.int64)

    def stats(self) -> dict[str, SourceStats]:
        return {n: SourceStats(*row) for n, row in zip(self._names, self._counts.tolist())}

    def add(
        self, batch: Batch, proposal: Proposal, result: Decided, outputs: Seqs[StepOutput]
    ) -> None:
        """Counts one step; outputs: what was left of it after the cut."""
        drafted = [o for o in outputs if o.num_draft_tokens]
        if not drafted:
            return
        if proposal.sources is not None:
            self._counts += self._by_source(batch, proposal, result, drafted)
            return
        self._counts[0] += (
            len(drafted),
            sum(o.num_draft_tokens for o in drafted),
            sum(o.draft_depth for o in drafted),
            sum(o.num_accepted for o in drafted),
        )

    def _by_source(
        self, batch: Batch, proposal: Proposal, result: Decided, drafted: Seqs[StepOutput]
    ) -> np.ndarray:
        """-> counts [sources, 4] of one step."""
        assert proposal.sources is not None
        sources, depths = proposal.sources.numpy(), proposal.node_depths
        row, node = np.nonzero(np.arange(depths.shape[1]) < proposal.lengths.numpy()[:, None])
        source = sources[row, node]
        had_one = np.zeros((len(sources), len(self._names), int(depths.max()) + 1), bool)
        had_one[row, source, depths[row, node]] = True
        path, num_accepted = result.path.numpy(), np.zeros(len(sources), np.int32)
        row_of = {seq: row for row, seq in enumerate(batch.seqs)}
        for output in drafted:
            num_accepted[row_of[output.seq]] = output.num_accepted
        row, step = np.nonzero(np.arange(path.shape[1]) < num_accepted[:, None])
        accepted = sources[row, path[row, step]]
        return np.stack(
            [
                had_one.any(axis=2).sum(axis=0),
                np.bincount(source, minlength=len(self._names)),
                had_one.sum(axis=(0, 2)),
                np.bincount(accepted, minlength=len(self._names)),
            ],
            axis=1,
        )
