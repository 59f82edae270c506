"""Tiny models of every family, with transformers' own code as the oracle for their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from specfast.models.config import ModelConfig
from specfast.models.decoder import Model
from specfast.models.rows import Rows
from specfast.models.weights import read_weights

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BLOCK_SIZE = 4


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    scaled = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    return {"rope_parameters": scaled | values}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ORIGINAL = {"original_max_position_embeddings": 32}

FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama2": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama3": (LlamaConfig, _rope("llama3", **_LLAMA3, **_ORIGINAL)),
    "llama_linear": (LlamaConfig, _rope("linear")),
    "llama_yarn": (LlamaConfig, _rope("yarn", **_ORIGINAL)),
    "llama_yarn_scaled": (
        LlamaConfig,
        _rope("yarn", beta_fast=16.0, beta_slow=2.0, mscale=0.8, mscale_all_dim=0.4, truncate=False)
        | {"max_position_embeddings": 64},
    ),
    "llama_biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama_tied": (LlamaConfig, {"tie_word_embeddings": True, "head_dim": 32}),
    "mistral": (MistralConfig, {"sliding_window": 7}),
    "qwen2": (Qwen2Config, {}),
    "qwen2_windows": (
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": (Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_windows": (
        Qwen3Config,
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "smollm3": (SmolLM3Config, {}),
    "smollm3_windows": (
        SmolLM3Config,
        {
            "no_rope_layers": [1, 0, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 7,
            "tie_word_embeddings": False,
        },
    ),
}


class DictCheckpoint:
    """A state dict as the loader sees a checkpoint."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.shapes = {name: tuple(t.shape) for name, t in tensors.items()}
        self.dtype = next(iter(tensors.values())).dtype

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


def oracle(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """transformers' model in float32, every parameter random and a value of dtype."""
    config_class, overrides = FAMILIES[family]
    config = config_class(**(SIZES | overrides), attn_implementation="eager")
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
            parameter.copy_(parameter.to(dtype))
    return model


def native(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Model:
    """Our decoder with the same weights."""
    config = replace(ModelConfig.from_hf(model.config.to_dict()), dtype=dtype)
    return Model(config, read_weights(config, DictCheckpoint(dict(model.state_dict()))))


def new_cache(model: Model, num_blocks: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    c = model.config
    return torch.zeros(
        c.num_layers, 2, num_blocks, BLOCK_SIZE, c.num_kv_heads, c.head_dim, dtype=dtype
    )


def tail_rows(token_ids: Sequence[int], start: int, blocks: Sequence[int]) -> Rows:
    """One sequence's tokens from position `start` on, its KV in these blocks."""
    positions = torch.arange(start, start + len(token_ids))
    table = torch.tensor(blocks)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    end = start + len(token_ids)
    return Rows(
        token_ids=torch.tensor(token_ids, dtype=torch.int32),
        positions=positions.int(),
        slots=slots,
        node_bits=torch.zeros(len(token_ids), dtype=torch.int64),
        status=torch.zeros(len(token_ids), dtype=torch.int32),
        qo_indptr=torch.tensor([0, len(token_ids)], dtype=torch.int32),
        block_tables=table.int()[None],
        node_base=torch.tensor([end], dtype=torch.int32),
        kv_start=torch.zeros(1, dtype=torch.int32),
    )


def prefill(
    model: Model, token_ids: Sequence[int], chunks: Sequence[int], blocks: Sequence[int]
) -> Tensor:
    """Logits [len(token_ids), V] of a text computed in chunks of these sizes."""
    cache, start, logits = new_cache(model, max(blocks) + 1), 0, []
    for size in chunks:
        rows = tail_rows(token_ids[start : start + size], start, blocks)
        hidden = model.forward(rows, cache)
        logits.append(model.logits(hidden, torch.arange(size)).clone())
        start += size
    assert start == len(token_ids)
    return torch.cat(logits)
