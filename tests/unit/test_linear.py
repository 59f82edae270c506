from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specfast import ops, reference
from tests.unit.exact import raw, same_bytes, strided

SIZES = (1, 15, 17, 31, 33, 576)
EPSILON = 2.0**-24


@dataclass(frozen=True)
class Problem:
    x: Tensor
    weight: Tensor
    packed: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None

    def out(self, rows: slice | list[int] = slice(None)) -> Tensor:
        x = self.x[rows]
        residual = None if self.residual is None else self.residual[rows]
        out = torch.full((len(x), len(self.weight)), float("nan"))
        ops.linear(x, self.packed, out, self.bias, residual)
        return out


def problem(m: int, n: int, k: int, dtype: torch.dtype, rng: torch.Generator) -> Problem:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    weight = normal(n, k).to(dtype)
    return Problem(normal(m, k), weight, ops.pack_linear(weight), normal(n), normal(m, n))


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_rows_do_not_depend_on_how_many_there_are(n, k, storage, rng):
    p = problem(64, n, k, storage[0], rng)
    whole = p.out()
    for m in range(1, 64):
        assert raw(p.out(slice(m))) == raw(whole[:m])
        assert raw(p.out(slice(64 - m, 64))) == raw(whole[64 - m :])


def test_more_rows_than_one_sweep_of_the_weights(storage, rng):
    p = problem(211, 40, 48, storage[0], rng)
    whole = p.out()
    assert raw(torch.cat([p.out([m]) for m in range(211)])) == raw(whole)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_sums_are_within_the_error_of_fp32(n, k, storage, rng):
    p = problem(5, n, k, storage[0], rng)
    expected = reference.linear(p.x, p.weight, p.bias, p.residual)
    magnitude = reference.linear(p.x.abs(), p.weight.abs(), p.bias.abs(), p.residual.abs())
    assert ((p.out() - expected).abs() <= (k + 2) * EPSILON * magnitude).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 33, 17), (13, 96, 576), (100, 31, 15)])
def test_tiers_and_threads_give_the_same_bytes(m, n, k, storage, rng):
    same_bytes(problem(m, n, k, storage[0], rng).out)


def test_a_nan_stays_in_its_row(storage, rng):
    p = problem(9, 33, 31, storage[0], rng)
    clean = p.out()
    for row in range(9):
        x, residual = torch.full_like(p.x, float("nan")), torch.full_like(clean, float("inf"))
        x[row], residual[row] = p.x[row], p.residual[row]
        out = replace(p, x=x, residual=residual).out()
        assert raw(out[row]) == raw(clean[row])
        assert out.isnan().sum() == out[row].numel() * 8


def test_strided_rows(storage, rng):
    p = problem(7, 33, 31, storage[0], rng)
    apart = replace(p, x=strided(p.x), residual=strided(p.residual))
    out = strided(torch.zeros(7, 33))
    ops.linear(apart.x, p.packed, out, p.bias, apart.residual)
    assert raw(out) == raw(p.out())
    assert out.as_strided((6, 3), (36, 1), 33).isnan().all(), "wrote between the rows"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_bias_and_residual_are_added_in_that_order(bias, residual, storage, rng):
    p = problem(6, 33, 17, storage[0], rng)
    expected = replace(p, bias=None, residual=None).out()
    expected = expected + p.bias if bias else expected
    expected = expected + p.residual if residual else expected
    kept = replace(p, bias=p.bias if bias else None, residual=p.residual if residual else None)
    assert raw(kept.out()) == raw(expected)


def test_residual_may_be_the_output(storage, rng):
    p = problem(6, 33, 17, storage[0], rng)
    expected, out = p.out(), p.residual.clone()
    ops.linear(p.x, p.packed, out, p.bias, out)
    assert raw(out) == raw(expected)


def test_no_rows(storage, rng):
    assert problem(0, 33, 17, storage[0], rng).out().shape == (0, 33)


@pytest.mark.parametrize("k", (1, 5))
@pytest.mark.parametrize("n", (1, 31, 32, 33, 96))
def test_pack_linear_puts_each_weight_where_linear_reads_it(n, k, storage):
    dtype, _ = storage
    weight = torch.arange(1, n * k + 1).view(n, k).to(dtype)
    packed = ops.pack_linear(weight)
    expected = torch.zeros(-(-n // 32), k, 32, dtype=dtype)
    for column in range(n):
        lane = column % 32
        place = lane % 16 * 2 + lane // 16 if dtype == torch.bfloat16 else lane
        expected[column // 32, :, place] = weight[column]
    assert raw(packed) == raw(expected)


def test_pack_linear_fills_a_given_buffer(storage):
    weight = torch.randn(7, 40).to(storage[0]).T  # not contiguous
    out = torch.full((2, 7, 32), 5.0, dtype=storage[0])
    assert ops.pack_linear(weight, out) is out
    assert raw(out) == raw(ops.pack_linear(weight.contiguous()))


@pytest.mark.parametrize("n", (33, 64))
def test_opcheck(n, storage, rng):
    p = problem(3, n, 17, storage[0], rng)
    out = torch.empty(3, n)
    for bias, residual in ((None, None), (p.bias, p.residual)):
        torch.library.opcheck(
            torch.ops.specfast.linear.default, (p.x, p.packed, bias, residual, out)
        )


WRONG = {
    "x: dtype must be": {"x": torch.zeros(3, 17, dtype=torch.float64)},
    "x: shape must be": {"x": torch.zeros(3, 17, 1)},
    "x: rows must be dense": {"x": torch.zeros(17, 3).T},
    "weight: dtype must be": {"weight": torch.zeros(2, 17, 32, dtype=torch.float16)},
    r"weight: shape must be \[2, 17, 32\], got \[2, 18, 32\]": {"weight": torch.zeros(2, 18, 32)},
    "weight: must be contiguous": {"weight": torch.zeros(2, 32, 17).transpose(1, 2)},
    "bias: shape must be": {"bias": torch.zeros(34)},
    "bias: must be contiguous": {"bias": torch.zeros(66)[::2]},
    "residual: shape must be": {"residual": torch.zeros(4, 33)},
    "out: dtype must be": {"out": torch.zeros(3, 33, dtype=torch.bfloat16)},
    "out: shape must be": {"out": torch.zeros(2, 33)},
}


@pytest.mark.parametrize("columns", ((0, 17), (8, 25), (16, 33)))
def test_out_over_x_is_refused(columns):
    buffer = torch.zeros(3, 40)
    x, out = buffer[:, :17], buffer[:, slice(*columns)]
    weight = ops.pack_linear(torch.zeros(17, 17))
    with pytest.raises(RuntimeError, match="out: must not overlap x"):
        ops.linear(x, weight, out)


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    right = {"x": torch.zeros(3, 17), "weight": torch.zeros(2, 17, 32), "out": torch.zeros(3, 33)}
    with pytest.raises(RuntimeError, match=f", {message}"):
        ops.linear(**{**right, **WRONG[message]})


@pytest.mark.parametrize("n", [1, 31, 32, 33, 576])
def test_packed_rows_come_back(n, storage, rng):
    p = problem(1, n, 17, storage[0], rng)
    index = torch.randint(n, (2 * n,), generator=rng)
    assert raw(ops.packed_rows(p.packed, index)) == raw(p.weight[index])
