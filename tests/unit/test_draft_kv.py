"""A drafter's range in shared blocks, against what was really computed into every slot."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from specfast.kv_cache import KVCache
from specfast.kv_shape import KVShape
from specfast.proposers.draft_kv import DraftKV

SIZE, BLOCKS = 4, 12


@dataclass
class Seq:
    seq_id: int
    kv_epoch: int = 0
    block_table: list[int] = field(default_factory=list)


class Pool:
    """Blocks handed out and shared; computed: the slots of each that a drafter filled since."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.generations = [0] * BLOCKS
        self.computed = [set() for _ in range(BLOCKS)]
        shape = KVShape(1, 1, 16, torch.float32)
        self.kv = DraftKV(KVCache(shape, BLOCKS, SIZE, self.generations))
        self.seqs = [Seq(0), Seq(1)]

    def admit(self, seq: Seq, other: Seq) -> None:
        """Anew, some whole blocks of another sequence first."""
        num_shared = self.rnd.randint(0, len(other.block_table))
        shared = other.block_table[:num_shared]
        free = [b for b in range(BLOCKS) if b not in other.block_table]
        seq.block_table = shared + self.rnd.sample(free, 5 - num_shared)
        for block in seq.block_table[num_shared:]:
            self.generations[block] += 1
            self.computed[block].clear()
        seq.kv_epoch += 1

    def fill(self, seq: Seq, first: int, end: int) -> None:
        for token in range(first, end):
            self.computed[seq.block_table[token // SIZE]].add(token % SIZE)

    def has(self, seq: Seq, first: int, end: int) -> bool:
        return all(t % SIZE in self.computed[seq.block_table[t // SIZE]] for t in range(first, end))


@pytest.mark.parametrize("seed", range(40))
def test_attention_sees_all_that_was_computed_and_nothing_else(seed):
    """Where features went missing the range begins behind the gap, at whole blocks at most."""
    pool = Pool(seed)
    begun = {}  # seq_id -> epoch, start, end: what it was told, and fed since
    for _ in range(120):
        seq, other = pool.rnd.sample(pool.seqs, 2)
        if not seq.block_table or pool.rnd.random() < 0.15:
            pool.admit(seq, other)
            if pool.rnd.random() < 0.3:
                pool.kv.release(seq)
                begun.pop(seq.seq_id, None)
            continue
        epoch, start, end = begun.get(seq.seq_id, (None, 0, 0))
        known = epoch == seq.kv_epoch
        begin, stop = start, end  # fed again, or on
        if not known or pool.rnd.random() < 0.3:
            begin, stop = (end if known else 0), 5 * SIZE
        first = min(pool.rnd.randint(begin, stop), 5 * SIZE - 1)
        found = pool.kv.start(seq, first)
        assert pool.has(seq, found, first)
        if known and start < first <= end:
            assert found == start
        elif found and found % SIZE == 0:
            assert not pool.kv.cache.is_written(seq.block_table[found // SIZE - 1])
        else:
            assert found in (0, first)
        end = pool.rnd.randint(first + 1, 5 * SIZE)
        pool.fill(seq, first, end)
        pool.kv.extend(seq, end, found)
        begun[seq.seq_id] = seq.kv_epoch, found, end
        for token in range(SIZE * -(-found // SIZE), SIZE * (end // SIZE), SIZE):
            assert pool.kv.cache.is_written(seq.block_table[token // SIZE])
        for block in range(BLOCKS):
            assert not pool.kv.cache.is_written(block) or len(pool.computed[block]) == SIZE


@pytest.mark.parametrize("seed", range(20))
def test_a_drafter_that_computes_every_token_has_those_before_its_end(seed):
    pool = Pool(seed)
    for _ in range(120):
        seq, other = pool.rnd.sample(pool.seqs, 2)
        if not seq.block_table or pool.rnd.random() < 0.2:
            pool.admit(seq, other)
            continue
        committed = pool.rnd.randint(1, 5 * SIZE)
        end = pool.kv.end(seq, committed)
        assert end <= committed and pool.has(seq, 0, end)
        if end % SIZE == 0 and end + SIZE <= committed:
            assert not pool.kv.cache.is_written(seq.block_table[end // SIZE])
        computed = pool.rnd.randint(end, committed)
        pool.fill(seq, end, computed)
        pool.kv.extend(seq, computed)


def test_released_and_reset_sequences_start_over():
    pool = Pool(0)
    for forget in (lambda: pool.kv.release(pool.seqs[0]), pool.kv.reset):
        pool.admit(*pool.seqs)
        pool.kv.extend(pool.seqs[0], 6)
        assert pool.kv.start(pool.seqs[0], 5) == 0
        forget()
        assert pool.kv.start(pool.seqs[0], 5) == 5
