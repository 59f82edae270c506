"""A smaller model with the same tokenizer drafts: chains, or trees that grow where it is sure."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Seqs
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
from specfast.proposers.base import MIN_SURVIVAL, Needs, Proposal
from specfast.proposers.candidates import NUM_RANKED, Chooser, Drawing, ParentRows, Ranking
from specfast.proposers.draft_kv import DraftKV
from specfast.proposers.target import Target
from specfast.sequence import Batch

if TYPE_CHECKING:
    from specfast.sequence import Sequence

# A draft forward costs a 25th to an eighth of a step, the row that it adds a 25th more; of two such
# rows about one is accepted.
MIN_EXTENDED = 0.45

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
        self._draws = config.verification == "rejection"
        self._vocab_map = vocab_map(self.model, self._vocab_size)
        depth = config.num_speculative_tokens
        self._width, self._children = tree_shape(depth, config.max_tree_nodes, self._draws)
        self.needs = Needs(
            kv=kv_shape_of(self.model, target.config.kv_cache_dtype),
            scratch_slots=self._width * (depth - 1),
        )
        self._past_context = False

    def attach(self, cache: KVCache) -> None:
        self._kv = DraftKV(cache)
        self._runner = ModelRunner(self.model, cache)

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
        chooser = self._chooser(tails.seqs)
        logits, roots = first.logits, np.full(len(first.row_seq), -1, np.int32)
        parents = ParentRows(first.row_seq, roots, first.decided_positions)
        while len(parents):
            ids, confidence = chooser.children(logits[:, : self._vocab_size], parents)
            *arrays, row_seq, nodes = growth.grow(ids, confidence)
            rows = _rows(arrays, shared)
            parents = ParentRows(row_seq, nodes, rows.positions + 1)
            if len(parents):
                hidden = self.model.forward(rows, self._kv.cache.data)
                logits = self.model.logits(hidden, torch.arange(len(parents)))
        return _proposal(growth, len(tails), chooser)

    def _chooser(self, seqs: Seqs[Sequence]) -> Chooser:
        if self._draws:
            return Drawing(seqs, self._children, self._vocab_map)
        return Ranking(seqs, self._vocab_map)

    def _growth(self, tails: Batch, tables: np.ndarray) -> TreeGrowth:
        block_size = self._kv.cache.block_size
        reserved = [len(s.block_table) * block_size for s in tails.seqs]
        depths, nodes = np.ascontiguousarray(tails.draft_limits.T)
        return TreeGrowth(
            tails.node_base, depths, nodes, np.array(reserved, np.int32) - tails.node_base,
            tables, block_size, self._width, self._children, MIN_SURVIVAL, MIN_EXTENDED,
            self._draws,
        )  # fmt: skip


def vocab_map(draft: Model, vocab_size: int) -> Tensor | None:
    """The target ids of the draft's logits [Vd] int32; None where they are the same."""
    size = draft.config.head_size
    if draft.weights.d2t is None and size < vocab_size:
        return torch.arange(size, dtype=torch.int32)
    return draft.weights.d2t


def tree_shape(depth: int, nodes: int | None, draws: bool) -> tuple[int, int]:
    """Nodes that a forward extends, and candidates of each; one of one is a chain.

    As many candidates as a depth has of nodes on average, the best of which are kept; where all
    that are drawn are kept, as many as make that number together.
    """
    a_depth = -(-(nodes or depth) // depth)
    children = min(math.isqrt(a_depth - 1) + 1 if draws else a_depth, NUM_RANKED)
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


def _proposal(growth: TreeGrowth, batch_size: int, chooser: Chooser) -> Proposal:
    tokens, parents, lengths, confidence, rows = growth.trees()
    if not len(tokens):
        return Proposal.empty(batch_size)
    shaped = [a.reshape(batch_size, -1) for a in (tokens, parents, confidence, rows)]
    tokens, parents, confidence, rows = shaped
    arrays = map(torch.from_numpy, (tokens, parents, lengths, confidence))
    return Proposal(*arrays, **chooser.origin(rows))
