"""A smaller model with the same tokenizer drafts: chains, or trees that grow where it is sure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from specfast.kv_cache import KVCache, kv_shape_of
from specfast.models.decoder import Model
from specfast.models.drafts import load_draft_for
from specfast.models.rows import Rows
from specfast.models.runner import Forward, ModelRunner
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.draft_kv import DraftKV
from specfast.proposers.growing import Grower, Roots, rows_within
from specfast.proposers.target import Target
from specfast.sequence import Batch
from specfast.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from specfast.sequence import Sequence

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
        vocab_size = target.model.config.vocab_size
        self._context = self.model.config.max_position_embeddings
        self._max_rows = target.config.max_num_batched_tokens
        self.grower = Grower(config, vocab_size, vocab_map(self.model, vocab_size))
        self.needs = Needs(
            kv=kv_shape_of(self.model, target.config.kv_cache_dtype),
            scratch_slots=self.grower.scratch_slots,
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
        num_tokens = rows_within(gaps, self._max_rows)
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
        roots = Roots(first.logits, first.row_seq, first.decided_positions)
        from_start = torch.zeros(len(tails), dtype=torch.int32)
        block_size = self._kv.cache.block_size
        return self.grower.grow(tails, roots, from_start, block_size, self._extend)

    def _extend(self, rows: Rows, parents: Tensor) -> Tensor:
        hidden = self.model.forward(rows, self._kv.cache.data)
        return self.model.logits(hidden, torch.arange(len(rows.token_ids)))


def vocab_map(draft: Model, vocab_size: int) -> Tensor | None:
    """The target ids of the draft's logits [Vd] int32; None where they are the same."""
    size = draft.config.head_size
    if draft.weights.d2t is None and size < vocab_size:
        return torch.arange(size, dtype=torch.int32)
    return draft.weights.d2t
