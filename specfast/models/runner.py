"""Lays a batch and its draft trees out as rows, runs the target once, and returns what verification
needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specfast.kv_cache import KVCache, block_tables_of
from specfast.models.decoder import Model
from specfast.models.rows import Rows
from specfast.proposers.base import Proposal
from specfast.sequence import Batch


@dataclass(frozen=True)
class Forward:
    """One target pass. Logit rows: for each sequence that decides, its root (last token), then its
    nodes.

    logits [R, V] float32; row_base [B] int32: the root's row, -1 where the tail stops short;
    row_seq [R]: index into the batch; decided_positions [R] int32: position of the token each row
    decides; row_status [R], tail_status [B] int32: status bits of those rows, and of each whole
    tail.
    """

    logits: Tensor
    row_base: Tensor
    row_seq: np.ndarray
    decided_positions: Tensor
    row_status: Tensor
    tail_status: Tensor


@dataclass(frozen=True)
class TreeLayout:
    """depth [B, N] int32 (a root's child: 0) and bits [B, N] int64 (ancestor-or-self) of draft
    nodes.
    """

    depth: np.ndarray
    bits: np.ndarray

    @classmethod
    def of(cls, parents: np.ndarray) -> TreeLayout:
        depth = np.zeros(parents.shape, np.int32)
        bits = np.zeros(parents.shape, np.uint64)
        every = np.arange(len(parents))
        for node in range(parents.shape[1]):
            parent = parents[:, node]
            depth[:, node] = np.where(parent >= 0, depth[every, parent] + 1, 0)
            ancestors = np.where(parent >= 0, bits[every, parent], np.uint64(0))
            bits[:, node] = ancestors | np.uint64(1 << node)
        return cls(depth, bits.view(np.int64))


@dataclass(frozen=True)
class RowLayout:
    """Which row is whose: sequence b has rows [indptr[b], indptr[b + 1]), its tail first, then its
    nodes.

    seq, offset [M]: the row's sequence and its place among that sequence's rows.
    """

    indptr: np.ndarray
    seq: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, tails: np.ndarray, nodes: np.ndarray) -> RowLayout:
        counts = tails + nodes
        indptr = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=indptr[1:])
        seq = np.repeat(np.arange(len(counts)), counts)
        return cls(indptr, seq, np.arange(len(seq)) - indptr[seq])


class ModelRunner:
    """The target model with its cache."""

    def __init__(self, model: Model, cache: KVCache, block_size: int) -> None:
        self.model = model
        self.cache = cache
        self.block_size = block_size

    @torch.inference_mode()
    def forward(self, batch: Batch, proposal: Proposal) -> Forward:
        """Computes every tail and every draft node of the batch in one pass."""
        tails, nodes = batch.num_tokens, proposal.lengths.numpy()
        layout = RowLayout.of(tails, nodes)
        rows = self._rows(batch, proposal, layout)
        hidden = self.model.forward(rows, self.cache.data)

        logit_counts = np.where(batch.decides, nodes + 1, 0)
        logits = RowLayout.of(np.zeros_like(logit_counts), logit_counts)
        roots = layout.indptr[:-1] + tails - 1
        index = torch.from_numpy(roots[logits.seq] + logits.offset)
        row_base = np.where(batch.decides, logits.indptr[:-1], -1).astype(np.int32)
        return Forward(
            logits=self.model.logits(hidden, index),
            row_base=torch.from_numpy(row_base),
            row_seq=logits.seq,
            decided_positions=rows.positions[index] + 1,
            row_status=rows.status[index],
            tail_status=_tail_status(rows.status.numpy(), layout.indptr, tails),
        )

    def _rows(self, batch: Batch, proposal: Proposal, layout: RowLayout) -> Rows:
        tables = block_tables_of(batch.seqs)
        seq = layout.seq
        slot = batch.starts[seq] + layout.offset
        positions = slot.astype(np.int32)
        node_bits = np.zeros(len(seq), np.int64)
        token_ids = _tail_tokens(batch, layout)
        if proposal.num_nodes:
            is_node = layout.offset >= batch.num_tokens[seq]
            owner = seq[is_node]
            node = layout.offset[is_node] - batch.num_tokens[owner]
            tree = TreeLayout.of(proposal.parents.numpy())
            positions[is_node] = batch.node_base[owner] + tree.depth[owner, node]
            node_bits[is_node] = tree.bits[owner, node]
            token_ids[is_node] = proposal.tokens.numpy()[owner, node]
        blocks = tables[seq, slot // self.block_size].astype(np.int64)
        return Rows(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(blocks * self.block_size + slot % self.block_size),
            node_bits=torch.from_numpy(node_bits),
            status=torch.zeros(len(seq), dtype=torch.int32),
            qo_indptr=torch.from_numpy(layout.indptr),
            block_tables=torch.from_numpy(tables),
            node_base=torch.from_numpy(batch.node_base),
            kv_start=torch.zeros(len(batch), dtype=torch.int32),
        )


def _tail_tokens(batch: Batch, layout: RowLayout) -> np.ndarray:
    """[M] int32: the tails' tokens, 0 in node rows."""
    token_ids = np.zeros(len(layout.seq), np.int32)
    for seq, first, start, count in zip(batch.seqs, layout.indptr, batch.starts, batch.num_tokens):
        token_ids[first : first + count] = seq.token_ids[start : start + count]
    return token_ids


def _tail_status(status: np.ndarray, indptr: np.ndarray, tails: np.ndarray) -> Tensor:
    """The or over each sequence's tail rows [B]; a rejected node's status must not be visible."""
    out = np.zeros(len(tails), np.int32)
    if status.any():
        for b, count in enumerate(tails):
            out[b] = np.bitwise_or.reduce(status[indptr[b] : indptr[b] + count])
    return torch.from_numpy(out)
