from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specfast import ops, reference
from tests.unit.exact import raw, same_bytes


def silu_mul(gate_up: Tensor) -> Tensor:
    out = torch.full((gate_up.shape[0], gate_up.shape[1] // 2), float("nan"))
    ops.silu_mul(gate_up, out)
    return out


@pytest.mark.parametrize("f", (1, 15, 16, 17, 33, 1536))
@pytest.mark.parametrize("scale", (1e-3, 1.0, 8.0))
def test_close_to_the_reference_and_row_by_row_the_same(f, scale, rng):
    gate_up = scale * torch.randn(9, 2 * f, generator=rng)
    whole = same_bytes(lambda: silu_mul(gate_up))
    torch.testing.assert_close(whole.double(), reference.silu_mul(gate_up), rtol=2e-6, atol=1e-30)
    for row in range(9):
        assert raw(silu_mul(gate_up[row : row + 1])) == raw(whole[row])


def test_extremes():
    gate = torch.tensor([[0.0, -0.0, 200.0, -200.0, 3e38, -3e38, math.inf, math.nan, 1e-40]])
    got = same_bytes(lambda: silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1)))[0]
    expected = torch.tensor([0.0, -0.0, 200.0, -0.0, 3e38, -0.0, math.inf, math.nan, 5e-41])
    assert got.isnan().tolist() == expected.isnan().tolist()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0, equal_nan=True)


def test_a_nan_stays_in_its_row(rng):
    gate_up = torch.randn(3, 34, generator=rng)
    clean = silu_mul(gate_up)
    gate_up[1] = float("nan")
    got = silu_mul(gate_up)
    assert raw(got[::2]) == raw(clean[::2])
    assert got[1].isnan().all()


def test_opcheck(rng):
    gate_up = torch.randn(3, 34, generator=rng)
    torch.library.opcheck(torch.ops.specfast.silu_mul.default, (gate_up, torch.empty(3, 17)))


WRONG = {
    "gate_up: dtype must be": {"gate_up": torch.zeros(3, 34).double()},
    r"gate_up: shape must be \[3, 34\], got \[3, 33\]": {"gate_up": torch.zeros(3, 33)},
    "gate_up: must be contiguous": {"gate_up": torch.zeros(3, 35)[:, :34]},
    "out: shape must be": {"out": torch.zeros(17)},
    "out: must be contiguous": {"out": torch.zeros(17, 3).T},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    right = {"gate_up": torch.zeros(3, 34), "out": torch.zeros(3, 17)}
    with pytest.raises(RuntimeError, match=message):
        ops.silu_mul(**{**right, **WRONG[message]})
