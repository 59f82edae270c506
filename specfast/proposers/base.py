"""What every way of drafting shares: the proposal, and the proposer's signature."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from specfast._host import kept_nodes
from specfast.kv_shape import KVShape
from specfast.proposers.draft_tree import DraftTree
from specfast.proposers.laws import check_column, check_in_memory, check_laws, joined_laws
from specfast.speculative_config import MAX_NODES

if TYPE_CHECKING:
    from specfast.sequence import Batch, Sequence

# Of a draft and all before it. A row more costs a step about a 25th, and a step brings two tokens:
# what is reached less often doesn't pay.
MIN_SURVIVAL = 0.08


@dataclass(frozen=True)
class Proposal:
    """Draft trees of a batch; a parent array is the tree, a chain is -1, 0, 1, ...

    tokens [B, N] int32 (-1: padding), parents [B, N] int32 (-1: child of the root; parents[i] < i),
    lengths [B] int32, confidence [B, N] float32: the proposer's own estimate that a node, given its
    parent, is accepted. N <= 64; siblings are distinct. sources [B, N] int32: where several draft,
    which of the proposer's source_names drafted the node.

    Under rejection a node is a point mass, unless law_row [B, N] int32 says which row of draft_laws
    [laws, Vd] float32 (logits at temperature 1; vocab_map [Vd] int32: target ids) it was drawn
    from, less its earlier siblings' tokens; -1: a point mass. Whether a drawn node is submitted
    must not depend on what was drawn.
    """

    tokens: Tensor
    parents: Tensor
    lengths: Tensor
    confidence: Tensor
    draft_laws: Tensor | None = None
    law_row: Tensor | None = None
    vocab_map: Tensor | None = None
    sources: Tensor | None = None

    @classmethod
    def empty(cls, batch_size: int) -> Proposal:
        none = torch.empty(batch_size, 0, dtype=torch.int32)
        return cls(none, none, torch.zeros(batch_size, dtype=torch.int32), none.float())

    @classmethod
    def chains(
        cls, drafts: list[list[int]], confidence: list[list[float]] | None = None
    ) -> Proposal:
        """One chain a sequence; an empty list drafts nothing."""
        estimates = confidence or [[1.0] * len(d) for d in drafts]
        return cls.trees(
            [DraftTree(d, list(range(-1, len(d) - 1)), e) for d, e in zip(drafts, estimates)]
        )

    @classmethod
    def trees(cls, drafts: Seqs[DraftTree]) -> Proposal:
        """One tree a sequence; an empty one drafts nothing."""
        width = max(map(len, drafts), default=0)
        if width == 0:
            return cls.empty(len(drafts))
        tokens, parents = np.full((2, len(drafts), width), -1, np.int32)
        confidence = np.zeros((len(drafts), width), np.float32)
        for row, draft in enumerate(drafts):
            n = len(draft)
            tokens[row, :n], parents[row, :n] = draft.tokens, draft.parents
            confidence[row, :n] = draft.confidence
        lengths = np.fromiter(map(len, drafts), np.int32, len(drafts))
        proposal = cls(*map(torch.from_numpy, (tokens, parents, lengths, confidence)))
        return replace(proposal, sources=_sources(drafts, width))

    @classmethod
    def joined(cls, parts: Seqs[Proposal]) -> Proposal:
        """Proposals of parts of a batch, one after the other."""
        width = max(part.tokens.shape[1] for part in parts)

        def column(name: str, padding: int) -> Tensor:
            columns = [getattr(part, name) for part in parts]
            padded = [pad(c, (0, width - c.shape[1]), value=padding) for c in columns]
            return torch.cat(padded)

        lengths = torch.cat([part.lengths for part in parts])
        columns = column("tokens", -1), column("parents", -1), lengths, column("confidence", 0)
        sources = None
        if any(part.sources is not None for part in parts):
            parts = [part if part.sources is not None else part.by_source(0) for part in parts]
            sources = column("sources", 0)
        return cls(*columns, *joined_laws(parts, width), sources)

    def kept(self, keep: np.ndarray) -> Proposal:
        """Only the nodes in keep [B, N] bool, which holds the parent of each. They are no draws:
        dropping one for what it is would bias what rejection emits.
        """
        assert self.draft_laws is None
        if np.count_nonzero(keep) == self.num_nodes:
            return self
        tokens, parents, confidence = self.tokens.numpy(), self.parents.numpy(), self.confidence
        sources = None if self.sources is None else self.sources.numpy()
        *columns, sources = kept_nodes(keep, tokens, parents, confidence.numpy(), sources)
        kept = Proposal(*map(torch.from_numpy, columns))
        return kept if sources is None else replace(kept, sources=torch.from_numpy(sources))

    def only(self, rows: np.ndarray) -> Proposal:
        """Those of some sequences, in this order."""
        index = torch.from_numpy(rows)
        return replace(
            self,
            tokens=self.tokens[index],
            parents=self.parents[index],
            lengths=self.lengths[index],
            confidence=self.confidence[index],
            law_row=None if self.law_row is None else self.law_row[index],
            sources=None if self.sources is None else self.sources[index],
        )

    def by_source(self, number: int) -> Proposal:
        """The same, with all its nodes by one of the proposer's sources."""
        return replace(self, sources=torch.full_like(self.tokens, number))

    def to_trees(self) -> list[DraftTree]:
        """One tree a sequence, without its padding."""
        columns = (self.tokens, self.parents, self.confidence)
        rows = zip(self.lengths.tolist(), *(c.tolist() for c in columns))
        return [DraftTree(t[:n], p[:n], c[:n]) for n, t, p, c in rows]

    def check(self, limits: np.ndarray, vocab_size: int, num_sources: int = 1) -> None:
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
        if (lengths > limits[:, 0]).any() and (self.depths > limits[:, 0]).any():
            raise ValueError("a path is longer than the depth of draft_limits.")
        if self.sources is not None:
            check_column(self.sources, "sources", torch.int32, self.tokens.shape)
            if ((self.sources < 0) | (self.sources >= num_sources)).any():
                raise ValueError(f"sources must lie in [0, {num_sources}): see source_names.")
        check_laws(self, vocab_size)

    def _check_layout(self, batch_size: int) -> None:
        columns = {n: getattr(self, n) for n in ("tokens", "parents", "lengths", "confidence")}
        for name, t in columns.items():
            check_in_memory(t, name)
        shape = (batch_size, self.tokens.shape[-1])
        if shape[1] > MAX_NODES:
            raise ValueError(f"at most {MAX_NODES} nodes a sequence, not {shape[1]}.")
        for name, t in columns.items():
            want = shape[:1] if name == "lengths" else shape
            dtype = torch.float32 if name == "confidence" else torch.int32
            if t.shape != want or t.dtype != dtype or not t.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {dtype} of shape {list(want)}, not {t.dtype} of "
                    f"shape {list(t.shape)}."
                )

    @cached_property
    def are_chains(self) -> bool:
        """No node has two children."""
        nodes = np.arange(self.tokens.shape[1])
        is_padding = nodes >= self.lengths.numpy()[:, None]
        return bool(((self.parents.numpy() == nodes - 1) | is_padding).all())

    @cached_property
    def node_depths(self) -> np.ndarray:
        """[B, N] int32: drafts before each node on its path; 0 for padding too."""
        parents, every = self.parents.numpy(), np.arange(len(self.lengths))
        nodes = np.arange(parents.shape[1], dtype=np.int32)
        is_padding = nodes >= self.lengths.numpy()[:, None]
        if self.are_chains:
            return np.where(is_padding, np.int32(0), nodes)
        depth = np.zeros(parents.shape, np.int32)
        for node in nodes:
            above = parents[:, node]
            depth[:, node] = np.where(above < 0, 0, depth[every, above] + 1)
        depth[is_padding] = 0
        return depth

    @cached_property
    def depths(self) -> np.ndarray:
        """The longest path [B] int32, in nodes."""
        longest = self.node_depths.max(axis=1, initial=0) + 1
        return np.where(self.lengths.numpy() > 0, longest, 0).astype(np.int32)

    @cached_property
    def num_nodes(self) -> int:
        return int(self.lengths.numpy().sum())


