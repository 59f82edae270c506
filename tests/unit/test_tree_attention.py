from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specfast import ops
from tests.unit.exact import raw, same_bytes, strided
from tests.unit.paged import (
    LAWS,
    Law,
    Pool,
    Rows,
    attend,
    expected,
    nodes,
    paths,
    plain,
    pool,
    random_tree,
    untouched,
)

# H, Hkv, D: groups of 3, 1, 8 and 5 (more than a register block), dimensions off every block size.
SHAPES = ((9, 3, 64), (2, 2, 16), (8, 1, 80), (5, 1, 48), (4, 2, 128), (2, 1, 256))
SMALL = (6, 2, 32)
# Around a tile's edge and a split's edge.
EDGES = (1, 60, 63, 64, 65, 70, 505, 511, 512, 513, 520)


def draw(n: int, shape: tuple[int, int, int], dtype: torch.dtype, rng) -> tuple[Tensor, Tensor]:
    """q [n, H, D] and one sequence's kv [2, n, Hkv, D], with scores of some spread."""
    heads, kv_heads, dim = shape
    kv = torch.randn(2, n, kv_heads, dim, generator=rng).to(dtype)
    return 2 * torch.randn(n, heads, dim, generator=rng), kv


def assert_close(got: Tensor, want: Tensor, score_size: float = 1.0) -> None:
    """A score is off by some ulps of |q| |k|, and so is, relatively, the weight it becomes."""
    error = 1e-5 * score_size
    torch.testing.assert_close(got.double(), want, rtol=min(error, 1e-2), atol=min(error, 1e-2))


@pytest.fixture(params=LAWS.values(), ids=LAWS)
def law(request) -> Law:
    return request.param


# --- close to the reference ---


