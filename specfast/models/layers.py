"""The decoder's layers as one op call over scratch that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import ModelConfig
from specfast.models.rows import Rows
from specfast.models.weights import LayerWeights


@dataclass(frozen=True)
class Scratch:
    """float32 buffers of M rows; `rows(m)` are views of the first m of them.

    The field order is that of csrc/bind/decoder_layers.cpp.
    """

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
        return Scratch(*(buffer[:num_rows] for buffer in vars(self).values()))


class Layers:
    """All layers' weights, with a rotary table (empty: no rotary) and a window each."""

    def __init__(self, config: ModelConfig, weights: tuple[LayerWeights, ...]) -> None:
        table = config.rope.table(config.max_position_embeddings, config.head_dim)
        no_rotary = table[:, :0].contiguous()
        tables = [table if rotates else no_rotary for rotates in config.rotary_layers]
        self._weights = [[*vars(w).values(), cos_sin] for w, cos_sin in zip(weights, tables)]
        self._windows = list(config.windows)
        self._eps = config.rms_norm_eps
        self._scale = config.head_dim**-0.5

    def run(
        self, stretch: slice, scratch: Scratch, rows: Rows, kv_caches: tuple[Tensor, ...]
    ) -> None:
        """Takes scratch.hidden through these layers; kv_caches [2, blocks, block_size, Hkv, D]."""
        weights = [tensor for layer in self._weights[stretch] for tensor in layer]
        ops.decoder_layers(
            list(vars(scratch).values()), weights, list(vars(rows).values()),
            list(kv_caches[stretch]), self._windows[stretch], self._eps, self._scale,
        )  # fmt: skip
