"""A GGUF file seen as a Hugging Face checkpoint: its config, tensor names and row order."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from specfast.models.config import ModelConfig
from specfast.models.gguf import GgufFile

# ggml rotates neighbouring rows of q and k in these; Hugging Face rotates halves.
_INTERLEAVED = ("llama", "smollm3")
_ARCHITECTURES = (*_INTERLEAVED, "qwen2", "qwen3")
_EXACT_IN_FLOAT32 = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}
_NOT_QUANTISED = _EXACT_IN_FLOAT32 | {GGMLQuantizationType.BF16}
_LLAMA3_FACTORS = "rope_freqs.weight"

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_ROPE_KEYS = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_NEUTRAL = (
    "vocab_size", "rope.dimension_count", "rope.scaling.finetuned", "rope.scaling.attn_factor",
    "attention.value_length", "attention.sliding_window", "expert_count",
    "expert_used_count", "attention.causal",
)  # fmt: skip
_FORWARD_PREFIXES = (
    "attention", "attn", "rope", "expert", "moe", "logit_scale", "final_logit", "residual_scale",
    "embedding_scale", "use_parallel_residual", "tensor_data_layout", "nextn", "leading_dense",
)  # fmt: skip


class GgufCheckpoint:
    """Tensors by Hugging Face's names, q and k rows in Hugging Face's order.

    dtype: bfloat16 for quantised matrices, whose blocks of a few bits we don't compute with.
    """

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._interleaved = file.metadata["general.architecture"] in _INTERLEAVED
        self._stored = {hf_name(name): name for name in file.tensors if name != _LLAMA3_FACTORS}
        kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) == 2}
        self.dtype = torch.float32 if kinds <= _EXACT_IN_FLOAT32 else torch.bfloat16
        self.is_quantised = not kinds <= _NOT_QUANTISED
        self.shapes = {name: file.tensors[own].shape for name, own in self._stored.items()}

    def tensor(self, name: str) -> Tensor:
        values = self._file.tensor(self._stored[name])
        heads = {"q_proj": self._config.num_heads, "k_proj": self._config.num_kv_heads}
        for part, num_heads in heads.items():
            if self._interleaved and f".{part}." in name:
                return _halves(values, num_heads)
        return values


def gguf_config(file: GgufFile) -> ModelConfig:
    """ModelConfig from the metadata. ValueError for an architecture or key we don't implement."""
    arch = file.metadata.get("general.architecture")
    if arch not in _ARCHITECTURES:
        raise ValueError(
            f"{file.path}: architecture {arch!r} is not supported; supported are "
            f"{', '.join(_ARCHITECTURES)}."
        )
    own = {
        key.removeprefix(f"{arch}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{arch}.")
    }
    _require(file, own)
    _check_keys(file, own)
    values = {hf: own[key] for key, hf in _KEYS.items() if key in own}
    values["model_type"] = arch
    values["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    values["rope_parameters"] = _rope_parameters(own)
    values["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    if arch in _INTERLEAVED:
        values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        values["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    if own.get("attention.sliding_window"):
        values |= {"model_type": "mistral", "sliding_window": own["attention.sliding_window"]}
    return _with_factors(ModelConfig.from_hf(values), file)


def hf_name(name: str) -> str:
    """blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight; unknown names stay."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _PER_LAYER:
        return f"model.layers.{parts[1]}.{_PER_LAYER[parts[2]]}.{parts[3]}"
    return name


def _require(file: GgufFile, own: dict[str, Any]) -> None:
    for key in ("embedding_length", "attention.head_count", "block_count", "feed_forward_length"):
        if key not in own:
            raise ValueError(f"{file.path}: the metadata lacks {key}.")
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} has no tensor 'token_embd.weight'.")


def _check_keys(file: GgufFile, own: dict[str, Any]) -> None:
    only = _only_values(file, own)
    unknown = []
    for key, value in own.items():
        known = key in _KEYS or key in _ROPE_KEYS or key in _NEUTRAL
        is_known_value = value == only.get(key, value)
        if not is_known_value or not known and key.startswith(_FORWARD_PREFIXES):
            raise ValueError(
                f"{file.path}: metadata {key} = {value!r} changes the forward pass and is not "
                "implemented."
            )
        if not known:
            unknown.append(key)
    if unknown:
        warnings.warn(f"{file.path}: unknown metadata ignored: {sorted(unknown)}.", stacklevel=3)


def _only_values(file: GgufFile, own: dict[str, Any]) -> dict[str, Any]:
    """Keys that we implement at one value alone."""
    hidden_size, num_heads = own["embedding_length"], own["attention.head_count"]
    head_dim = own.get("attention.key_length", hidden_size // num_heads)
    values = {
        "rope.dimension_count": head_dim,
        "attention.value_length": head_dim,
        "rope.scaling.attn_factor": 1.0,
        "attention.causal": True,
        "expert_count": 0,
        "expert_used_count": 0,
    }
    if file.metadata["general.architecture"] != "llama":
        values["attention.sliding_window"] = 0
    return values


def _rope_parameters(own: dict[str, Any]) -> dict[str, Any]:
    values = {hf: own[key] for key, hf in _ROPE_KEYS.items() if key in own}
    if values.get("rope_type", "none") == "none":
        return {}
    return values


def _with_factors(config: ModelConfig, file: GgufFile) -> ModelConfig:
    """Llama 3's scaling comes as one divisor a frequency."""
    if _LLAMA3_FACTORS not in file.tensors:
        return config
    factors = file.tensor(_LLAMA3_FACTORS)
    if factors.shape != (config.head_dim // 2,):
        raise ValueError(
            f"{file.path}: tensor {_LLAMA3_FACTORS!r} has shape {list(factors.shape)}, but the "
            f"metadata implies [{config.head_dim // 2}]."
        )
    return replace(config, rope=replace(config.rope, freq_factors=tuple(factors.tolist())))


def _halves(weight: Tensor, num_heads: int) -> Tensor:
    """Rows (or bias elements) of each head from interleaved pairs to two halves."""
    pairs = weight.unflatten(0, (num_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2).contiguous()
