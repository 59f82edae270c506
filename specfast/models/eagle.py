"""EAGLE heads: published ones (SafeAILab's layout and that of speculators) and our own.

EAGLE-1 and 2 (Li et al., 2024) take the hidden state behind the target's last norm; EAGLE-3 (Li et
al., 2025) fuses three layers and has a smaller vocabulary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import DTYPES, ModelConfig
from specfast.models.config_values import entries, flag
from specfast.models.decoder import Model
from specfast.models.feature_draft import FeatureDraft
from specfast.models.head_reader import HeadReader
from specfast.models.loader import head_folder
from specfast.models.weights import LayerWeights
from specfast.validation import is_integer, read_object, require

# What only heads have in their config.json, beside a decoder's keys.
_OWN_KEYS = frozenset(
    (
        "eagle_config", "norm_before_residual", "norm_before_fc", "norm_output", "fc_norm",
        "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "has_no_defaults_at_init", "bias",
    )
)  # fmt: skip


class Eagle(FeatureDraft):
    """EAGLE-1 and 2: one matrix joins embedding and hidden state; no norm before or behind."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerWeights,
        embedding: Tensor,
        head: Tensor,
        target_layer: int,
        fc: Tensor,
        fc_bias: Tensor | None,
    ) -> None:
        super().__init__(config, layer, embedding, head, None)
        self.layers = (target_layer,)
        self._fc, self._fc_bias = fc, fc_bias

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        joined = self.projected(torch.cat([embedded, hidden], 1), self._fc, self._fc_bias)
        return joined, joined

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return stream, stream


