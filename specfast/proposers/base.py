"""What every way of drafting shares: the proposal, and the proposer's signature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from specfast.config import MAX_NODES

if TYPE_CHECKING:
    from specfast.sequence import Batch, Sequence


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

    def check(self, limits: np.ndarray, vocab_size: int) -> None:
        """ValueError for what is no proposal within limits [B, 2] (depth, nodes).

        Looked at before the target runs: a wrong parent would let a row see another's tokens.
        """
        self._check_layout(len(limits))
        tokens, parents, lengths = (t.numpy() for t in (self.tokens, self.parents, self.lengths))
        if ((lengths < 0) | (lengths > limits[:, 1]) | (lengths > tokens.shape[1])).any():
            raise ValueError("lengths must be 0 or more, within the nodes of draft_limits and N.")
        node = np.arange(tokens.shape[1])
        if ((tokens < 0) | (tokens >= vocab_size))[node < lengths[:, None]].any():
            raise ValueError(f"tokens must be ids of the target's vocabulary of {vocab_size}.")
        if ((parents < -1) | (parents >= node)).any():
            raise ValueError("parents must be -1 (the root) or an earlier node.")
        if (lengths > limits[:, 0]).any() and (self._depths() > limits[:, 0]).any():
            raise ValueError("a path is longer than the depth of draft_limits.")

    def _check_layout(self, batch_size: int) -> None:
        shape = (batch_size, self.tokens.shape[-1])
        if shape[1] > MAX_NODES:
            raise ValueError(f"at most {MAX_NODES} nodes a sequence, not {shape[1]}.")
        for name, t in vars(self).items():
            if not isinstance(t, Tensor):
                continue  # a cached property
            want = shape[:1] if name == "lengths" else shape
            dtype = torch.float32 if name == "confidence" else torch.int32
            if t.shape != want or t.dtype != dtype or not t.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {dtype} of shape {list(want)}, not {t.dtype} of "
                    f"shape {list(t.shape)}."
                )

    def _depths(self) -> np.ndarray:
        """The longest path [B], in nodes."""
        parents, every = self.parents.numpy(), np.arange(len(self.lengths))
        depth = np.zeros(parents.shape, np.int32)
        for node in range(parents.shape[1]):
            above = depth[every, parents[:, node]]
            depth[:, node] = np.where(parents[:, node] < 0, 1, above + 1)
        depth[np.arange(parents.shape[1]) >= self.lengths.numpy()[:, None]] = 0
        return depth.max(axis=1, initial=0)

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
