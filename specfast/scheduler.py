"""Continuous batching: who computes what in a step, and what becomes of the step's result."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seqs
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from specfast.kv_cache import BlockManager, KVCache, block_tables_of
from specfast.outputs import StepOutput
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence, Status
from specfast.verifier import VerifyResult


@dataclass(frozen=True)
class SchedulerStats:
    """Events since the start; prefix queries: tokens of the sequences that were admitted;
    max_blocks: the most that all sequences held in a step, those for drafts included.
    """

    num_preempted: int = 0
    num_prefix_hit_tokens: int = 0
    num_prefix_query_tokens: int = 0
    num_chunk_splits: int = 0
    max_blocks: int = 0


class Planner(Protocol):
    """Who decides how far each sequence is drafted for."""

    def plan(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """-> [B, 2] int32: depth and nodes."""


class Scheduler:
    """Running sequences keep their order; the last one is preempted first, so the first always
    advances.
    """

    def __init__(
        self,
        blocks: BlockManager,
        caches: list[KVCache],
        max_num_seqs: int,
        max_num_rows: int,
        scratch_slots: int = 0,
    ) -> None:
        self.blocks = blocks
        self.caches = caches
        self.max_num_seqs = max_num_seqs
        self.max_num_rows = max_num_rows
        self.scratch_slots = scratch_slots
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._cancelled: list[Sequence] = []
        self._aborted: list[Sequence] = []  # ended in schedule(), reported by commit()
        self._num_preempted = self._num_chunk_splits = 0
        self._num_prefix_hit_tokens = self._num_prefix_query_tokens = self._max_blocks = 0

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            self._num_preempted,
            self._num_prefix_hit_tokens,
            self._num_prefix_query_tokens,
            self._num_chunk_splits,
            self._max_blocks,
        )

    @property
    def unfinished(self) -> list[Sequence]:
        return [*self.running, *self.waiting]

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def cancel(self, seq: Sequence) -> None:
        """Takes effect at the next schedule(), never within a step."""
        self._cancelled.append(seq)

    def schedule(self, planner: Planner) -> Batch:
        """Cancels, gives each running sequence its tail, admits what fits, then reserves room for
        drafts.
        """
        self._drop_cancelled()
        preempted = self._num_preempted
        scheduled = self._schedule_running()
        if self._num_preempted == preempted:  # whoever had to go would only be let in to go again
            self._admit(scheduled)
        seqs = tuple(scheduled)
        starts = np.array([s.num_computed_tokens for s in seqs], np.int32)
        num_tokens = np.array([scheduled[s] for s in seqs], np.int32)
        limits = self._reserve_drafts(seqs, starts + num_tokens, planner.plan(seqs))
        self._note_blocks(seqs)
        return Batch(seqs, starts, num_tokens, limits)

    def commit(self, batch: Batch, proposal: Proposal, result: VerifyResult) -> list[StepOutput]:
        """Appends what was decided, cuts at a stop, keeps the accepted KV and returns the rest."""
        outputs = [StepOutput(seq, (), 0, 0, 0, seq.finish) for seq in self._aborted]
        self._aborted.clear()
        num_kept = np.zeros(len(batch), np.int32)
        for row in range(len(batch)):
            output = self._commit_tokens(batch, row, proposal, result)
            num_kept[row] = max(0, len(output.token_ids) - 1)
            outputs.append(output)
        self._compact(batch, result, num_kept)
        for row, seq in enumerate(batch.seqs):
            self._commit_kv(seq, int(batch.node_base[row] + num_kept[row]))
        self.running = [s for s in self.running if s.finish is None]
        return [o for o in outputs if o.token_ids or o.finish]

    def _drop_cancelled(self) -> None:
        for seq in self._cancelled:
            if seq.finish is None:
                seq.end("abort")
                self._retire(seq)
                self._aborted.append(seq)
        if self._cancelled:
            self.running = [s for s in self.running if s.finish is None]
            self.waiting = deque(s for s in self.waiting if s.finish is None)
            self._cancelled.clear()

    def _schedule_running(self) -> dict[Sequence, int]:
        """-> tokens a running sequence, in order; whoever finds no block preempts the last one."""
        scheduled: dict[Sequence, int] = {}
        rows = self.max_num_rows
        for seq in list(self.running):
            if seq.status is not Status.RUNNING:
                continue  # preempted by one before it
            num_tokens = min(seq.num_uncomputed_tokens, rows)
            if num_tokens and self._reserve_or_preempt(seq, num_tokens):
                scheduled[seq] = num_tokens
                rows -= num_tokens
        return scheduled

    def _reserve_or_preempt(self, seq: Sequence, num_tokens: int) -> bool:
        while not self.blocks.reserve(seq, seq.num_computed_tokens + num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.blocks.free(seq)
        seq.status = Status.WAITING
        self.waiting.appendleft(seq)
        self._num_preempted += 1

    def _admit(self, scheduled: dict[Sequence, int]) -> None:
        rows = self.max_num_rows - sum(scheduled.values())
        while self.waiting and rows and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            hit = self.blocks.take_prefix(seq)
            num_tokens = min(seq.num_uncomputed_tokens, rows)
            if not self.blocks.reserve(seq, seq.num_computed_tokens + num_tokens):
                self.blocks.free(seq)
                return
            self._note_prefix(seq, hit)
            seq.status = Status.RUNNING
            self.running.append(self.waiting.popleft())
            scheduled[seq] = num_tokens
            rows -= num_tokens

    def _note_prefix(self, seq: Sequence, num_hit_tokens: int) -> None:
        self._num_prefix_hit_tokens += num_hit_tokens
        self._num_prefix_query_tokens += len(seq.token_ids)
        seq.kv_use.num_prefix_hit_tokens += num_hit_tokens
        seq.kv_use.num_prefix_query_tokens += len(seq.token_ids)

    def _note_blocks(self, seqs: tuple[Sequence, ...]) -> None:
        """Call when a step has all that it needs: commit() gives back what drafts left unused."""
        held = self.blocks.num_blocks - self.blocks.num_free_blocks
        self._max_blocks = max(self._max_blocks, held)
        for seq in seqs:
            seq.kv_use.max_blocks = max(seq.kv_use.max_blocks, len(seq.block_table))

    def _reserve_drafts(
        self, seqs: tuple[Sequence, ...], ends: np.ndarray, limits: np.ndarray
    ) -> np.ndarray:
        """Trims the limits to the rows and spare blocks there are; a tail that stops short drafts
        nothing.
        """
        rows = self.max_num_rows - sum(int(e) - s.num_computed_tokens for s, e in zip(seqs, ends))
        for row, seq in enumerate(seqs):
            end = int(ends[row])
            short = end < len(seq.token_ids)
            self._num_chunk_splits += short
            nodes = 0 if short else min(int(limits[row, 1]), rows)
            if nodes:
                slots = end + max(nodes, self.scratch_slots)
                nodes = max(0, min(nodes, self.blocks.reserve_spare(seq, slots) - end))
            limits[row] = min(int(limits[row, 0]), nodes), nodes
            rows -= nodes
        return limits

    def _commit_tokens(
        self, batch: Batch, row: int, proposal: Proposal, result: VerifyResult
    ) -> StepOutput:
        seq, planned = batch.seqs[row], int(batch.draft_limits[row, 0])
        drafted, depth = int(proposal.lengths[row]), int(proposal.depths[row])
        emitted, num_accepted = [], 0
        if result.errors[row]:
            seq.end("error", result.errors[row])
        else:
            for token_id, is_draft in result.decided(row, proposal):
                emitted.append(token_id)
                num_accepted += is_draft
                if seq.append(token_id, is_draft):
                    break
        return StepOutput(seq, tuple(emitted), drafted, depth, num_accepted, seq.finish, planned)

    def _compact(self, batch: Batch, result: VerifyResult, num_kept: np.ndarray) -> None:
        """Moves kept nodes only where some path is not already dense."""
        width = int(num_kept.max(initial=0))
        dense = np.arange(width, dtype=np.int32)
        kept = dense < num_kept[:, None]
        if not (kept & (result.path.numpy()[:, :width] != dense)).any():
            return
        tables = torch.from_numpy(block_tables_of(batch.seqs))
        node_base = torch.from_numpy(batch.node_base)
        for cache in self.caches:
            cache.compact(tables, node_base, result.path, torch.from_numpy(num_kept))

    def _commit_kv(self, seq: Sequence, num_computed: int) -> None:
        seq.num_computed_tokens = min(num_computed, len(seq.token_ids) - 1)
        self.blocks.truncate(seq, seq.num_computed_tokens)
        if seq.finish is None or seq.finish.reason != "error":
            self.blocks.publish(seq)
        if seq.finish:
            self._retire(seq)

    def _retire(self, seq: Sequence) -> None:
        seq.status = Status.FINISHED
        self.blocks.free(seq)
