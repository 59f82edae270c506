"""A smaller model with the same tokenizer drafts: chains, or trees that grow where it is sure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from specfast._host import TreeGrowth
from specfast.config import MAX_NODES, SpeculativeConfig
from specfast.kv_cache import KVCache, block_tables_of, kv_shape_of
from specfast.models.decoder import Model
from specfast.models.drafts import load_draft_for
from specfast.models.rows import Rows
from specfast.models.runner import Forward, ModelRunner
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.candidates import NUM_RANKED, Laws, rank
from specfast.proposers.draft_kv import DraftKV
from specfast.proposers.target import Target
from specfast.sequence import Batch

if TYPE_CHECKING:
    from specfast.sequence import Sequence

# A row more costs a step about a 25th, and a step brings two tokens: below this it doesn't pay.
MIN_SURVIVAL = 0.08
# A draft forward costs about an eighth of a step, and two of three nodes that it adds are taken.
MIN_EXTENDED = 0.35

logger = logging.getLogger(__name__)


class DraftModelProposer:
    """Drafts by forwards of its own model, all sequences together.

    The first forward of a step feeds every token that was committed since, so that drafts leave no
    trace in the draft's KV; each further one feeds the nodes that are to be extended. A sequence
    whose gap is longer than the step's rows catches up first, without drafts.
    """

    options: ClassVar[frozenset[str]] = frozenset({"model", "draft_dtype", "max_tree_nodes"})

    def __init__(
        self, config: SpeculativeConfig, target: Target, draft: Model | None = None
    ) -> None:
        """draft: a model at hand, of the target's tokenizer, instead of config.model."""
        self.model = draft or load_draft_for(target.model, target.tokenizer, config)
        self._vocab_size = target.model.config.vocab_size
        self._context = self.model.config.max_position_embeddings
        self._max_rows = target.config.max_num_batched_tokens
        self._d2t = self.model.weights.d2t
        depth = config.num_speculative_tokens
        self._width, self._children = tree_shape(depth, config.max_tree_nodes)
        self.needs = Needs(
            kv=kv_shape_of(self.model, target.config.kv_cache_dtype),
            scratch_slots=self._width * (depth - 1),
        )
        self._past_context = False

    def attach(self, cache: KVCache) -> None:
        self._kv = DraftKV(cache)
        self._runner = ModelRunner(self.model, cache, cache.block_size)

    @torch.inference_mode()
    def propose(self, batch: Batch) -> Proposal:
        """Trees within the limits; none for a sequence that has yet to catch up, or is too long."""
        tails = self._tails(batch)
        if not tails.num_tokens.any():
            return Proposal.empty(len(batch))
        forward = self._runner.forward(tails, Proposal.empty(len(batch)))
        for seq, end, fed in zip(batch.seqs, tails.node_base.tolist(), tails.num_tokens.tolist()):
            if fed:
                self._kv.extend(seq, end)
        return self._grown(tails, forward)

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """Nothing to record: what was committed is fed at the next proposal."""

    def release(self, seq: Sequence) -> None:
        self._kv.release(seq)

    def reset(self) -> None:
        self._kv.reset()

    def _tails(self, batch: Batch) -> Batch:
        """What to feed first, and how far to draft behind it: the shortest gaps come first."""
        committed = batch.starts.tolist()
        starts = np.array([self._kv.end(s, n) for s, n in zip(batch.seqs, committed)], np.int32)
        lengths = np.array([len(s.token_ids) for s in batch.seqs], np.int32)
        speculates = [s.params.speculation.enabled for s in batch.seqs]
        fits = self._fits(lengths)
        is_fed = fits & np.where(batch.decides, batch.draft_limits[:, 0] > 0, speculates)
        gaps = np.where(is_fed, batch.node_base - starts, 0)
        num_tokens = _within(gaps, self._max_rows)
        depths = np.minimum(batch.draft_limits[:, 0], self._context - lengths + 1)
        limits = np.stack([depths, batch.draft_limits[:, 1]], 1)
        limits[starts + num_tokens < lengths] = 0
        return Batch(batch.seqs, starts, num_tokens, limits)

    def _fits(self, lengths: np.ndarray) -> np.ndarray:
        fits = lengths <= self._context
        if not (self._past_context or fits.all()):
            self._past_context = True
            logger.warning(
                "The draft model's context is %d tokens: a sequence that outgrows it goes on "
                "without drafts.",
                self._context,
            )
        return fits

    def _grown(self, tails: Batch, first: Forward) -> Proposal:
        """Ranks the rows of each forward, and feeds the nodes worth extending to the next one."""
        tables, bases = block_tables_of(tails.seqs), tails.node_base
        growth = self._growth(tails, tables)
        shared = [torch.from_numpy(a) for a in (tables, bases, np.zeros_like(bases))]
        laws = Laws.of(tails.seqs)
        logits, row_seq, decided = first.logits, first.row_seq, first.decided_positions
        while len(row_seq):
            ids, confidence = rank(
                logits[:, : self._vocab_size], laws.rows(row_seq), decided, self._d2t
            )
            *arrays, row_seq = growth.grow(ids, confidence)
            if len(row_seq):
                rows = _rows(arrays, shared)
                hidden = self.model.forward(rows, self._kv.cache.data)
                logits = self.model.logits(hidden, torch.arange(len(row_seq)))
                decided = rows.positions + 1
        return _proposal(growth, len(tails))

    def _growth(self, tails: Batch, tables: np.ndarray) -> TreeGrowth:
        block_size = self._kv.cache.block_size
        reserved = [len(s.block_table) * block_size for s in tails.seqs]
        depths, nodes = np.ascontiguousarray(tails.draft_limits.T)
        return TreeGrowth(
            tails.node_base, depths, nodes, np.array(reserved, np.int32) - tails.node_base,
            tables, block_size, self._width, self._children, MIN_SURVIVAL, MIN_EXTENDED,
        )  # fmt: skip


def tree_shape(depth: int, nodes: int | None) -> tuple[int, int]:
    """Nodes that a forward extends, and candidates of each: as many as would fill the tree evenly.

    One of one is a chain.
    """
    children = min(-(-(nodes or depth) // depth), NUM_RANKED)
    return min(children, MAX_NODES // max(depth - 1, 1)), children


def _within(gaps: np.ndarray, max_rows: int) -> np.ndarray:
    """What each gap gets of the rows [B], the shortest first."""
    order = np.argsort(gaps, kind="stable")
    filled = np.minimum(np.cumsum(gaps[order]), max_rows)
    num_tokens = np.empty_like(gaps)
    num_tokens[order] = np.diff(filled, prepend=0)
    return num_tokens.astype(np.int32)


def _rows(arrays: list[np.ndarray], shared: list[Tensor]) -> Rows:
    token_ids, positions, slots, node_bits, qo_indptr = map(torch.from_numpy, arrays)
    status = torch.zeros_like(token_ids)  # a NaN costs drafts alone
    return Rows(token_ids, positions, slots, node_bits, status, qo_indptr, *shared)


def _proposal(growth: TreeGrowth, batch_size: int) -> Proposal:
    tokens, parents, lengths, confidence = growth.trees()
    if not len(tokens):
        return Proposal.empty(batch_size)
    tokens, parents, confidence = (a.reshape(batch_size, -1) for a in (tokens, parents, confidence))
    return Proposal(*map(torch.from_numpy, (tokens, parents, lengths, confidence)))
