"""The native decoder: rows and a paged cache in, hidden states and logits out."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import DTYPES, ModelConfig
from specfast.models.layers import Layers, Scratch
from specfast.models.rows import Rows
from specfast.models.weights import Weights


class Model:
    """A decoder of the Llama family. Its buffers are reused: one forward at a time."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self._layers = Layers(config, weights.layers)
        self._scratch = Scratch.allocate(config, 0)
        self._views: dict[int, Scratch] = {}
        self._logits = torch.empty(0, config.head_size)
        self._kv_cache: Tensor | None = None
        self._kv_layers: tuple[Tensor, ...] = ()

    def kv_dtype(self, name: str) -> torch.dtype:
        """The cache's dtype for EngineConfig.kv_cache_dtype; "auto" is that of the weights."""
        return self.config.dtype if name == "auto" else DTYPES[name]

    def forward(self, rows: Rows, kv_cache: Tensor) -> Tensor:
        """Appends the rows' K and V to kv_cache [L, 2, blocks, block_size, Hkv, D] and attends.

        Returns the hidden states after the final norm [M, hidden] float32, valid until the next
        forward. Row status bits are or-ed into rows.status.
        """
        return self.forward_with_features(rows, kv_cache, ())[0]

    def forward_with_features(
        self, rows: Rows, kv_cache: Tensor, layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As forward, with what `layers` (ascending) saw: [M, len(layers) hidden] float32, owned by
        the caller. Layer i is the residual stream that goes into layer i, num_layers what forward
        returns: transformers' output_hidden_states numbers them so.
        """
        scratch = self._rows_of_scratch(len(rows.token_ids))
        scratch.hidden.copy_(self.weights.embedding.index_select(0, rows.token_ids))
        features = torch.empty(len(scratch.hidden), len(layers) * self.config.hidden_size)
        columns = features.split(self.config.hidden_size, 1)
        kv_caches, first = self._layers_of(kv_cache), 0
        for layer, column in zip(layers, columns):
            self._layers.run(slice(first, layer), scratch, rows, kv_caches)
            if layer < self.config.num_layers:
                column.copy_(scratch.hidden)
            first = layer
        self._layers.run(slice(first, None), scratch, rows, kv_caches)
        eps = self.config.rms_norm_eps
        ops.rms_norm(scratch.hidden, self.weights.final_norm, eps, scratch.normed)
        if layers and layers[-1] == self.config.num_layers:
            columns[-1].copy_(scratch.normed)
        return scratch.normed, features

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """Rows index [R] int64 of hidden -> [R, V or a draft's Vd] float32, valid until the next
        call.
        """
        num_rows = len(index)
        if num_rows > len(self._logits):
            self._logits = torch.empty(num_rows, self.config.head_size)
        out = self._logits[:num_rows]
        ops.linear(hidden.index_select(0, index), self.weights.head, out)
        return out

    def _rows_of_scratch(self, num_rows: int) -> Scratch:
        views = self._views.get(num_rows)
        if views is None:
            capacity = len(self._scratch.hidden)
            if num_rows > capacity:
                self._scratch = Scratch.allocate(self.config, max(num_rows, 2 * capacity))
                self._views.clear()
            views = self._views[num_rows] = self._scratch.rows(num_rows)
        return views

    def _layers_of(self, kv_cache: Tensor) -> tuple[Tensor, ...]:
        if kv_cache is not self._kv_cache:
            self._kv_cache, self._kv_layers = kv_cache, kv_cache.unbind(0)
        return self._kv_layers
