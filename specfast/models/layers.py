"""One decoder layer as nine op calls over scratch that every layer shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops  # noqa: F401  (importing it registers the ops)
from specfast.models.config import ModelConfig
from specfast.models.rows import Rows
from specfast.models.weights import LayerWeights

# The overloads themselves: 30 layers of nine calls a step feel every microsecond above them.
_rms_norm = torch.ops.specfast.rms_norm.default
_linear = torch.ops.specfast.linear.default
_rope_kv_append = torch.ops.specfast.rope_kv_append.default
_tree_attention = torch.ops.specfast.tree_attention.default
_silu_mul = torch.ops.specfast.silu_mul.default


@dataclass(frozen=True)
class Scratch:
    """float32 buffers of M rows; `rows(m)` are views of the first m of them."""

    hidden: Tensor  # [M, hidden] the residual stream
    normed: Tensor  # [M, hidden]
    qkv: Tensor  # [M, (H + 2 Hkv) D]
    q: Tensor  # [M, H, D]
    attended: Tensor  # [M, H, D]
    attended_rows: Tensor  # [M, H D], the same memory
    gate_up: Tensor  # [M, 2 F]
    activated: Tensor  # [M, F]

    @classmethod
    def allocate(cls, config: ModelConfig, num_rows: int) -> Scratch:
        heads, dim = config.num_heads, config.head_dim
        attended = torch.empty(num_rows, heads, dim)
        return cls(
            hidden=torch.empty(num_rows, config.hidden_size),
            normed=torch.empty(num_rows, config.hidden_size),
            qkv=torch.empty(num_rows, (heads + 2 * config.num_kv_heads) * dim),
            q=torch.empty(num_rows, heads, dim),
            attended=attended,
            attended_rows=attended.view(num_rows, heads * dim),
            gate_up=torch.empty(num_rows, 2 * config.intermediate_size),
            activated=torch.empty(num_rows, config.intermediate_size),
        )

    def rows(self, num_rows: int) -> Scratch:
        return Scratch(**{name: buffer[:num_rows] for name, buffer in vars(self).items()})


class Layer:
    """weights, rotary table (empty: no rotary) and window of one layer."""

    def __init__(
        self, weights: LayerWeights, config: ModelConfig, cos_sin: Tensor, window: int
    ) -> None:
        self.weights = weights
        self.cos_sin = cos_sin
        self.window = window
        self.eps = config.rms_norm_eps
        self.scale = config.head_dim**-0.5

    def forward(self, s: Scratch, rows: Rows, kv_cache: Tensor) -> None:
        """Adds attention and MLP to s.hidden in place; kv_cache [2, blocks, block_size, Hkv, D]."""
        w, eps = self.weights, self.eps
        _rms_norm(s.hidden, None, w.input_norm, eps, s.normed, None)
        _linear(s.normed, w.qkv, w.qkv_bias, None, s.qkv)
        _rope_kv_append(
            s.qkv, self.cos_sin, rows.positions, rows.slots, w.q_norm, w.k_norm, eps,
            s.q, kv_cache, rows.status,
        )  # fmt: skip
        _tree_attention(
            s.q, kv_cache, rows.block_tables, rows.qo_indptr, rows.node_base, rows.kv_start,
            rows.positions, rows.node_bits, self.scale, self.window, 0.0, s.attended,
        )  # fmt: skip
        _linear(s.attended_rows, w.o, w.o_bias, s.hidden, s.hidden)
        _rms_norm(s.hidden, None, w.mlp_norm, eps, s.normed, None)
        _linear(s.normed, w.gate_up, w.gate_up_bias, None, s.gate_up)
        _silu_mul(s.gate_up, s.activated)
        _linear(s.activated, w.down, w.down_bias, s.hidden, s.hidden)
