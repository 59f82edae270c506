"""An EAGLE-3 head as it is saved: the published layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specfast.models.config import ModelConfig
from specfast.models.rope import Rope
from specfast.train.eagle_head import EagleHead
from specfast.train.eagle_settings import EagleSettings
from specfast.validation import require

_ROPE_VALUES = {
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
}


def head_decoder(target: ModelConfig, settings: EagleSettings) -> ModelConfig:
    """The one layer's shape: the target's but for what the settings say."""
    size = settings.draft_vocab_size
    return replace(
        target,
        num_layers=1,
        windows=(0,),
        rotary_layers=(True,),
        intermediate_size=settings.intermediate_size,
        num_kv_heads=settings.num_kv_heads,
        draft_vocab_size=size if 0 < size < target.vocab_size else None,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


def head_json(decoder: ModelConfig, settings: EagleSettings) -> dict[str, Any]:
    """config.json, in the published layout."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": decoder.vocab_size,
        "draft_vocab_size": decoder.head_size,
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": decoder.max_position_embeddings,
        "rms_norm_eps": decoder.rms_norm_eps,
        **rope_json(decoder.rope),
        "norm_before_residual": settings.norm_before_residual,
        "norm_output": settings.norm_output,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(settings.layers),
            "use_aux_hidden_state": True,
        },
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def rope_json(rope: Rope) -> dict[str, Any]:
    """What Rope.from_hf reads back."""
    require(not rope.freq_factors, "config.json can't say this GGUF target's rotary factors.")
    if rope.kind == "default":
        return {"rope_theta": rope.theta}
    scaling: dict[str, Any] = {
        "rope_type": rope.kind,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_positions,
    }
    scaling |= {name: getattr(rope, name) for name in _ROPE_VALUES.get(rope.kind, ())}
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def head_tensors(head: EagleHead, d2t: Tensor | None, vocab_size: int) -> dict[str, Tensor]:
    """What model.safetensors holds. The maps are the published ones: d2t says how far a row's token
    lies from the row, t2d which tokens have one.
    """
    tensors = head.tensors(torch.bfloat16)
    if d2t is not None:
        t2d = torch.zeros(vocab_size, dtype=torch.bool)
        t2d[d2t.long()] = True
        tensors |= {"d2t": d2t.long() - torch.arange(len(d2t)), "t2d": t2d}
    return tensors
