from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specfast import ops, reference
from tests.unit.exact import raw, same_bytes, strided

SIZES = (1, 15, 16, 17, 31, 33, 576)
EPS = 1e-5


def norm(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """[2, M, D]: the normed rows and the sums."""
    both = torch.full((2, *x.shape), float("nan"))
    ops.rms_norm(x, weight, EPS, both[0], residual, both[1])
    return both


@pytest.fixture(params=SIZES)
def tensors(request, rng) -> tuple[Tensor, Tensor, Tensor]:
    """x [64, D], weight [D], residual [64, D]."""
    d = request.param
    return tuple(torch.randn(*shape, generator=rng) for shape in ((64, d), (d,), (64, d)))


def test_rows_do_not_depend_on_how_many_there_are(tensors):
    x, weight, residual = tensors
    whole = norm(x, weight, residual)
    for m in range(1, 65):
        assert raw(norm(x[:m], weight, residual[:m])) == raw(whole[:, :m])
        assert raw(norm(x[-m:], weight, residual[-m:])) == raw(whole[:, -m:])


@pytest.mark.parametrize("scale", (1e-4, 1.0, 1e4))
@pytest.mark.parametrize("with_residual", (False, True))
def test_close_to_the_reference(with_residual, scale, tensors):
    x, weight, residual = tensors
    x, residual = x * scale, residual * scale if with_residual else None
    normed, total = norm(x, weight, residual)
    expected, expected_total = reference.rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(normed.double(), expected, rtol=2e-6, atol=1e-7)
    assert raw(total) == raw(expected_total.float())


def test_tiers_and_threads_give_the_same_bytes(tensors):
    x, weight, residual = tensors
    same_bytes(lambda: norm(x, weight, residual))
    same_bytes(lambda: norm(x[:1], weight))


def test_a_nan_stays_in_its_row(tensors):
    x, weight, residual = tensors
    clean = norm(x, weight, residual)
    noisy = torch.full_like(x, float("nan"))
    noisy[5] = x[5]
    got = norm(noisy, weight, residual)
    assert raw(got[:, 5]) == raw(clean[:, 5])
    assert got.isnan().sum() == 2 * 63 * x.shape[1]


def test_strided_rows(tensors):
    x, weight, residual = tensors
    assert raw(norm(strided(x), weight, residual)) == raw(norm(x, weight, residual))


def test_x_may_be_the_output(tensors):
    x, weight, residual = tensors
    expected = norm(x, weight, residual)
    ops.rms_norm(x, weight, EPS, x, residual)
    assert raw(x) == raw(expected[0])


def test_residual_may_be_the_sum(tensors):
    x, weight, residual = tensors
    expected, out = norm(x, weight, residual), torch.empty_like(x)
    ops.rms_norm(x, weight, EPS, out, residual, residual)
    assert raw(torch.stack((out, residual))) == raw(expected)


def test_zeros_and_subnormals():
    rows = torch.tensor([[0.0] * 17, [1e-40] * 17])
    normed, total = same_bytes(lambda: norm(rows, torch.ones(17)))
    assert raw(total) == raw(rows)
    expected, _ = reference.rms_norm(rows, None, torch.ones(17), EPS)
    assert (normed[0] == 0).all()
    torch.testing.assert_close(normed.double(), expected, rtol=1e-4, atol=0)


def test_opcheck(rng):
    x = torch.randn(3, 17, generator=rng)
    out, total = torch.empty(3, 17), torch.empty(3, 17)
    op = torch.ops.specfast.rms_norm.default
    torch.library.opcheck(op, (x, None, torch.ones(17), EPS, out, None))
    torch.library.opcheck(op, (x, x.clone(), torch.ones(17), EPS, out, total))


WRONG = {
    "x: dtype must be": {"x": torch.zeros(3, 17, dtype=torch.bfloat16)},
    "x: shape must be": {"x": torch.zeros(17)},
    "x: rows must be dense": {"x": torch.zeros(17, 3).T},
    r"weight: shape must be \[17\], got \[16\]": {"weight": torch.zeros(16)},
    "residual: shape must be": {"residual": torch.zeros(2, 17)},
    "residual: must be contiguous": {"residual": torch.zeros(3, 18)[:, :17]},
    "out: shape must be": {"out": torch.zeros(3, 16)},
    "sum_out: dtype must be": {"sum_out": torch.zeros(3, 17, dtype=torch.float64)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    right = {"x": torch.zeros(3, 17), "weight": torch.zeros(17), "out": torch.zeros(3, 17)}
    with pytest.raises(RuntimeError, match=f", {message}"):
        ops.rms_norm(eps=EPS, **{**right, **WRONG[message]})