class Eagle3(FeatureDraft):
    """EAGLE-3. norms: of the features before they are fused (None: there is none), of the fused
    vector, and before the head.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerWeights,
        embedding: Tensor,
        head: Tensor,
        d2t: Tensor | None,
        layers: tuple[int, ...],
        fc: Tensor,
        norms: tuple[Tensor | None, Tensor, Tensor],
        norm_before_residual: bool,
        norm_output: bool,
    ) -> None:
        super().__init__(config, layer, embedding, head, d2t)
        self.layers = layers
        self._fc = fc
        self._features_norm, self._hidden_norm, self._norm = norms
        self._norm_before_residual, self._norm_output = norm_before_residual, norm_output

    def fuse(self, features: Tensor) -> Tensor:
        if self._features_norm is not None:
            features = self.normed(features, self._features_norm)
        return self.projected(features, self._fc)

    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        assert self._layer.input_norm is not None
        normed = self.normed(hidden, self._hidden_norm)
        x = torch.cat([self.normed(embedded, self._layer.input_norm), normed], 1)
        return x, normed if self._norm_before_residual else hidden

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.normed(stream, self._norm)
        return normed if self._norm_output else stream, normed


def load_eagle(name: str, target: Model, dtype: str = "auto") -> FeatureDraft:
    """The head called `name` for this target. ValueError names what does not fit.

    Which of the two kinds it is, its tensors say. dtype as for `loader.load`.
    """
    folder = head_folder(name)
    checkpoint = folder.checkpoint
    require(
        "fc.weight" in checkpoint.shapes,
        f"{name} is no EAGLE head: it has no tensor 'fc.weight'. Give its own method.",
    )
    raw = read_object(folder.path / "config.json")
    stored = checkpoint.dtype if dtype == "auto" else DTYPES[dtype]
    reader = HeadReader(name, checkpoint, torch.float32 if stored == torch.float16 else stored)
    config = _layer_config(name, raw, target.config)
    is_third = any(n.endswith("hidden_norm.weight") for n in checkpoint.shapes)
    draft = _third(reader, raw, config, target) if is_third else _first(reader, config, target)
    reader.check_all_used(lambda n: n == "t2d" or n.endswith("rotary_emb.inv_freq"))
    return draft


def _layer_config(name: str, raw: Mapping[str, Any], target: ModelConfig) -> ModelConfig:
    """The layer's shape. It goes as far as the target does: its rotary angles do, and it sees as
    many tokens.
    """
    values = {k: v for k, v in raw.items() if k not in _OWN_KEYS}
    if nested := entries(raw, "transformer_layer_config"):  # speculators
        values = {**nested, "draft_vocab_size": raw.get("draft_vocab_size")}
    values = {**values, "num_hidden_layers": 1}
    values.setdefault("vocab_size", target.vocab_size)
    config = ModelConfig.from_hf(values)
    require(
        config.vocab_size == target.vocab_size,
        f"{name} was made for a target with a vocabulary of {config.vocab_size}, not "
        f"{target.vocab_size}.",
    )
    require(not flag(raw, "fc_norm"), f"{name}: fc_norm is not implemented.")
    return replace(config, max_position_embeddings=target.max_position_embeddings)


def _first(reader: HeadReader, config: ModelConfig, target: Model) -> Eagle:
    size = config.hidden_size
    require(
        size == target.config.hidden_size,
        f"{reader.name} takes hidden states of {size}, but the target's have "
        f"{target.config.hidden_size}.",
    )
    names = {"fc.bias": size}
    return Eagle(
        replace(config, draft_vocab_size=None),
        reader.layer("layers.0.", config, size, has_input_norm=False),
        _embedding(reader, config, target),
        target.weights.head,
        target.config.num_layers,
        reader.matrix("fc.weight", size, 2 * size),
        *(reader.optional(name, columns) for name, columns in names.items()),
    )


def _third(
    reader: HeadReader, raw: Mapping[str, Any], config: ModelConfig, target: Model
) -> Eagle3:
    size = config.hidden_size
    layers = _target_layers(reader.name, raw, target.config.num_layers)
    width = len(layers) * target.config.hidden_size
    prefix = "midlayer." if reader.has("midlayer.hidden_norm.weight") else "layers.0."
    d2t = _d2t(reader, config)
    has_norm = flag(raw, "norm_before_fc")
    return Eagle3(
        config,
        reader.layer(prefix, config, 2 * size),
        _embedding(reader, config, target),
        _head(reader, config, target, d2t),
        d2t,
        layers,
        reader.matrix("fc.weight", size, width),
        (
            reader.vector("input_norm.weight", width) if has_norm else None,
            reader.vector(f"{prefix}hidden_norm.weight", size),
            reader.vector("norm.weight", size),
        ),
        flag(raw, "norm_before_residual", "transformer_layer_config" in raw),
        flag(raw, "norm_output"),
    )


def _target_layers(name: str, raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    found = raw.get(key) or entries(raw, "eagle_config").get(key)
    layers = found or [2, num_layers // 2, num_layers - 3]
    require(
        isinstance(layers, list)
        and all(map(is_integer, layers))
        and all(a < b for a, b in zip([-1, *layers], [*layers, num_layers + 1])),
        f"{name}: {key} must ascend within 0 to {num_layers}, the target's layers, not {layers}.",
    )
    return tuple(layers)


def _embedding(reader: HeadReader, config: ModelConfig, target: Model) -> Tensor:
    """The head's own, or the target's."""
    if reader.has("embed_tokens.weight"):
        shape = config.vocab_size, config.hidden_size
        return reader.tensor("embed_tokens.weight", *shape).to(reader.dtype)
    _check_shared(reader, config, target, "embed_tokens.weight")
    return target.weights.embedding


def _head(reader: HeadReader, config: ModelConfig, target: Model, d2t: Tensor | None) -> Tensor:
    """The head's own, or the rows of the target's that it decides among."""
    if reader.has("lm_head.weight"):
        return reader.matrix("lm_head.weight", config.head_size, config.hidden_size)
    _check_shared(reader, config, target, "lm_head.weight")
    if d2t is None:
        return target.weights.head
    return ops.pack_linear(target.weights.head_rows(d2t).to(reader.dtype))


def _check_shared(reader: HeadReader, config: ModelConfig, target: Model, name: str) -> None:
    require(
        config.hidden_size == target.config.hidden_size,
        f"{reader.name} has no {name}, and the target's is for hidden states of "
        f"{target.config.hidden_size}, not {config.hidden_size}.",
    )


def _d2t(reader: HeadReader, config: ModelConfig) -> Tensor | None:
    """Stored as how far each row's token lies above the row."""
    if not reader.has("d2t"):
        require(
            config.head_size == config.vocab_size,
            f"{reader.name} decides among {config.head_size} tokens, but has no d2t to say which.",
        )
        return None
    d2t = reader.tensor("d2t", config.head_size).long() + torch.arange(config.head_size)
    require(
        bool((d2t.diff() > 0).all()) and int(d2t[0]) >= 0 and int(d2t[-1]) < config.vocab_size,
        f"{reader.name}: d2t must lead to ascending tokens below {config.vocab_size}.",
    )
    return d2t.int()
