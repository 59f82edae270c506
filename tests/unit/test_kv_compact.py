from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specfast import ops
from specfast import reference_attention as reference
from tests.unit.exact import raw
from tests.unit.paged import untouched

LAYERS, HEADS, DIM = 3, 2, 16


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def draw(block_size: int, tables: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    shape = (LAYERS, 2, int(tables.max()) + 2, block_size, HEADS, DIM)
    return torch.randn(*shape, generator=rng).to(dtype)


def padded(paths: list[list[int]], width: int) -> Tensor:
    return torch.tensor([p + [-1] * (width - len(p)) for p in paths], dtype=torch.int32)


def compact(cache: Tensor, tables: Tensor, base: Tensor, paths: list[list[int]]) -> Tensor:
    """The cache after the moves, checked against the reference."""
    after, path = cache.clone(), padded(paths, 64)
    count = ints(*map(len, paths))
    ops.kv_compact(after, tables, base, path, count)
    assert raw(after) == raw(reference.kv_compact(cache, tables, base, path, count))
    return after


def test_a_path_moves_to_the_front_in_every_layer(storage, rng):
    tables = ints(4, 0, 2)[None]
    cache = draw(4, tables, storage[0], rng)
    after = compact(cache, tables, ints(3), [[1, 2, 5]])
    logical = [t[:, :, tables[0].long()].flatten(2, 3) for t in (cache, after)]
    assert raw(logical[1][:, :, 3:6]) == raw(logical[0][:, :, [4, 5, 8]])
    assert raw(logical[1][:, :, :3]) == raw(logical[0][:, :, :3])
    assert raw(logical[1][:, :, 6:]) == raw(logical[0][:, :, 6:])


@given(data=st.data())
def test_any_paths(data):
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    size, batch = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    width = -(-(30 + 64) // size)
    tables = torch.randperm(batch * width, generator=rng).int().view(batch, width)
    paths = [sorted(data.draw(st.sets(st.integers(0, 63)))) for _ in range(batch)]
    base = ints(*(data.draw(st.integers(0, 30)) for _ in range(batch)))
    dtype = data.draw(st.sampled_from((torch.float32, torch.bfloat16)))
    compact(draw(size, tables, dtype, rng), tables, base, paths)


@pytest.mark.parametrize("paths", ([[], []], [[0, 1, 2], [0]]))
def test_a_chain_and_an_empty_path_move_nothing(paths, storage, rng):
    tables = torch.arange(8, dtype=torch.int32).view(2, 4)
    cache = draw(8, tables, storage[0], rng)
    assert raw(compact(cache, tables, ints(5, 9), paths)) == raw(cache)


def test_no_accepted_node_needs_no_path_and_no_blocks(storage, rng):
    cache = draw(4, ints(3), storage[0], rng)
    before = cache.clone()
    for path in (torch.full((2, 3), -1, dtype=torch.int32), torch.zeros(2, 0, dtype=torch.int32)):
        ops.kv_compact(
            cache, torch.full((2, 2), -1, dtype=torch.int32), ints(99, 0), path, ints(0, 0)
        )
    assert raw(cache) == raw(before)


@pytest.mark.parametrize("threads", (1, 2, 3, 4))
def test_threads_do_not_show(threads, storage, rng):
    torch.set_num_threads(threads)
    tables = torch.randperm(5 * 12, generator=rng).int().view(5, 12)
    cache = draw(8, tables, storage[0], rng)
    compact(cache, tables, ints(3, 9, 0, 31, 8), [[2 * j + 1 for j in range(30)]] * 5)


def test_not_a_number_moves_like_any_other(storage, rng):
    tables = torch.arange(4, dtype=torch.int32)[None]
    cache = draw(4, tables, storage[0], rng)
    cache[0, 0, 1, 2, 1, 5] = float("nan")  # logical slot 6
    after = compact(cache, tables, ints(4), [[2]])
    assert after[0, 0, 1, 0, 1, 5].isnan() and after.isnan().sum() == 2


def test_offsets_beyond_31_bits(rng):
    blocks = 2**31 // (8 * 2 * 256 * 2) + 2  # one layer's K has more than 2^31 bytes
    cache = untouched(2, 2, blocks, 8, 2, 256)
    tables = ints(blocks - 2, blocks - 1)[None]
    tokens = torch.randn(2, 2, 2, 8, 2, 256, generator=rng).bfloat16()
    cache[:, :, -2:] = tokens
    ops.kv_compact(cache, tables, ints(2), padded([[3, 9]], 2), ints(2))
    want = tokens.clone()
    want[:, :, 0, 2:4] = torch.stack((tokens[:, :, 0, 5], tokens[:, :, 1, 3]), 2)
    assert raw(cache[:, :, -2:]) == raw(want)


def test_opcheck(storage, rng):
    tables = ints(4, 0, 2)[None]
    args = (draw(4, tables, storage[0], rng), tables, ints(3), padded([[1, 2]], 4), ints(2))
    torch.library.opcheck(torch.ops.specfast.kv_compact.default, args)


WRONG = {
    "cache: dtype must be": {"cache": torch.zeros(1, 2, 3, 4, 1, 16, dtype=torch.float16)},
    "cache: shape must be": {"cache": torch.zeros(2, 3, 4, 1, 16)},
    "cache: must be contiguous": {"cache": torch.zeros(1, 2, 4, 3, 1, 16).transpose(2, 3)},
    "block_tables: entry 1 of sequence 0 is block 3": {"block_tables": ints(0, 3)[None]},
    "block_tables: sequence 0 uses positions 2 to 8": {"block_tables": ints(0)[None]},
    "block_tables: sequence 0 uses positions -1": {"node_base": ints(-1)},
    "node_base: shape must be": {"node_base": ints(0, 0)},
    r"path: must increase, with path\[b, j\] >= j; sequence 0 has 0 at 1": {
        "path": ints(1, 0)[None]
    },
    "sequence 0 has 5 at 1": {"path": ints(5, 5)[None]},
    "num_accepted: must be 0 to 2": {"num_accepted": ints(3)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_argument_is_named_and_nothing_moves(message):
    cache = torch.arange(384.0).view(1, 2, 3, 4, 1, 16)
    right = {"cache": cache, "block_tables": ints(0, 1)[None], "node_base": ints(2)}
    right |= {"path": ints(2, 5)[None], "num_accepted": ints(2)}
    with pytest.raises(RuntimeError, match=message):
        ops.kv_compact(**{**right, **WRONG[message]})
    assert raw(cache) == raw(torch.arange(384.0))
