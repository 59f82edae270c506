"""Lays a batch and its draft trees out as rows, runs the target once, and returns what verification
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast._host import lay_out_rows
from specfast.kv_cache import KVCache, block_tables_of
from specfast.models.decoder import Model
from specfast.models.rows import Rows
from specfast.proposers.base import NO_NEEDS, Needs, Proposal
from specfast.sequence import Batch


@dataclass(frozen=True)
class TopK:
    """token_ids [R, k] int32 (-1: there are no more), logits [R, k] float32, best first."""

    token_ids: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Layout:
    """A pass' rows, and which of them decide: fields as in Forward; logit_rows [R] int64."""

    rows: Rows
    row_base: Tensor
    logit_rows: Tensor
    row_seq: np.ndarray
    decided_positions: Tensor


def lay_out(
    batch: Batch, tokens: np.ndarray, decides: np.ndarray, proposal: Proposal, block_size: int
) -> Layout:
    """Rows for every tail and node. tokens int32: the tails', one after the other; decides [B]
    bool: whose last tail row, and nodes, have logits.
    """
    tables = block_tables_of(batch.seqs)
    (
        token_ids, positions, slots, node_bits, qo_indptr,
        row_base, logit_rows, row_seq, decided_positions,
    ) = lay_out_rows(
        tokens, batch.starts, batch.num_tokens, decides, proposal.lengths.numpy(),
        proposal.tokens.numpy(), proposal.parents.numpy(), tables, block_size,
    )  # fmt: skip
    rows = Rows(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        node_bits=torch.from_numpy(node_bits),
        status=torch.zeros(len(token_ids), dtype=torch.int32),
        qo_indptr=torch.from_numpy(qo_indptr),
        block_tables=torch.from_numpy(tables),
        node_base=torch.from_numpy(batch.node_base),
        kv_start=torch.zeros(len(batch), dtype=torch.int32),
    )
    indices = torch.from_numpy(row_base), torch.from_numpy(logit_rows)
    return Layout(rows, *indices, row_seq, torch.from_numpy(decided_positions))


@dataclass(frozen=True)
class Forward:
    """One target pass. Logit rows: for each sequence that decides, its root (last token), then its
    nodes.

    logits [R, V] float32; row_base [B] int32: the root's row, -1 where the tail stops short;
    row_seq [R]: index into the batch; decided_positions [R] int32: position of the token each row
    decides; row_status [R], tail_status [B] int32: status bits of those rows, and of each whole
    tail; top: the likeliest tokens of each logit row, if the proposer needs them.

    All rows: each sequence's tail, then its nodes. features [M, layers hidden] float32: the hidden
    states that the proposer needs; first_row [B + 1] int32: where each sequence's rows begin.
    """

    logits: Tensor
    top: TopK | None
    row_base: Tensor
    row_seq: np.ndarray
    decided_positions: Tensor
    row_status: Tensor
    tail_status: Tensor
    features: Tensor
    first_row: np.ndarray


class ModelRunner:
    """A model with its cache. needs: what forwards carry beside the logits, where it is of use."""

    def __init__(self, model: Model, cache: KVCache, needs: Needs = NO_NEEDS) -> None:
        self.model = model
        self.cache = cache
        self._needs = needs

    @torch.inference_mode()
    def forward(self, batch: Batch, proposal: Proposal) -> Forward:
        """Computes every tail and every draft node of the batch in one pass."""
        layout = lay_out(batch, _tail_tokens(batch), batch.decides, proposal, self.cache.block_size)
        rows, needs = layout.rows, self._needs if batch.speculates else NO_NEEDS
        hidden, features = self.model.forward_with_features(rows, self.cache.data, needs.layers)
        logits = self.model.logits(hidden, layout.logit_rows)
        first_row = rows.qo_indptr.numpy()
        return Forward(
            logits=logits,
            top=_top(logits, needs.top_k),
            row_base=layout.row_base,
            row_seq=layout.row_seq,
            decided_positions=layout.decided_positions,
            row_status=rows.status[layout.logit_rows],
            tail_status=_tail_status(rows.status.numpy(), first_row, batch.num_tokens),
            features=features,
            first_row=first_row,
        )


def _top(logits: Tensor, count: int) -> TopK | None:
    """The likeliest ids of each row, without noise."""
    if not count:
        return None
    num_rows, vocab_size = logits.shape
    k = min(count, vocab_size)
    top = TopK(torch.empty(num_rows, k, dtype=torch.int32), torch.empty(num_rows, k))
    zeros = torch.zeros(num_rows, dtype=torch.int64)
    ops.rank_candidates(logits, zeros.float(), zeros, zeros.int(), top.token_ids, top.logits)
    return top


def _tail_tokens(batch: Batch) -> np.ndarray:
    """The tails' tokens, one after the other, int32."""
    ends = batch.node_base.tolist()
    tails = (s.token_ids[a:b] for s, a, b in zip(batch.seqs, batch.starts.tolist(), ends))
    return np.fromiter(chain.from_iterable(tails), np.int32)


def _tail_status(status: np.ndarray, indptr: np.ndarray, tails: np.ndarray) -> Tensor:
    """The or over each sequence's tail rows [B]; a rejected node's status must not be visible."""
    out = np.zeros(len(tails), np.int32)
    if status.any():
        for b, count in enumerate(tails):
            out[b] = np.bitwise_or.reduce(status[indptr[b] : indptr[b] + count])
    return torch.from_numpy(out)
