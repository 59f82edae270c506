"""Drafting with a head that reads the target's hidden states: what EAGLE and MTP do alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from specfast.kv_cache import KVCache
from specfast.models.feature_draft import FeatureDraft
from specfast.models.rows import Rows
from specfast.models.runner import Forward, Layout, lay_out
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.draft_kv import DraftKV
from specfast.proposers.features import FeatureLog
from specfast.proposers.growing import Grower, Roots, rows_within
from specfast.proposers.target import Target
from specfast.proposers.track_record import FitCheck
from specfast.sequence import Batch
from specfast.speculative_config import SpeculativeConfig
from specfast.verifier import VerifyResult

if TYPE_CHECKING:
    from specfast.sequence import Sequence

_LAG = 1  # slot i is fed token i + 1


class FeatureProposer:
    """The first forward of a step takes in what was committed since, with the target's own hidden
    states, so that drafts leave no trace in the head's KV; each further one extends drafts by the
    head's own output. What the head missed (a prefix hit, a stretch without drafts) stays missing:
    its attention begins behind it.
    """

    num_kept = 0  # of the slots taken in, how many are fed again at the next step

    def __init__(self, config: SpeculativeConfig, target: Target, draft: FeatureDraft) -> None:
        self.head = draft
        self.grower = Grower(config, target.model.config.vocab_size, draft.d2t)
        self.needs = Needs(
            layers=draft.layers,
            kv=draft.kv_shape(target.config.kv_cache_dtype),
            scratch_slots=self.grower.scratch_slots,
        )
        self._max_rows = target.config.max_num_batched_tokens
        self._log = FeatureLog()
        self._fit = FitCheck(f"The head {config.model or target.config.model}")

    def attach(self, cache: KVCache) -> None:
        self._kv = DraftKV(cache)

    @torch.inference_mode()
    def propose(self, batch: Batch) -> Proposal:
        """Trees within the limits; none for a sequence that has yet to catch up."""
        tails = self._tails(batch)
        proposal = self._drafted(tails) if tails.num_tokens.any() else Proposal.empty(len(batch))
        self._fit.proposed(proposal)
        return proposal

    def _drafted(self, tails: Batch) -> Proposal:
        layout = lay_out(
            tails, _tokens_after(tails), tails.draft_limits[:, 0] > 0,
            Proposal.empty(len(tails)), self._kv.cache.block_size,
        )  # fmt: skip
        kv_start = self._starts(tails)
        layout = replace(layout, rows=replace(layout.rows, kv_start=kv_start))
        hidden = self._taken(tails)
        self._note(tails, kv_start)
        return self.draft(tails, layout, hidden)

    def draft(self, tails: Batch, layout: Layout, hidden: Tensor) -> Proposal:
        """Takes in the slots with their hidden states [M, hidden], and drafts behind them."""
        cache, block_size = self._kv.cache.data, self._kv.cache.block_size
        states, normed = self.head.forward(hidden, layout.rows, cache)
        recursion = _Recursion(self.head, cache, states[layout.logit_rows])
        logits = self.head.logits(normed[layout.logit_rows])
        roots = Roots(logits, layout.row_seq, layout.decided_positions + _LAG, _LAG)
        return self.grower.grow(tails, roots, layout.rows.kv_start, block_size, recursion)

    @torch.inference_mode()
    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """Keeps the hidden states of what was committed until the next proposal."""
        self._log.observe(batch, cast(Forward, forward), cast(VerifyResult, result))
        self._fit.observe(proposal, cast(VerifyResult, result))

    def release(self, seq: Sequence) -> None:
        self._kv.release(seq)
        self._log.release(seq)

    def reset(self) -> None:
        self._kv.reset()
        self._log.reset()

    def _tails(self, batch: Batch) -> Batch:
        """The slots to fill first, and how far to draft behind them: the shortest stretches come
        first, and only one that is filled to its end can be drafted behind.
        """
        stretches = np.array([self._log.stretch(s) for s in batch.seqs], np.int32)
        starts, ends = np.ascontiguousarray(stretches.T)
        drafts = batch.draft_limits[:, 0] > 0
        gaps = np.where(drafts | ~batch.decides, ends - starts, 0)
        num_tokens = rows_within(gaps, self._max_rows)
        lengths = np.array([len(s.token_ids) for s in batch.seqs], np.int32)
        limits = batch.draft_limits.copy()
        limits[(num_tokens == 0) | (starts + num_tokens != lengths - _LAG)] = 0
        return Batch(batch.seqs, starts, num_tokens, limits)

    def _starts(self, tails: Batch) -> Tensor:
        """kv_start [B] int32."""
        starts = [self._kv.start(s, n) for s, n in zip(tails.seqs, tails.starts.tolist())]
        return torch.tensor(starts, dtype=torch.int32)

    def _taken(self, tails: Batch) -> Tensor:
        """The fused hidden states of the tails' slots [M, hidden]."""
        counts = zip(tails.seqs, tails.num_tokens.tolist())
        taken = [self._log.take(s, n, self.num_kept) for s, n in counts if n]
        return self.head.fuse(torch.cat(taken))

    def _note(self, tails: Batch, kv_start: Tensor) -> None:
        ranges = zip(tails.seqs, kv_start.tolist(), tails.node_base.tolist(), tails.num_tokens)
        for seq, start, end, count in ranges:
            if count:
                self._kv.extend(seq, end, start)


class _Recursion:
    """The head fed with its own output. states [R, hidden]: of all rows with logits so far."""

    def __init__(self, draft: FeatureDraft, kv_cache: Tensor, states: Tensor) -> None:
        self._draft, self._kv_cache, self._states = draft, kv_cache, states

    def __call__(self, rows: Rows, parents: Tensor) -> Tensor:
        hidden = self._states.index_select(0, parents)
        hidden, normed = self._draft.forward(hidden, rows, self._kv_cache)
        self._states = torch.cat([self._states, hidden])
        return self._draft.logits(normed)


def _tokens_after(tails: Batch) -> np.ndarray:
    """The token that each slot is fed, int32."""
    ends = tails.node_base.tolist()
    fed = (
        s.token_ids[a + _LAG : b + _LAG] for s, a, b in zip(tails.seqs, tails.starts.tolist(), ends)
    )
    return np.fromiter(chain.from_iterable(fed), np.int32)
