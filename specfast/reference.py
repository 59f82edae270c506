"""The same ops in plain torch, in float64 where they round: the specification and the oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """x [M, K], weight [N, K] (not packed) -> [M, N] float64."""
    out = x.double() @ weight.double().T
    if bias is not None:
        out = out + bias.double()
    return out if residual is None else out + residual.double()


def rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """-> (normed, sum), both [M, D] float64."""
    h = x.double() if residual is None else x.double() + residual.double()
    scale = torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return h * scale * weight.double(), h
