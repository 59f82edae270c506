"""BlockManager under every order of events that a scheduler can produce."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specfast.kv_cache import BlockManager, KVCache, block_tables_of
from specfast.kv_shape import KVShape
from specfast.sampling_params import SamplingParams
from specfast.sequence import Sequence, StopRule
from tests.unit.toy_model import ToyDetokenizer


def make_sequence(tokens: list[int], seq_id: int = 0) -> Sequence:
    params = SamplingParams(ignore_eos=True)
    return Sequence(seq_id, tokens, params, 0, StopRule(frozenset(), 10_000), ToyDetokenizer())


def compute(manager: BlockManager, seq: Sequence, num_tokens: int) -> bool:
    """What a step does to a sequence: reserve, compute, publish."""
    if not manager.reserve(seq, num_tokens):
        return False
    seq.num_computed_tokens = num_tokens
    manager.publish(seq)
    return True


class BlockMachine(RuleBasedStateMachine):
    """A model of the contents: what each held block was filled with; a hit must find just that."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(num_blocks=12, block_size=4, enable_prefix_caching=True)
        self.live: list[Sequence] = []
        self.written: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end
        self.seq_ids = 0

    @rule(shared=st.integers(0, 12), own=st.integers(1, 12), letter=st.integers(0, 2))
    def admit(self, shared: int, own: int, letter: int) -> None:
        seq = make_sequence([7] * shared + [letter] * own, self.seq_ids)
        self.seq_ids += 1
        hit = self.manager.take_prefix(seq)
        assert hit % 4 == 0 and hit < len(seq.token_ids)
        for i, block in enumerate(seq.block_table):
            assert self.written[block] == tuple(seq.token_ids[: (i + 1) * 4]), (
                "a hit on other tokens"
            )
        if self._fill(seq, len(seq.token_ids) - 1):
            self.live.append(seq)
        else:
            self.manager.free(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6), spare=st.integers(0, 9))
    def decode(self, data: st.DataObject, count: int, spare: int) -> None:
        seq = data.draw(st.sampled_from(self.live))
        slots = self.manager.reserve_spare(seq, seq.num_computed_tokens + 1 + spare)
        assert slots <= seq.num_computed_tokens + 1 + spare
        seq.token_ids.extend([data.draw(st.integers(0, 2))] * count)
        if not self._fill(seq, seq.num_computed_tokens + count):
            del seq.token_ids[-count:]
        self.manager.truncate(seq, seq.num_computed_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish_or_preempt(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.live))
        epoch = seq.kv_epoch
        self.manager.free(seq)
        assert not seq.block_table and not seq.num_computed_tokens and seq.kv_epoch > epoch
        self.live.remove(seq)

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()

    @invariant()
    def intact(self) -> None:
        self.manager.check_integrity(self.live)
        for seq in self.live:
            for i in range(seq.num_computed_tokens // 4):
                held = self.written[seq.block_table[i]]
                assert held == tuple(seq.token_ids[: (i + 1) * 4]), (
                    "somebody wrote into a held block"
                )

    def _fill(self, seq: Sequence, num_tokens: int) -> bool:
        before = seq.num_computed_tokens
        if not compute(self.manager, seq, num_tokens):
            return False
        for i in range(before // 4, num_tokens // 4):
            self.written[seq.block_table[i]] = tuple(seq.token_ids[: (i + 1) * 4])
        return True


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_hits_are_whole_blocks_within_all_but_the_last_token():
    manager = BlockManager(8, 4, True)
    first = make_sequence(list(range(8)))
    compute(manager, first, 7)
    assert manager.take_prefix(make_sequence(list(range(8)), 1)) == 4
    assert manager.take_prefix(make_sequence(list(range(4)), 2)) == 0
    assert manager.take_prefix(make_sequence(list(range(5)), 3)) == 4
    assert manager.take_prefix(make_sequence([9, *range(1, 8)], 4)) == 0


def test_same_block_after_another_prefix_is_no_hit():
    manager = BlockManager(8, 4, True)
    compute(manager, make_sequence([1] * 4 + [2] * 5), 8)
    assert manager.take_prefix(make_sequence([2] * 5, 1)) == 0


def test_cached_blocks_are_evicted_least_recently_used_first_and_tails_before_heads():
    manager = BlockManager(4, 4, True)
    old, new = make_sequence([1] * 9), make_sequence([2] * 9, 1)
    compute(manager, old, 8)
    manager.free(old)
    compute(manager, new, 8)
    manager.free(new)
    taker = make_sequence([3] * 4, 2)
    assert manager.reserve(taker, 4)
    assert manager.take_prefix(make_sequence([1] * 9, 3)) == 4  # its tail went, its head stays
    assert manager.take_prefix(make_sequence([2] * 9, 4)) == 8


def test_drafts_never_evict():
    manager = BlockManager(3, 4, True)
    done = make_sequence([1] * 9)
    compute(manager, done, 8)
    manager.free(done)
    seq = make_sequence([2, 2], 1)
    assert manager.reserve(seq, 4)
    assert manager.reserve_spare(seq, 12) == 4  # the two cached blocks stay
    assert manager.take_prefix(make_sequence([1] * 9, 2)) == 8


def test_reserve_is_all_or_nothing():
    manager = BlockManager(2, 4, True)
    seq = make_sequence([1])
    assert not manager.reserve(seq, 9)
    assert not seq.block_table and manager.num_free_blocks == 2


def test_without_prefix_caching_nothing_is_found():
    manager = BlockManager(4, 4, False)
    seq = make_sequence([1] * 9)
    compute(manager, seq, 8)
    assert manager.take_prefix(make_sequence([1] * 9, 1)) == 0
    manager.free(seq)
    manager.check_integrity([])


def _lose_a_block(manager: BlockManager, seq: Sequence) -> None:
    seq.block_table.pop()


def _share_a_tail(manager: BlockManager, seq: Sequence) -> None:
    other = make_sequence([1], 1)
    other.block_table = seq.block_table[-1:]
    manager._references[seq.block_table[-1]] += 1


def _publish_too_much(manager: BlockManager, seq: Sequence) -> None:
    seq.num_computed_tokens += 4
    seq.token_ids += [1] * 4
    manager.publish(seq)
    seq.num_computed_tokens -= 4


def _free_twice(manager: BlockManager, seq: Sequence) -> None:
    manager._blank.append(manager._blank[0])


@pytest.mark.parametrize("bug", [_lose_a_block, _share_a_tail, _publish_too_much, _free_twice])
def test_check_integrity_sees(bug):
    manager = BlockManager(8, 4, True)
    seq = make_sequence([1] * 8)
    compute(manager, seq, 7)
    assert manager.reserve(seq, 12)
    manager.check_integrity([seq])
    bug(manager, seq)
    with pytest.raises(AssertionError):
        manager.check_integrity([seq])


def test_block_tables_are_padded_with_an_existing_block():
    a, b = make_sequence([1]), make_sequence([1], 1)
    a.block_table, b.block_table = [3, 1], [2]
    assert block_tables_of([a, b]).tolist() == [[3, 1], [2, 0]]


def test_a_mark_counts_until_its_block_is_handed_out_anew():
    manager = BlockManager(3, 4, True)
    cache = KVCache(KVShape(1, 1, 16, torch.float32), 3, 4, manager.generations)
    first, same = make_sequence([1] * 9), make_sequence([1] * 9, 1)
    compute(manager, first, 8)
    assert not any(map(cache.is_written, first.block_table))
    cache.mark_written(first.block_table[0])
    assert manager.take_prefix(same) == 8
    assert [cache.is_written(b) for b in same.block_table] == [True, False]
    manager.free(first), manager.free(same)
    assert manager.take_prefix(same) == 8, "freed, but not handed out"
    assert cache.is_written(same.block_table[0])
    manager.free(same)
    other = make_sequence([2] * 13, 2)
    compute(manager, other, 12)  # takes every block
    assert not any(map(cache.is_written, other.block_table))


def test_a_cache_that_no_memory_holds_is_refused():
    with pytest.raises(ValueError, match="kv_cache_memory"):
        KVCache(KVShape(32, 8, 128, torch.float32), 2**31 - 1, 2**20)
