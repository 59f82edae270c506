"""A decoder's shape, read from Hugging Face's config.json: the Llama family and its near kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from specfast.models.config_keys import FAMILIES, check_keys
from specfast.models.config_values import count, flag, positive, size
from specfast.models.rope import Rope
from specfast.validation import require

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_LAYERS = 4096


@dataclass(frozen=True)
class ModelConfig:
    """What the forward pass depends on.

    windows: a sliding window a layer (0: none), which counts the token itself. rotary_layers: False
    for a layer without rotary embedding. dtype: what config.json says; in a loaded model what the
    weights are. draft_vocab_size: a draft's head decides among so many of the target's tokens.
    num_nextn_predict_layers: MTP blocks that the checkpoint holds beside the decoder.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    windows: tuple[int, ...]
    rotary_layers: tuple[bool, ...]
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    draft_vocab_size: int | None = None
    num_nextn_predict_layers: int = 0
    dtype: torch.dtype = field(default=torch.float32)

    def __post_init__(self) -> None:
        require(
            self.head_dim % 16 == 0 and self.head_dim <= 256,
            f"head_dim must be a multiple of 16 up to 256 (what attention takes), not "
            f"{self.head_dim}.",
        )
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_attention_heads ({self.num_heads}) must be a multiple of num_key_value_heads "
            f"({self.num_kv_heads}).",
        )

    @property
    def head_size(self) -> int:
        """Logits a row."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def embedding_size(self) -> int:
        """Stored embeddings: one a token, or, tied to a smaller head, one a row of that."""
        return self.head_size if self.tie_word_embeddings else self.vocab_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """From config.json, in the spelling of transformers 4 or 5.

        ValueError for a model type or a key that we don't implement; unknown keys warn.
        """
        model_type = config.get("model_type")
        if model_type not in tuple(FAMILIES):
            raise ValueError(
                f"model type {model_type!r} is not supported; supported are {', '.join(FAMILIES)}."
            )
        family = FAMILIES[model_type]
        check_keys(config, family)
        values = {**family.defaults, **config}
        num_layers, num_heads = _num_layers(values), size(values, "num_attention_heads")
        attention_bias = flag(values, "attention_bias")
        max_positions = size(values, "max_position_embeddings")
        require(
            values["hidden_act"] == "silu",
            f"hidden_act {values['hidden_act']!r} is not implemented; only 'silu' is.",
        )
        return cls(
            model_type=model_type,
            vocab_size=size(values, "vocab_size"),
            hidden_size=size(values, "hidden_size"),
            intermediate_size=size(values, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=size(values, "num_key_value_heads", num_heads),
            head_dim=_head_dim(values, num_heads),
            max_position_embeddings=max_positions,
            rms_norm_eps=positive(values, "rms_norm_eps"),
            rope=Rope.from_hf(values, family.rope_theta, max_positions),
            windows=_windows(values, num_layers),
            rotary_layers=_rotary_layers(values, num_layers),
            tie_word_embeddings=flag(values, "tie_word_embeddings"),
            qkv_bias=attention_bias or family.qkv_bias,
            o_bias=attention_bias and family.o_bias and "attention_bias" in family.reads,
            mlp_bias=flag(values, "mlp_bias"),
            qk_norm=family.qk_norm,
            bos_token_id=values.get("bos_token_id"),
            draft_vocab_size=_draft_vocab_size(values),
            num_nextn_predict_layers=count(values, "num_nextn_predict_layers"),
            dtype=_dtype(values.get("dtype") or values.get("torch_dtype")),
        )


def _draft_vocab_size(values: Mapping[str, Any]) -> int | None:
    if values.get("draft_vocab_size") is None:
        return None
    part, whole = size(values, "draft_vocab_size"), size(values, "vocab_size")
    require(
        part <= whole,
        f"config.json: draft_vocab_size ({part}) must not be above vocab_size ({whole}).",
    )
    return part


def _num_layers(values: Mapping[str, Any]) -> int:
    found = size(values, "num_hidden_layers")
    require(
        found <= _MAX_LAYERS,
        f"config.json: num_hidden_layers must be at most {_MAX_LAYERS}, not {found}.",
    )
    return found


def _head_dim(values: Mapping[str, Any], num_heads: int) -> int:
    if values.get("head_dim") is not None:
        return size(values, "head_dim")
    hidden_size = size(values, "hidden_size")
    require(
        hidden_size % num_heads == 0,
        f"config.json: hidden_size ({hidden_size}) must be a multiple of num_attention_heads "
        f"({num_heads}) where head_dim is not given.",
    )
    return hidden_size // num_heads


def _dtype(given: object) -> torch.dtype:
    name = str(given or "float32").removeprefix("torch.")
    require(name in DTYPES, f"config.json: dtype {name!r} is not one of {', '.join(DTYPES)}.")
    return DTYPES[name]


def _rotary_layers(values: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    """SmolLM3: no_rope_layers holds 1 where a layer does rotate, by default all but every 4th."""
    if values["model_type"] != "smollm3":
        return (True,) * num_layers
    flags = values.get("no_rope_layers")
    if flags is None:
        interval = size(values, "no_rope_layer_interval")
        flags = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    return tuple(bool(flag) for flag in _per_layer(flags, num_layers, "no_rope_layers"))


def _windows(values: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    window = count(values, "sliding_window")
    if values["model_type"] == "mistral":
        return (window,) * num_layers
    window = window if flag(values, "use_sliding_window") else 0
    layer_types = values.get("layer_types")
    if layer_types is None:
        return tuple(window if slides else 0 for slides in _sliding_layers(values, num_layers))
    layer_types = _per_layer(layer_types, num_layers, "layer_types")
    for kind in layer_types:
        require(
            kind in ("full_attention", "sliding_attention"),
            f"config.json: layer type {kind!r} is not implemented.",
        )
        require(
            kind == "full_attention" or window > 0,
            "config.json: a layer is 'sliding_attention', but use_sliding_window or "
            "sliding_window is not set.",
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)


def _sliding_layers(values: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Which layers slide where layer_types does not say: Qwen's upper ones, SmolLM3's unrotated."""
    if values["model_type"] == "smollm3":
        return [not rotates for rotates in _rotary_layers(values, num_layers)]
    first = count(values, "max_window_layers")
    return [layer >= first for layer in range(num_layers)]


def _per_layer(found: object, num_layers: int, key: str) -> list[Any]:
    require(isinstance(found, list), f"config.json: {key} must be a list, not {found!r}.")
    assert isinstance(found, list)
    require(
        len(found) >= num_layers,
        f"config.json: {key} has {len(found)} entries for {num_layers} layers.",
    )
    return found[:num_layers]
