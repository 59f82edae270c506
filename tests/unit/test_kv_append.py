from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specfast import ops
from specfast import reference_attention as reference
from tests.unit.exact import raw, same_bytes, strided
from tests.unit.paged import untouched

HEADS, DIM, BLOCKS, SIZE = 3, 48, 5, 8
INF, NAN = float("inf"), float("nan")


@pytest.fixture
def cache(storage, rng) -> Tensor:
    """Full of numbers, so that a stray write shows."""
    return torch.randn(2, BLOCKS, SIZE, HEADS, DIM, generator=rng).to(storage[0])


def draw(rows: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    k, v = torch.randn(2, rows, HEADS, DIM, generator=rng)
    return k, v


def some_slots(rows: int, rng: torch.Generator) -> Tensor:
    return torch.randperm(BLOCKS * SIZE, generator=rng)[:rows]


def append(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    after, status = cache.clone(), torch.zeros(len(k), dtype=torch.int32)
    ops.kv_append(k, v, slots, after, status)
    return after, status


@pytest.mark.parametrize("rows", (0, 1, 7, 40))
def test_every_row_lands_in_its_slot(rows, cache, rng):
    (k, v), slots = draw(rows, rng), some_slots(rows, rng)
    after, status = append(cache, k, v, slots)
    expected, _ = reference.kv_append(k, v, slots, cache)
    assert raw(after) == raw(expected)
    assert not status.any()


def test_slot_minus_one_stores_nothing(cache, rng):
    (k, v), slots = draw(9, rng), some_slots(9, rng)
    k[4] = NAN
    slots[[0, 4, 8]] = -1
    after, status = append(cache, k, v, slots)
    assert raw(after) == raw(reference.kv_append(k, v, slots, cache)[0])
    assert not status.any()


@pytest.mark.parametrize("bad", (NAN, INF, -INF))
def test_what_is_not_finite_becomes_zero_and_is_reported(bad, cache, rng):
    (k, v), slots = draw(9, rng), some_slots(9, rng)
    k[2, 1, 17], v[5, 2, 47] = bad, bad
    after, status = append(cache, k, v, slots)
    assert status.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0]
    stored = after.flatten(1, 2)[:, slots]
    assert stored[0, 2, 1, 17] == 0 and stored[1, 5, 2, 47] == 0
    k[2, 1, 17], v[5, 2, 47] = 0.0, 0.0
    assert raw(after) == raw(append(cache, k, v, slots)[0])


def test_status_is_added_to(cache, rng):
    (k, v), slots = draw(3, rng), some_slots(3, rng)
    k[1, 0, 0] = NAN
    status = torch.tensor([2, 2, 0], dtype=torch.int32)
    ops.kv_append(k, v, slots, cache, status)
    assert status.tolist() == [2, 3, 0]


def test_a_number_that_bf16_rounds_to_infinity_is_not_stored():
    edge = torch.tensor([0x7F7F7FFF, 0x7F7F8000], dtype=torch.int32).view(torch.float32)
    k = torch.zeros(2, 1, 16)
    k[:, 0, 3] = edge
    cache = torch.ones(2, 1, 2, 1, 16, dtype=torch.bfloat16)
    after, status = append(cache, k, -k, torch.arange(2))
    assert status.tolist() == [0, 1]
    assert after[0, 0, :, 0, 3].tolist() == [torch.finfo(torch.bfloat16).max, 0.0]
    assert after[1, 0, :, 0, 3].tolist() == [torch.finfo(torch.bfloat16).min, 0.0]


def test_tiers_and_threads_give_the_same_bytes(cache, rng):
    (k, v), slots = draw(40, rng), some_slots(40, rng)
    k *= 10.0 ** torch.randint(-40, 38, k.shape, generator=rng)
    same_bytes(lambda: append(cache, k, v, slots)[0])


def test_strided_rows(cache, rng):
    (k, v), slots = draw(9, rng), some_slots(9, rng)
    apart = [strided(t.flatten(1)).unflatten(1, (HEADS, DIM)) for t in (k, v)]
    assert raw(append(cache, *apart, slots)[0]) == raw(append(cache, k, v, slots)[0])


def test_offsets_beyond_31_bits(rng):
    blocks = 2**31 // (SIZE * 2 * 256) + 2  # K alone has more than 2^31 elements
    cache = untouched(2, blocks, SIZE, 2, 256)
    k, v = torch.randn(2, 2, 2, 256, generator=rng)
    append_to, status = torch.tensor([blocks * SIZE - 1, 3]), torch.zeros(2, dtype=torch.int32)
    ops.kv_append(k, v, append_to, cache, status)
    stored = cache.flatten(1, 2)[:, append_to]
    assert raw(stored) == raw(torch.stack((k, v)).bfloat16())


def test_opcheck(cache, rng):
    (k, v), slots = draw(3, rng), some_slots(3, rng)
    status = torch.zeros(3, dtype=torch.int32)
    torch.library.opcheck(torch.ops.specfast.kv_append.default, (k, v, slots, cache, status))


KV = torch.zeros(3, HEADS, DIM)
WRONG = {
    "k: dtype must be": {"k": KV.bfloat16()},
    "k: shape must be": {"k": KV[:, :2]},
    "v: shape must be": {"v": KV[:2]},
    "v: rows must be dense": {"v": torch.zeros(3, DIM, HEADS).transpose(1, 2)},
    "slots: dtype must be": {"slots": torch.zeros(3, dtype=torch.int32)},
    "slots: row 1 wants slot 40 of a cache of 40": {"slots": torch.tensor([0, 40, 1])},
    "slots: row 2 wants slot -2": {"slots": torch.tensor([0, 1, -2])},
    "status: shape must be": {"status": torch.zeros(2, dtype=torch.int32)},
    "kv_cache: must be contiguous": {
        "kv_cache": torch.zeros(2, SIZE, BLOCKS, HEADS, DIM).transpose(1, 2)
    },
    "kv_cache: head_dim": {"kv_cache": torch.zeros(2, BLOCKS, SIZE, HEADS, 272)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_argument_is_named_and_nothing_is_stored(message):
    cache = torch.ones(2, BLOCKS, SIZE, HEADS, DIM)
    right = {"k": KV, "v": KV, "slots": torch.arange(3), "kv_cache": cache}
    right["status"] = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=message):
        ops.kv_append(**{**right, **WRONG[message]})
    assert (cache == 1).all()
