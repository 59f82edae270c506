from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specfast import ops
from specfast import reference_attention as reference
from tests.unit.exact import raw, same_bytes, strided

EPS = 1e-5
POSITIONS = 50
# H, Hkv, D, R: whole and partial rotary, halves off the vector width, none.
SHAPES = (
    (9, 3, 64, 64),
    (4, 2, 80, 32),
    (2, 1, 96, 40),
    (2, 2, 16, 2),
    (3, 1, 256, 256),
    (2, 1, 32, 0),
)


@dataclass(frozen=True)
class Problem:
    qkv: Tensor
    cos_sin: Tensor
    positions: Tensor
    slots: Tensor
    cache: Tensor
    heads: int
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    def run(self, rows: slice | list[int] = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        """q_out, the cache after it, status."""
        x, cache = self.qkv[rows], self.cache.clone()
        q = torch.full((len(x), self.heads, cache.shape[-1]), float("nan"))
        status = torch.zeros(len(x), dtype=torch.int32)
        ops.rope_kv_append(
            x, self.cos_sin, self.positions[rows], self.slots[rows], q, cache, status,
            self.q_norm, self.k_norm, EPS,
        )  # fmt: skip
        return q, cache, status

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        norms = (self.q_norm, self.k_norm, EPS)
        places = (self.positions, self.slots, self.cache)
        return reference.rope_kv_append(self.qkv, self.cos_sin, *places, *norms)


def table(width: int) -> Tensor:
    inverse = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / max(width, 1))
    angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * inverse
    return torch.cat((angles.cos(), angles.sin()), 1).float()


