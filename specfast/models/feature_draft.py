"""One decoder layer over the target's hidden states: what EAGLE heads and MTP blocks share.

Slot i takes what the target knew at token i and the embedding of token i + 1, and foretells token
i + 2. Behind a draft the layer's own output stands in for the target's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specfast import ops
from specfast.kv_shape import KVShape
from specfast.models.config import DTYPES, ModelConfig
from specfast.models.rows import Rows
from specfast.models.weights import LayerWeights


class FeatureDraft(ABC):
    """layers: the target's hidden states that it takes, numbered as Model.forward_with_features
    does. config: the shape of its layer. embedding [V, hidden]; head packed, head_size rows, which
    stand for the target's tokens d2t [Vd] int32, ascending (None: its first ones).
    """

    layers: tuple[int, ...]

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerWeights,
        embedding: Tensor,
        head: Tensor,
        d2t: Tensor | None,
    ) -> None:
        self.config, self.embedding, self.head, self.d2t = config, embedding, head, d2t
        self._layer = layer
        self._cos_sin = config.rope.table(config.max_position_embeddings, config.head_dim)

    def kv_shape(self, dtype: str) -> KVShape:
        """dtype as in EngineConfig.kv_cache_dtype; "auto" is that of the weights."""
        c = self.config
        kv_dtype = self.head.dtype if dtype == "auto" else DTYPES[dtype]
        return KVShape(1, c.num_kv_heads, c.head_dim, kv_dtype)

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [M, layers hidden] as one vector a row [M, hidden]."""

    @abstractmethod
    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """-> what attention reads [M, columns], and the residual stream [M, hidden]."""

    @abstractmethod
    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream behind the layer [M, hidden] -> what the next slot takes as hidden,
        and what the head turns into logits.
        """

    def forward(self, hidden: Tensor, rows: Rows, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Appends the rows' K and V to kv_cache [1, 2, blocks, block_size, Hkv, D] and attends.

        hidden [M, hidden] of each slot, rows.token_ids the tokens after; returns as `outputs`.
        """
        embedded = self.embedding.index_select(0, rows.token_ids).float()
        x, stream = self.join(embedded, hidden)
        stream = self._mlp(self._attend(x, stream, rows, kv_cache[0]))
        return self.outputs(stream)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, head_size] float32."""
        out = torch.empty(len(hidden), self.config.head_size)
        ops.linear(hidden, self.head, out)
        return out

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        ops.rms_norm(x, weight, self.config.rms_norm_eps, out)
        return out

    def projected(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [M, K] -> [M, hidden]."""
        out = torch.empty(len(x), self.config.hidden_size)
        ops.linear(x, weight, out, bias)
        return out

    def _attend(self, x: Tensor, stream: Tensor, rows: Rows, kv_cache: Tensor) -> Tensor:
        c, w, m = self.config, self._layer, len(x)
        qkv = torch.empty(m, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
        q, attended = torch.empty(2, m, c.num_heads, c.head_dim)
        ops.linear(x, w.qkv, qkv, w.qkv_bias)
        ops.rope_kv_append(
            qkv, self._cos_sin, rows.positions, rows.slots, q, kv_cache, rows.status,
            w.q_norm, w.k_norm, c.rms_norm_eps,
        )  # fmt: skip
        ops.tree_attention(
            q, kv_cache, rows.block_tables, rows.qo_indptr, rows.node_base, rows.kv_start,
            rows.positions, rows.node_bits, attended, c.head_dim**-0.5, c.windows[0],
        )  # fmt: skip
        out = torch.empty_like(stream)
        ops.linear(attended.view(m, -1), w.o, out, w.o_bias, residual=stream)
        return out

    def _mlp(self, stream: Tensor) -> Tensor:
        w, inner = self._layer, self.config.intermediate_size
        gate_up, activated = torch.empty(len(stream), 2 * inner), torch.empty(len(stream), inner)
        ops.linear(self.normed(stream, w.mlp_norm), w.gate_up, gate_up, w.gate_up_bias)
        ops.silu_mul(gate_up, activated)
        out = torch.empty_like(stream)
        ops.linear(activated, w.down, out, w.down_bias, residual=stream)
        return out