@pytest.mark.parametrize("shape", SHAPES)
def test_close_to_the_reference(shape, law, storage, rng):
    q, kv = draw(200, shape, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    assert_close(attend(made, rows, law=law), expected(made, rows, law=law))


@pytest.mark.parametrize("base", EDGES)
def test_trees_are_close_to_the_reference(base, law, storage, rng):
    q, kv = draw(base + 64, SMALL, storage[0], rng)
    made, tree = pool([kv], 16, rng), nodes(q[:64], base, random_tree(64, rng))
    assert_close(attend(made, tree, law=law), expected(made, tree, law=law))


def test_large_scores_neither_overflow_nor_vanish(storage, rng):
    q, kv = draw(600, SMALL, storage[0], rng)
    made = pool([kv], 16, rng)
    for size in (0.0, 1e-30, 1e3, 1e30):
        rows = plain(q[:3] * size, 597)
        assert_close(attend(made, rows), expected(made, rows), max(size, 1.0))


# --- a row's bytes depend on the row alone ---


def test_rows_do_not_depend_on_how_many_there_are(law, storage, rng):
    q, kv = draw(1100, (9, 3, 64), storage[0], rng)
    # All three splits; so many rows that splits run one after another, alone they run at once.
    made, rows = pool([kv], 16, rng), plain(q[:420], 680)
    whole = attend(made, rows, law=law)
    alone = [attend(made, rows[i : i + 1], law=law) for i in range(len(rows))]
    assert raw(torch.cat(alone)) == raw(whole)


@pytest.mark.parametrize("chunk", (3, 64, 100, 511, 512))
def test_chunks_of_a_tail_give_the_bytes_of_the_whole(chunk, law, storage, rng):
    q, kv = draw(700, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    parts = [attend(made, rows[i : i + chunk], law=law) for i in range(0, 700, chunk)]
    assert raw(torch.cat(parts)) == raw(attend(made, rows, law=law))


@pytest.mark.parametrize("block_size", (1, 8, 16, 32, 70))
def test_pages_do_not_show(block_size, law, storage, rng):
    q, kv = draw(590, SMALL, storage[0], rng)
    rows, tree = plain(q[:5], 520), nodes(q[:40], 550, random_tree(40, rng))
    one_page = pool([kv], 590, rng)
    for _ in range(3):
        paged = pool([kv], block_size, rng)
        assert raw(attend(paged, rows, law=law)) == raw(attend(one_page, rows, law=law))
        assert raw(attend(paged, tree, law=law)) == raw(attend(one_page, tree, law=law))


def test_pages_nearly_in_order_do_not_show(storage, rng):
    q, kv = draw(64, SMALL, storage[0], rng)
    order = torch.arange(64)
    order[[21, 22]] = order[[22, 21]]
    swapped = Pool(kv[:, order.argsort()].unsqueeze(2).contiguous(), order.int()[None])
    rows = plain(q, 0)
    assert raw(attend(swapped, rows)) == raw(attend(pool([kv], 64, rng), rows))


def test_neighbours_do_not_show(law, storage, rng):
    lengths = (600, 70, 1, 530)
    drawn = [draw(n, SMALL, storage[0], rng) for n in lengths]
    made = pool([kv for _, kv in drawn], 16, rng)
    rows = [
        plain(drawn[0][0][:7], 590),
        nodes(drawn[1][0][:20], 50, random_tree(20, rng)),
        plain(drawn[2][0], 0),
        replace(plain(drawn[3][0][:130], 400), start=17),
    ]
    alone = [
        attend(replace(made, tables=made.tables[b : b + 1]), r, law=law) for b, r in enumerate(rows)
    ]
    assert raw(attend(made, *rows, law=law)) == raw(torch.cat(alone))


@pytest.mark.parametrize("base", EDGES)
def test_a_chain_gives_the_bytes_of_later_plain_rows(base, law, storage, rng):
    q, kv = draw(base + 12, SMALL, storage[0], rng)
    made = pool([kv], 16, rng)
    chain = nodes(q[:12], base, range(-1, 11))
    assert raw(attend(made, chain, law=law)) == raw(attend(made, plain(q[:12], base), law=law))


def compacted(made: Pool, base: int, path: list[int]) -> Pool:
    data = made.data.clone()
    ints = [torch.tensor([x], dtype=torch.int32) for x in (base, path, len(path))]
    ops.kv_compact(data[None], made.tables, *ints)
    return replace(made, data=data)


def check_nodes_against_plain_rows(made: Pool, tree: Rows, parents: list[int], law: Law) -> None:
    whole = attend(made, tree, law=law)
    for node, path in enumerate(paths(parents)):
        later = plain(tree.q[node : node + 1], tree.base + len(path) - 1)
        dense = compacted(made, tree.base, path)
        assert raw(attend(dense, later, law=law)) == raw(whole[node : node + 1]), f"node {node}"


@pytest.mark.parametrize("base", EDGES)
def test_a_tree_gives_the_bytes_of_later_plain_rows(base, law, storage, rng):
    parents = random_tree(40, rng)
    q, kv = draw(base + 40, SMALL, storage[0], rng)
    tree = nodes(q[:40], base, parents)
    check_nodes_against_plain_rows(pool([kv], 8, rng), tree, parents, law)


@pytest.mark.parametrize("base", (30, 480))
def test_a_deep_tree_of_64_nodes_crosses_tiles(base, law, storage, rng):
    parents = [-1, -1, *range(1, 63)]  # node 0 is a leaf beside a path of 63
    q, kv = draw(base + 64, SMALL, storage[0], rng)
    tree = nodes(q[:64], base, parents)
    check_nodes_against_plain_rows(pool([kv], 16, rng), tree, parents, law)


def test_a_tail_and_its_tree_in_one_call(law, storage, rng):
    q, kv = draw(560, SMALL, storage[0], rng)
    made = pool([kv], 16, rng)
    tail, tree = plain(q[:9], 500), nodes(q[9:40], 509, random_tree(31, rng))
    both = Rows(
        *(torch.cat(p) for p in zip(*((r.q, r.positions, r.bits) for r in (tail, tree)))), 509
    )
    parts = torch.cat((attend(made, tail, law=law), attend(made, tree, law=law)))
    assert raw(attend(made, both, law=law)) == raw(parts)


@pytest.mark.parametrize("shape", SHAPES)
def test_tiers_and_threads_give_the_same_bytes(shape, storage, rng):
    q, kv = draw(530, shape, storage[0], rng)
    made, law = pool([kv], 16, rng), Law(window=140, soft_cap=5.0)
    same_bytes(lambda: attend(made, plain(q[:4], 526), law=law))
    same_bytes(lambda: attend(made, nodes(q[:7], 510, [-1, 0, 0, 2, -1, 4, 3])))


def test_tiers_and_threads_with_many_rows(storage, rng):
    q, kv = draw(150, SMALL, storage[0], rng)
    made = pool([kv, kv], 16, rng)
    same_bytes(lambda: attend(made, plain(q[:120], 30), plain(q[:2], 3)))


@given(data=st.data())
def test_any_mix_of_rows_pages_and_laws(data):
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    base, size = data.draw(st.integers(0, 600)), data.draw(st.integers(1, 64), label="nodes")
    law = Law(
        window=data.draw(st.sampled_from((0, 1, 5, 64, 300))),
        soft_cap=data.draw(st.sampled_from((0.0, 2.0))),
        start=data.draw(st.integers(0, base + 3)),
    )
    q, kv = draw(base + size, SMALL, torch.float32, rng)
    parents = random_tree(size, rng)
    made, tree = pool([kv], data.draw(st.integers(1, 40)), rng), nodes(q[:size], base, parents)
    assert_close(attend(made, tree, law=law), expected(made, tree, law=law))
    check_nodes_against_plain_rows(made, tree, parents, law)


# --- what a row doesn't see ---


def test_a_nan_in_a_slot_that_no_row_sees_is_not_read(law, storage, rng):
    q, kv = draw(600, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q[:3], 550)
    first_seen = max(law.start, 551 - law.window) if law.window else law.start
    hidden = made.poisoned([*range(first_seen), *range(553, 600)])
    assert raw(attend(hidden, rows, law=law)) == raw(attend(made, rows, law=law))


@pytest.mark.parametrize("base", EDGES)
def test_a_nan_in_a_sibling_is_not_seen(base, law, storage, rng):
    parents = random_tree(30, rng)
    q, kv = draw(base + 30, SMALL, storage[0], rng)
    made, tree = pool([kv], 16, rng), nodes(q[:30], base, parents)
    whole = attend(made, tree, law=law)
    for node, path in enumerate(paths(parents)):
        strangers = [base + n for n in range(30) if n not in path]
        got = attend(made.poisoned(strangers), tree, law=law)
        assert raw(got[node]) == raw(whole[node])


def test_a_nan_in_a_later_row_of_the_tail_is_not_seen(storage, rng):
    q, kv = draw(70, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    whole = attend(made, rows)
    got = attend(made.poisoned(range(33, 70)), rows)
    assert raw(got[:33]) == raw(whole[:33])
    assert got[33:].isnan().all()


def test_a_nan_in_q_stays_in_its_head(storage, rng):
    q, kv = draw(70, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    whole, bad = attend(made, rows), q.clone()
    bad[40, 1, 3] = float("nan")
    got = attend(made, replace(rows, q=bad))
    assert got[40, 1].isnan().all()
    got[40, 1] = whole[40, 1]
    assert raw(got) == raw(whole)


def test_rows_that_see_nothing_give_zero(storage, rng):
    q, kv = draw(30, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    padded = replace(rows, positions=rows.positions.clone())
    padded.positions[::3] = -1
    whole, got = attend(made, rows), attend(made, padded)
    assert (got[::3] == 0).all()
    assert raw(got[1::3]) == raw(whole[1::3])
    late = attend(made, rows, law=Law(start=20))
    assert (late[:20] == 0).all() and (late[20:] != 0).any(-1).all()


def test_rows_of_no_sequence_give_zero(rng):
    q, kv = draw(8, SMALL, torch.float32, rng)
    made, out = pool([kv], 16, rng), torch.full_like(q, float("nan"))
    inputs = Call(made, plain(q, 0)).inputs
    inputs["qo_indptr"] = torch.tensor([2, 5], dtype=torch.int32)
    ops.tree_attention(**inputs, out=out, scale=0.1)
    assert (out[:2] == 0).all() and (out[5:] == 0).all() and (out[2:5] != 0).any(-1).all()


def test_no_rows_and_no_sequences(rng):
    q, kv = draw(8, SMALL, torch.float32, rng)
    made = pool([kv], 16, rng)
    assert attend(made, plain(q[:0], 0)).shape == (0, 6, 32)
    inputs = Call(made, plain(q, 0)).inputs
    for name in ("block_tables", "node_base", "kv_start"):
        inputs[name] = inputs[name][:0]
    inputs["qo_indptr"] = torch.zeros(1, dtype=torch.int32)
    out = torch.full_like(q, float("nan"))
    ops.tree_attention(**inputs, out=out, scale=0.1)
    assert (out == 0).all()


def test_strided_queries(storage, rng):
    q, kv = draw(20, SMALL, storage[0], rng)
    made, rows = pool([kv], 16, rng), plain(q, 0)
    apart = strided(q.flatten(1)).unflatten(1, (6, 32))
    assert raw(attend(made, replace(rows, q=apart))) == raw(attend(made, rows))


def test_offsets_beyond_31_bits(rng):
    q, kv = draw(40, (4, 2, 128), torch.bfloat16, rng)
    blocks = 2**31 // (16 * 2 * 128) + 8  # K alone has more than 2^31 elements
    huge = untouched(2, blocks, 16, 2, 128)
    small = pool([kv], 16, rng)
    table = torch.tensor([[blocks - 1, 0, blocks - 3]], dtype=torch.int32)
    huge[:, table[0].long()] = small.data[:, small.tables[0].long()]
    rows = plain(q, 0)
    assert raw(attend(Pool(huge, table), rows)) == raw(attend(small, rows))


# --- the door ---


class Call:
    """The arguments of one right call by name."""

    def __init__(self, made: Pool, rows: Rows) -> None:
        def one(x: int) -> Tensor:
            return torch.tensor([x], dtype=torch.int32)

        self.inputs = {
            "q": rows.q,
            "kv_cache": made.data,
            "block_tables": made.tables,
            "qo_indptr": torch.tensor([0, len(rows)], dtype=torch.int32),
            "node_base": one(rows.base),
            "kv_start": one(0),
            "positions": rows.positions,
            "node_bits": rows.bits,
        }


def test_opcheck(storage, rng):
    q, kv = draw(20, SMALL, storage[0], rng)
    made = pool([kv], 16, rng)
    rows = nodes(q[:5], 15, [-1, 0, 0, -1, 3])
    inputs = Call(made, rows).inputs
    out = torch.empty(5, 6, 32)
    torch.library.opcheck(
        torch.ops.specfast.tree_attention.default, (*inputs.values(), 0.2, 0, 0.0, out)
    )


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


WRONG = {
    "q: dtype must be": {"q": torch.zeros(5, 6, 32, dtype=torch.float64)},
    "q: must have a multiple of 2 heads": {
        "q": torch.zeros(5, 3, 32),
        "out": torch.zeros(5, 3, 32),
    },
    "q: rows must be dense": {"q": torch.zeros(5, 32, 6).transpose(1, 2)},
    "out: shape must be": {"out": torch.zeros(4, 6, 32)},
    "kv_cache: dtype must be": {"kv_cache": torch.zeros(2, 4, 16, 2, 32, dtype=torch.float16)},
    "kv_cache: head_dim must be a multiple of 16": {"kv_cache": torch.zeros(2, 4, 16, 2, 40)},
    "kv_cache: shape must be": {"kv_cache": torch.zeros(4, 16, 2, 32)},
    "block_tables: dtype must be": {"block_tables": torch.zeros(1, 2, dtype=torch.int64)},
    "block_tables: entry 1 of sequence 0 is block 7": {"block_tables": ints(0, 7)[None]},
    "block_tables: sequence 0 uses positions 0 to 20": {"block_tables": ints(0)[None]},
    "qo_indptr: shape must be": {"qo_indptr": ints(0, 5, 5)},
    "qo_indptr: must not decrease": {"qo_indptr": ints(0, 6)},
    "node_base, kv_start: must not be negative": {"kv_start": ints(-1)},
    "positions: row 2 has position -2": {"positions": ints(15, 16, -2, 15, 16)},
    "node_bits: row 1 at depth 1 must have 2": {"node_bits": torch.tensor([1, 2, 5, 8, 24])},
    "window, soft_cap: must be 0": {"window": -1},
}


def test_nodes_at_the_end_of_32_bits_are_refused_too():
    base = 2**31 - 10
    q, cache, zero = torch.zeros(1, 1, 64), torch.zeros(2, 2, 16, 1, 64), ints(0)
    with pytest.raises(RuntimeError, match=f"sequence 0 uses positions 0 to {base + 64}"):
        ops.tree_attention(
            q, cache, ints(0, 1)[None], ints(0, 1), ints(base), zero, ints(base),
            torch.tensor([-(2**63)]), torch.zeros_like(q), scale=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_argument_is_named(message, rng):
    q, kv = draw(20, SMALL, torch.float32, rng)
    right = Call(pool([kv], 16, rng), nodes(q[:5], 15, [-1, 0, 0, -1, 3])).inputs
    with pytest.raises(RuntimeError, match=message):
        ops.tree_attention(
            **{**right, "out": torch.zeros(5, 6, 32), "scale": 0.2, **WRONG[message]}
        )
