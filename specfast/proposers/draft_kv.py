"""How far a drafter's own KV cache holds each sequence's tokens."""

from __future__ import annotations

from specfast.kv_cache import KVCache
from specfast.sequence import Sequence


class DraftKV:
    """Lies in the target's block ids, and is valid for a sequence's tokens [0, end).

    `end` belongs to a kv_epoch, so that a sequence that lost its blocks starts over, with whatever
    its new blocks already hold for the drafter: those that a prefix hit brought and that this
    drafter had once filled.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self._ends: dict[int, tuple[int, int]] = {}  # seq_id -> kv_epoch, end

    def end(self, seq: Sequence, num_committed: int) -> int:
        """The first of the num_committed tokens that the drafter has yet to compute."""
        end = min(self._known_end(seq), num_committed)
        block_size = self.cache.block_size
        for index in range(end // block_size, num_committed // block_size):
            if not self.cache.is_written(seq.block_table[index]):
                break
            end = (index + 1) * block_size
        return end

    def extend(self, seq: Sequence, end: int) -> None:
        """Notes that tokens up to `end` were computed from where they were known on."""
        block_size = self.cache.block_size
        for index in range(self._known_end(seq) // block_size, end // block_size):
            self.cache.mark_written(seq.block_table[index])
        self._ends[seq.seq_id] = seq.kv_epoch, end

    def release(self, seq: Sequence) -> None:
        self._ends.pop(seq.seq_id, None)

    def reset(self) -> None:
        """Forgets every sequence; what blocks hold stays known until they are handed out again."""
        self._ends.clear()

    def _known_end(self, seq: Sequence) -> int:
        epoch, end = self._ends.get(seq.seq_id, (seq.kv_epoch, 0))
        return end if epoch == seq.kv_epoch else 0
