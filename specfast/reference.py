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


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [M, 2 F] -> [M, F] float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def accept_path(
    tokens: list[int], status: list[int], row_base: int, drafts: list[int], parents: list[int]
) -> tuple[list[int], int, int]:
    """One sequence: its accepted nodes, its next token (-1: none), its status."""
    if row_base < 0:
        return [], -1, 0
    path: list[int] = []
    seen, row = 0, row_base
    while True:
        seen |= status[row]
        parent = path[-1] if path else -1
        children = [n for n, p in enumerate(parents) if p == parent and drafts[n] == tokens[row]]
        if tokens[row] < 0 or not children:
            return path, tokens[row], seen
        path.append(children[0])
        row = row_base + 1 + children[0]
