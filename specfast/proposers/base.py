"""What every way of drafting shares: the proposal, and the proposer's signature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from specfast.sequence import Batch, Sequence

MAX_NODES = 64


@dataclass(frozen=True)
class Proposal:
    """Draft trees of a batch; a parent array is the tree, a chain is -1, 0, 1, ...

    tokens [B, N] int32 (-1: padding), parents [B, N] int32 (-1: child of the root; parents[i] < i),
    lengths [B] int32, confidence [B, N] float32: the proposer's own estimate that a node, given its
    parent, is accepted. N <= 64; siblings are distinct.
    """

    tokens: Tensor
    parents: Tensor
    lengths: Tensor
    confidence: Tensor

    @classmethod
    def empty(cls, batch_size: int) -> Proposal:
        none = torch.empty(batch_size, 0, dtype=torch.int32)
        return cls(none, none, torch.zeros(batch_size, dtype=torch.int32), none.float())

    @classmethod
    def chains(
        cls, drafts: list[list[int]], confidence: list[list[float]] | None = None
    ) -> Proposal:
        """One chain a sequence; an empty list drafts nothing."""
        width = max(map(len, drafts), default=0)
        if width == 0:
            return cls.empty(len(drafts))
        tokens = np.full((len(drafts), width), -1, np.int32)
        estimate = np.zeros((len(drafts), width), np.float32)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft)] = draft
            estimate[row, : len(draft)] = confidence[row] if confidence else 1.0
        parents = np.broadcast_to(np.arange(-1, width - 1, dtype=np.int32), tokens.shape).copy()
        lengths = np.array([len(d) for d in drafts], np.int32)
        return cls(*map(torch.from_numpy, (tokens, parents, lengths, estimate)))

    @cached_property
    def num_nodes(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Needs:
    """What a proposer asks of the target's forward: outputs of these layers, for these rows."""

    layers: tuple[int, ...] = ()
    rows: str = "committed"
    scratch_slots: int = 0


class Proposer(Protocol):
    """Drafts; never mutates a Sequence, keeps its state by seq_id, may be wrong but not harmful."""

    needs: ClassVar[Needs]

    def propose(self, batch: Batch) -> Proposal:
        """Trees within batch.draft_limits; called once a step, not at all when gated off."""

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """Records what the step decided; a sequence that it finished is released right after."""

    def release(self, seq: Sequence) -> None:
        """Forgets a finished or cancelled sequence; safe for one never seen."""

    def reset(self) -> None:
        """Forgets everything, so that two benchmark arms start alike."""
