"""The target's hidden states of committed tokens, on their way to a drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specfast.models.runner import Forward
from specfast.sequence import Batch, Sequence
from specfast.verifier import VerifyResult

MAX_ROWS = 4096  # kept a sequence: a drafter that is asked for nothing falls behind no further


def committed_rows(
    batch: Batch, forward: Forward, result: VerifyResult
) -> Iterator[tuple[Sequence, int, np.ndarray]]:
    """Of each sequence that goes on drafting: the position of the first token whose KV the step
    left behind, and the rows of forward.features of it and those after it. To be called once the
    step is committed, as in observe.
    """
    path = result.path.numpy()
    for b, seq in enumerate(batch.seqs):
        if seq.finish or not seq.params.speculation.enabled:
            continue
        base = int(batch.node_base[b])
        nodes = path[b, : max(0, seq.num_computed_tokens - base)]
        first, num_tail = int(forward.first_row[b]), int(batch.num_tokens[b])
        tail = np.arange(first, first + num_tail)
        yield seq, int(batch.starts[b]), np.concatenate([tail, first + num_tail + nodes])


@dataclass
class _Pending:
    """Of tokens [first, end) of one sequence, in one epoch of its KV."""

    kv_epoch: int
    first: int
    end: int
    parts: list[Tensor] = field(default_factory=list)


class FeatureLog:
    """What a drafter has yet to take in; a stretch without a gap a sequence, the newest."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def observe(self, batch: Batch, forward: Forward, result: VerifyResult) -> None:
        for seq, first, rows in committed_rows(batch, forward, result):
            features = forward.features.index_select(0, torch.from_numpy(rows))
            pending = self._pending.get(seq.seq_id)
            if not pending or (pending.kv_epoch, pending.end) != (seq.kv_epoch, first):
                pending = self._pending[seq.seq_id] = _Pending(seq.kv_epoch, first, first)
            pending.parts.append(features)
            pending.end += len(features)
            while pending.end - pending.first - len(pending.parts[0]) >= MAX_ROWS:
                pending.first += len(pending.parts.pop(0))

    def stretch(self, seq: Sequence) -> tuple[int, int]:
        """[first, end) of what there is; empty if nothing."""
        pending = self._pending.get(seq.seq_id)
        if pending is None or pending.kv_epoch != seq.kv_epoch:
            return 0, 0
        return pending.first, pending.end

    def take(self, seq: Sequence, count: int, num_kept: int = 0) -> Tensor:
        """Gives the first `count` rows of the stretch and removes all but the last num_kept of
        them.
        """
        pending = self._pending[seq.seq_id]
        rows = torch.cat(pending.parts) if len(pending.parts) > 1 else pending.parts[0]
        removed = max(0, count - num_kept)
        pending.first += removed
        pending.parts = [rows[removed:]]
        return rows[:count]

    def release(self, seq: Sequence) -> None:
        self._pending.pop(seq.seq_id, None)

    def reset(self) -> None:
        self._pending.clear()