@dataclass(frozen=True)
class Needs:
    """What a proposer asks of the engine.

    layers: the target's hidden states, numbered as Model.forward_with_features does; top_k: so many
    likeliest ids of each logit row; scratch_slots: KV slots past the drafts' own; kv: a cache over
    the same block ids.
    """

    layers: tuple[int, ...] = ()
    top_k: int = 0
    scratch_slots: int = 0
    kv: KVShape | None = None

    def takes_in(self, batch: Batch) -> bool:
        """Whether there is something for its KV cache in a step that drafts nothing: a prefill."""
        return self.kv is not None and batch.speculates and not batch.decides.all()


NO_NEEDS = Needs()


def _sources(drafts: Seqs[DraftTree], width: int) -> Tensor | None:
    """[B, width] int32 of trees that say who drafted their nodes."""
    if all(draft.sources is None for draft in drafts):
        return None
    padded = [(d.sources or [0] * len(d)) + [0] * (width - len(d)) for d in drafts]
    return torch.tensor(padded, dtype=torch.int32)


class Proposer(Protocol):
    """Drafts; never mutates a Sequence, keeps its state by seq_id, may be wrong but not harmful.

    One that drafts from several sources names them in `source_names`, which Proposal.sources index.
    """

    @property
    def needs(self) -> Needs: ...

    def propose(self, batch: Batch) -> Proposal:
        """Trees within batch.draft_limits; called once a step, not at all when gated off."""

    def observe(self, batch: Batch, proposal: Proposal, forward: Any, result: Any) -> None:
        """Records what the step decided; a sequence that it finished is released right after."""

    def release(self, seq: Sequence) -> None:
        """Forgets a finished or cancelled sequence; safe for one never seen."""

    def reset(self) -> None:
        """Forgets everything, so that two benchmark arms start alike."""


def source_names(proposer: Proposer | None, method: str) -> tuple[str, ...]:
    """Who drafts, by number: the method itself unless the proposer names several."""
    return getattr(proposer, "source_names", (method,))
