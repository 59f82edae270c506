"""Grows draft trees by forwards of a drafter with a KV cache, a depth of all sequences each."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specfast._host import TreeGrowth
from specfast.kv_cache import block_tables_of
from specfast.models.rows import Rows
from specfast.proposers.base import MIN_SURVIVAL, Proposal
from specfast.proposers.candidates import NUM_RANKED, Chooser, Drawing, ParentRows, Ranking
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import MAX_NODES, SpeculativeConfig

# A draft forward and the row that it adds cost a tenth of a step, which brings two tokens; behind
# such a node 0.7 tokens are accepted. Of 0.45, 0.3 and 0.2 the last was the fastest.
MIN_EXTENDED = 0.2

# One draft forward: rows, and of all rows with logits so far the one that proposed each [M] int64
# -> logits [M, Vd], valid until the next call.
Extend = Callable[[Rows, Tensor], Tensor]


@dataclass(frozen=True)
class Roots:
    """The first forward's rows that decide, one a sequence with a depth, in order.

    logits [R, Vd]; row_seq [R]: index into the batch; positions [R] int32: of the tokens that they
    foretell; lag: how far behind the token that it is fed a draft's slot lies.
    """

    logits: Tensor
    row_seq: np.ndarray
    positions: Tensor
    lag: int = 0


class Grower:
    """vocab_map [Vd] int32: the target's ids of the draft's logits; None where they are the same,
    up to vocab_size. choose: who chooses the nodes of one proposal for these sequences.
    """

    def __init__(
        self, config: SpeculativeConfig, vocab_size: int, vocab_map: Tensor | None
    ) -> None:
        self._draws = config.verification == "rejection"
        self.vocab_map = vocab_map
        self._vocab_size = vocab_size
        depth = config.num_speculative_tokens
        self._width, self._children = tree_shape(depth, config.max_tree_nodes, self._draws)
        self.scratch_slots = self._width * (depth - 1)
        self.choose: Callable[[Seqs[Sequence]], Chooser] = (
            self._drawing if self._draws else self._ranking
        )

    def grow(
        self, tails: Batch, roots: Roots, kv_start: Tensor, block_size: int, extend: Extend
    ) -> Proposal:
        """Ranks the rows of each forward, and feeds the nodes worth extending to the next one.

        tails: what the first forward was fed; its limits are those of the trees. kv_start [B]
        int32: the first slot that the drafter has.
        """
        tables = block_tables_of(tails.seqs)
        growth = self._growth(tails, tables, block_size)
        shared = [torch.from_numpy(tables), torch.from_numpy(tails.node_base), kv_start]
        chooser = self.choose(tails.seqs)
        logits, nodes = roots.logits, np.full(len(roots.row_seq), -1, np.int32)
        parents = ParentRows(roots.row_seq, nodes, roots.positions)
        while len(parents):
            ids, confidence = chooser.children(logits[:, : self._vocab_size], parents)
            *arrays, row_seq, nodes, proposers = growth.grow(ids, confidence)
            rows = _rows(arrays, shared)
            parents = ParentRows(row_seq, nodes, rows.positions + 1 + roots.lag)
            if len(parents):
                logits = extend(rows, torch.from_numpy(proposers))
        return _proposal(growth, len(tails), chooser)

    def _drawing(self, seqs: Seqs[Sequence]) -> Chooser:
        return Drawing(seqs, self._children, self.vocab_map)

    def _ranking(self, seqs: Seqs[Sequence]) -> Chooser:
        return Ranking(seqs, self.vocab_map)

    def _growth(self, tails: Batch, tables: np.ndarray, block_size: int) -> TreeGrowth:
        reserved = [len(s.block_table) * block_size for s in tails.seqs]
        depths, nodes = np.ascontiguousarray(tails.draft_limits.T)
        return TreeGrowth(
            tails.node_base, depths, nodes, np.array(reserved, np.int32) - tails.node_base,
            tables, block_size, self._width, self._children, MIN_SURVIVAL, MIN_EXTENDED,
            self._draws,
        )  # fmt: skip


def tree_shape(depth: int, nodes: int | None, draws: bool) -> tuple[int, int]:
    """Nodes that a forward extends, and candidates of each; one of one is a chain.

    As many candidates as a depth has of nodes on average, the best of which are kept; where all
    that are drawn are kept, as many as make that number together.
    """
    a_depth = -(-(nodes or depth) // depth)
    children = min(math.isqrt(a_depth - 1) + 1 if draws else a_depth, NUM_RANKED)
    return min(children, MAX_NODES // max(depth - 1, 1)), children


def rows_within(gaps: np.ndarray, max_rows: int) -> np.ndarray:
    """What each gap gets of a forward's rows [B] int32, the shortest first."""
    order = np.argsort(gaps, kind="stable")
    filled = np.minimum(np.cumsum(gaps[order]), max_rows)
    num_tokens = np.empty_like(gaps)
    num_tokens[order] = np.diff(filled, prepend=0)
    return num_tokens.astype(np.int32)


def _rows(arrays: list[np.ndarray], shared: list[Tensor]) -> Rows:
    token_ids, positions, slots, node_bits, qo_indptr = map(torch.from_numpy, arrays)
    status = torch.zeros_like(token_ids)  # a NaN costs drafts alone
    return Rows(token_ids, positions, slots, node_bits, status, qo_indptr, *shared)


def _proposal(growth: TreeGrowth, batch_size: int, chooser: Chooser) -> Proposal:
    tokens, parents, lengths, confidence, rows = growth.trees()
    if not len(tokens):
        return Proposal.empty(batch_size)
    shaped = [a.reshape(batch_size, -1) for a in (tokens, parents, confidence, rows)]
    tokens, parents, confidence, rows = shaped
    arrays = map(torch.from_numpy, (tokens, parents, lengths, confidence))
    return Proposal(*arrays, **chooser.origin(rows))