def problem(shape, norm: bool, dtype: torch.dtype, rng, rows: int = 24) -> Problem:
    heads, kv_heads, dim, width = shape
    return Problem(
        qkv=torch.randn(rows, (heads + 2 * kv_heads) * dim, generator=rng),
        cos_sin=table(width),
        positions=torch.randint(POSITIONS, (rows,), generator=rng, dtype=torch.int32),
        slots=torch.randperm(rows + 8, generator=rng)[:rows],
        cache=torch.randn(2, (rows + 8) // 8, 8, kv_heads, dim, generator=rng).to(dtype),
        heads=heads,
        q_norm=torch.randn(dim, generator=rng) if norm else None,
        k_norm=torch.randn(dim, generator=rng) if norm else None,
    )


@pytest.fixture(params=SHAPES, ids=str)
def shape(request) -> tuple[int, int, int, int]:
    return request.param


@pytest.mark.parametrize("norm", (False, True))
def test_close_to_the_reference(norm, shape, storage, rng):
    dtype, unit = storage
    p = problem(shape, norm, dtype, rng)
    q, cache, status = p.run()
    want_q, want_cache, _ = p.expected()
    torch.testing.assert_close(q.double(), want_q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache.double(), want_cache.double(), rtol=2 * unit, atol=1e-5)
    assert not status.any()


def test_halves_are_paired_as_transformers_does(rng):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    p = problem((4, 2, 64, 64), False, torch.float32, rng)
    q, cache, _ = p.run()
    x = p.qkv.unflatten(1, (-1, 64)).transpose(0, 1)
    cos, sin = (t.repeat(1, 2) for t in p.cos_sin[p.positions.long()].chunk(2, 1))
    want_q, want_k = apply_rotary_pos_emb(x[None, :4], x[None, 4:6], cos[None], sin[None])
    torch.testing.assert_close(q, want_q[0].transpose(0, 1))
    torch.testing.assert_close(cache[0].flatten(0, 1)[p.slots], want_k[0].transpose(0, 1))


def test_the_norm_is_that_of_rms_norm(storage, rng):
    p = problem((4, 2, 80, 0), True, storage[0], rng)
    x = p.qkv[:, : 4 * 80].reshape(-1, 80).contiguous()
    normed = torch.empty_like(x)
    ops.rms_norm(x, p.q_norm, EPS, normed)
    assert raw(p.run()[0]) == raw(normed)


@pytest.mark.parametrize("norm", (False, True))
def test_rows_do_not_depend_on_how_many_there_are(norm, shape, storage, rng):
    p = problem(shape, norm, storage[0], rng)
    q, cache, _ = p.run()
    for row in range(len(q)):
        got_q, got_cache, _ = p.run([row])
        assert raw(got_q[0]) == raw(q[row])
        slot = p.slots[row]
        assert raw(got_cache.flatten(1, 2)[:, slot]) == raw(cache.flatten(1, 2)[:, slot])


def test_tiers_and_threads_give_the_same_bytes(shape, storage, rng):
    p = problem(shape, True, storage[0], rng, rows=40)
    same_bytes(lambda: torch.cat([t.float().flatten() for t in p.run()]))


def test_padding_rows_store_nothing_and_give_zero(shape, storage, rng):
    p = problem(shape, True, storage[0], rng)
    whole, positions, slots = p.run()[0], p.positions.clone(), p.slots.clone()
    positions[::3], slots[::3] = -1, -1
    slots[1::3] = -1  # a row that stores nothing still has a q
    padded = replace(p, positions=positions, slots=slots)
    q, cache, status = padded.run()
    assert (q[::3] == 0).all() and raw(q[1::3]) == raw(whole[1::3])
    want_q, want_cache, _ = padded.expected()
    assert (want_q[::3] == 0).all()
    untouched = torch.ones(cache.shape[1] * 8, dtype=torch.bool)
    untouched[p.slots[2::3]] = False
    assert raw(cache.flatten(1, 2)[:, untouched]) == raw(p.cache.flatten(1, 2)[:, untouched])
    torch.testing.assert_close(cache, want_cache, rtol=1e-2, atol=1e-5)
    assert not status.any()


def test_what_is_not_finite_becomes_zero_and_is_reported(storage, rng):
    p = problem((2, 1, 32, 16), False, storage[0], rng)
    clean, qkv = p.run(), p.qkv.clone()
    qkv[3, 0] = float("nan")  # q is not stored
    qkv[5, 64 + 20] = float("inf")  # k past the rotary dimensions
    qkv[7, 64 + 2] = float("nan")  # k, which turns with dimension 10
    qkv[9, 96 + 31] = float("-inf")  # v
    q, cache, status = replace(p, qkv=qkv).run()
    assert status.nonzero().flatten().tolist() == [5, 7, 9]
    assert cache.isfinite().all()
    want = clean[1].clone()
    for plane, row, dims in ((0, 5, [20]), (0, 7, [2, 10]), (1, 9, [31])):
        want.flatten(1, 2)[plane, p.slots[row], 0, dims] = 0
    assert raw(cache) == raw(want)
    assert q[3].isnan().sum() == 2 and q[:3].isfinite().all()


def test_strided_rows(shape, storage, rng):
    p = problem(shape, True, storage[0], rng)
    apart = replace(p, qkv=strided(p.qkv))
    assert all(raw(a) == raw(b) for a, b in zip(apart.run(), p.run()))


def test_opcheck(storage, rng):
    p = problem((2, 1, 32, 16), True, storage[0], rng, rows=8)
    q, status = torch.empty(8, 2, 32), torch.zeros(8, dtype=torch.int32)
    op = torch.ops.specfast.rope_kv_append.default
    for norms in ((None, None), (p.q_norm, p.k_norm)):
        torch.library.opcheck(
            op, (p.qkv, p.cos_sin, p.positions, p.slots, *norms, EPS, q, p.cache, status)
        )


WRONG = {
    "qkv: shape must be": {"qkv": torch.zeros(2, 127)},
    "cos_sin: must have an even number of columns": {"cos_sin": torch.zeros(9, 15)},
    "cos_sin: must have an even number of columns, at most head_dim 32": {
        "cos_sin": torch.zeros(9, 34)
    },
    "positions: row 1 has position 9, cos_sin holds 9": {
        "positions": torch.tensor([8, 9], dtype=torch.int32)
    },
    "positions: row 0 has position -2": {"positions": torch.tensor([-2, 9], dtype=torch.int32)},
    "slots: row 1 is padding": {"positions": torch.tensor([0, -1], dtype=torch.int32)},
    "slots: row 0 wants slot 16 of a cache of 16": {"slots": torch.tensor([16, 0])},
    "q_norm: shape must be": {"q_norm": torch.zeros(16)},
    "k_norm: dtype must be": {"k_norm": torch.zeros(32, dtype=torch.bfloat16)},
    "q_out: shape must be": {"q_out": torch.zeros(2, 2, 16)},
    "status: dtype must be": {"status": torch.zeros(2, dtype=torch.int64)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_argument_is_named_and_nothing_is_stored(message):
    cache = torch.ones(2, 2, 8, 1, 32)
    right = {
        "qkv": torch.zeros(2, 128),
        "cos_sin": torch.zeros(9, 16),
        "positions": torch.zeros(2, dtype=torch.int32),
        "slots": torch.arange(2),
        "q_out": torch.zeros(2, 2, 32),
        "kv_cache": cache,
        "status": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(RuntimeError, match=message):
        ops.rope_kv_append(**{**right, **WRONG[message]})
    assert (cache == 1).all()
