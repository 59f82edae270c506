"""How far a drafter's own KV cache holds each sequence's tokens."""

from __future__ import annotations

from specfast.kv_cache import KVCache
from specfast.sequence import Sequence


class DraftKV:
    """Lies in the target's block ids, and is valid for a sequence's tokens [start, end).

    The range belongs to a kv_epoch, so that a sequence that lost its blocks starts over, with
    whatever its new blocks already hold for the drafter: those that a prefix hit brought and that
    this drafter had once filled.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self._ranges: dict[int, tuple[int, int, int]] = {}  # seq_id -> kv_epoch, start, end

    def end(self, seq: Sequence, num_committed: int) -> int:
        """The first of the num_committed tokens that a drafter that starts at the first token has
        yet to compute.
        """
        start, end = self._known_range(seq)
        assert start == 0
        end = min(end, num_committed)
        block_size = self.cache.block_size
        for index in range(end // block_size, num_committed // block_size):
            if not self.cache.is_written(seq.block_table[index]):
                break
            end = (index + 1) * block_size
        return end

    def start(self, seq: Sequence, first: int) -> int:
        """Where the range begins that a drafter can extend from token `first` on: what lies between
        them it will never compute, so a gap before `first` is left behind for good.
        """
        start, end = self._known_range(seq)
        if start < first <= end:
            return start
        block_size, start = self.cache.block_size, first
        while start and start % block_size == 0:
            if not self.cache.is_written(seq.block_table[start // block_size - 1]):
                break
            start -= block_size
        return start

    def extend(self, seq: Sequence, end: int, start: int = 0) -> None:
        """Notes that tokens [start, end) are computed now."""
        block_size = self.cache.block_size
        _, known_end = self._known_range(seq)
        first = max(-(-start // block_size), known_end // block_size)  # the first whole block
        for index in range(first, end // block_size):
            self.cache.mark_written(seq.block_table[index])
        self._ranges[seq.seq_id] = seq.kv_epoch, start, end

    def release(self, seq: Sequence) -> None:
        self._ranges.pop(seq.seq_id, None)

    def reset(self) -> None:
        """Forgets every sequence; what blocks hold stays known until they are handed out again."""
        self._ranges.clear()

    def _known_range(self, seq: Sequence) -> tuple[int, int]:
        epoch, start, end = self._ranges.get(seq.seq_id, (seq.kv_epoch, 0, 0))
        return (start, end) if epoch == seq.kv_epoch else (0, 0)
