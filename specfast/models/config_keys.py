"""Which keys of config.json each family reads, which change nothing, and which we refuse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ_BY_ALL = _words(
    "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta "
    "rope_scaling rope_parameters original_max_position_embeddings tie_word_embeddings "
    "bos_token_id eos_token_id dtype torch_dtype draft_vocab_size num_nextn_predict_layers"
)

# Training, tokenizer, generation and bookkeeping: none of them reaches the forward pass.
_NEUTRAL = _words(
    "architectures transformers_version transformers.js_config transformers_weights auto_map "
    "initializer_range attention_dropout embd_pdrop resid_pdrop attn_pdrop use_cache "
    "pretraining_tp pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id "
    "tokenizer_class prefix name_or_path is_llama_config is_decoder torchscript return_dict "
    "output_hidden_states output_attentions output_scores return_dict_in_generate use_bfloat16 "
    "chunk_size_feed_forward tie_encoder_decoder pruned_heads id2label label2id num_labels "
    "problem_type finetuning_task task_specific_params attn_implementation gradient_checkpointing "
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
    "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens tf_legacy_loss cross_attention_hidden_size unsloth_fixed "
    "unsloth_version max_sequence_length model_max_length specfast"
)

# These change the forward pass; the values listed are those that leave it as it is.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "compression_config": (),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "rope_interleaved": (False,),
    "partial_rotary_factor": (1.0,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "attention_chunk_size": (),
    "use_parallel_residual": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "layer_types": (),
    "no_rope_layers": (),
}

_WINDOWS = frozenset(("use_sliding_window", "sliding_window", "layer_types"))


@dataclass(frozen=True)
class Family:
    """One model type: transformers' defaults for absent keys, and what its code reads. o_bias:
    whether attention_bias is the output's too.
    """

    defaults: Mapping[str, Any]
    reads: frozenset[str] = frozenset()
    rope_theta: float = 10000.0
    qkv_bias: bool = False
    o_bias: bool = True
    qk_norm: bool = False


def _defaults(**own: Any) -> dict[str, Any]:
    return {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **own}


FAMILIES: dict[str, Family] = {
    "llama": Family(
        _defaults(max_position_embeddings=2048),
        frozenset(("attention_bias", "mlp_bias")),
    ),
    "mistral": Family(
        _defaults(max_position_embeddings=131072, num_key_value_heads=8, sliding_window=4096),
        frozenset(("sliding_window",)),
    ),
    "qwen2": Family(
        _defaults(max_position_embeddings=32768, num_key_value_heads=32, max_window_layers=28)
        | {"sliding_window": 4096},
        _WINDOWS | {"max_window_layers"},
        qkv_bias=True,
    ),
    "mimo": Family(  # Qwen2's decoder with MTP blocks
        _defaults(max_position_embeddings=32768, num_key_value_heads=8, max_window_layers=36),
        _WINDOWS | {"max_window_layers", "attention_bias"},
        qkv_bias=True,
        o_bias=False,
    ),
    "qwen3": Family(
        _defaults(max_position_embeddings=32768, num_key_value_heads=32, max_window_layers=28)
        | {"sliding_window": 4096, "head_dim": 128},
        _WINDOWS | {"max_window_layers", "attention_bias"},
        qk_norm=True,
    ),
    "smollm3": Family(
        _defaults(max_position_embeddings=32768, num_key_value_heads=4, no_rope_layer_interval=4)
        | {"tie_word_embeddings": True},
        _WINDOWS | {"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"},
        rope_theta=2000000.0,
    ),
}


def check_keys(config: Mapping[str, Any], family: Family) -> None:
    """Refuses by name what would change the forward pass and isn't implemented; warns of others."""
    unknown = []
    for key, value in config.items():
        if key in _READ_BY_ALL or key in family.reads or key in _NEUTRAL or key.startswith("_"):
            continue
        if key not in _REFUSED:
            unknown.append(key)
        elif not _harmless(key, value):
            raise ValueError(
                f"config.json: {key} = {value!r} changes the forward pass and is not implemented "
                f"for model type {config['model_type']!r}."
            )
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        warnings.warn(f"config.json: unknown keys ignored: {names}.", stacklevel=4)


def _harmless(key: str, value: Any) -> bool:
    if value is None or value in _REFUSED[key]:
        return True
    if key == "layer_types":
        return isinstance(value, list) and all(kind == "full_attention" for kind in value)
    return key == "no_rope_layers" and isinstance(value, list) and all(value)
