from __future__ import annotations

import warnings

import pytest
import torch

from specfast.models.config import ModelConfig
from specfast.models.rope import Rope
from tests.unit.tiny_models import FAMILIES, SIZES

BASE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def read(**overrides):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ModelConfig.from_hf(BASE | overrides)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_configs_are_read_without_a_warning(family, tmp_path):
    config_class, overrides = FAMILIES[family]
    config = config_class(**(SIZES | overrides))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = ModelConfig.from_hf(config.to_dict())
        assert ModelConfig.from_hf(config.to_diff_dict() | {"model_type": full.model_type}) == full
    assert full.num_layers == 4


def test_defaults_of_absent_keys():
    llama = read()
    assert (llama.num_kv_heads, llama.head_dim, llama.max_position_embeddings) == (4, 16, 2048)
    assert llama.rope == Rope(theta=10000.0, original_max_positions=2048)
    assert not (llama.tie_word_embeddings or llama.qkv_bias or llama.o_bias or llama.qk_norm)
    mistral = read(model_type="mistral", num_key_value_heads=2)
    assert mistral.windows == (4096,) * 4
    qwen2 = read(model_type="qwen2", num_key_value_heads=2)
    assert qwen2.qkv_bias and not qwen2.o_bias and qwen2.windows == (0,) * 4
    qwen3 = read(model_type="qwen3", num_key_value_heads=2)
    assert qwen3.qk_norm and qwen3.head_dim == 128 and not qwen3.qkv_bias
    smollm3 = read(model_type="smollm3")
    assert smollm3.rotary_layers == (True, True, True, False)
    assert smollm3.tie_word_embeddings and smollm3.rope.theta == 2000000.0


def test_null_window_is_no_window():
    assert (
        read(model_type="mistral", num_key_value_heads=2, sliding_window=None).windows == (0,) * 4
    )


def test_windows_of_upper_layers():
    windows = read(
        model_type="qwen2",
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=3,
    ).windows
    assert windows == (0, 0, 0, 32)


SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "old, new",
    [
        ({"rope_theta": 500.0}, {"rope_theta": 500.0, "rope_type": "default"}),
        (
            {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0},
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {"rope_type": "llama3", **SCALED}
                | {"original_max_position_embeddings": 64},
            },
            {"rope_theta": 5e5, "rope_type": "llama3", **SCALED}
            | {"original_max_position_embeddings": 64},
        ),
        ({"torch_dtype": "bfloat16"}, {"rope_theta": 10000.0, "rope_type": "default"}),
    ],
)
def test_both_spellings_of_transformers(old, new):
    dtype = {"dtype": old["torch_dtype"]} if "torch_dtype" in old else {}
    assert read(**old, rope_parameters=None) == read(
        rope_parameters=new, rope_scaling=None, **dtype
    )


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_rescales_by_length_is_refused(kind):
    with pytest.raises(ValueError, match=f"'{kind}' rescales by the current length"):
        read(rope_scaling={"type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    "overrides, named",
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"torch_dtype": "float8"}, "float8"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers"),
        ({"model_type": "qwen2", "attention_bias": True}, "attention_bias"),
        ({"model_type": "mistral", "mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"type": "linear"}}, "'factor'"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}},
            "mrope_section",
        ),
        ({"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1]}, "no_rope_layers"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4},
            "use_sliding_window",
        ),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(overrides, named):
    overrides = {"num_key_value_heads": 2} | overrides
    with pytest.raises(ValueError, match=named):
        read(**overrides)


@pytest.mark.parametrize(
    "harmless",
    [
        {"rope_interleaved": False, "is_llama_config": True},
        {"quantization_config": None, "final_logit_softcapping": None},
        {"sliding_window": None, "layer_types": ["full_attention"] * 4},
        {"pretraining_tp": 4, "_name_or_path": "x", "attention_dropout": 0.1},
        {"rope_scaling": {"type": "default"}},
    ],
)
def test_neutral_keys_and_values_pass(harmless):
    assert read(**harmless) == read()


def test_unknown_keys_warn_once_by_name():
    with pytest.warns(UserWarning) as caught:
        ModelConfig.from_hf(BASE | {"frobnicate": 1, "brand_new": 2})
    assert len(caught) == 1
    assert "'brand_new', 'frobnicate'" in str(caught[0].message)


def test_rope_table_is_cos_then_sin():
    table = Rope(theta=100.0).table(5, 4)
    angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
    torch.testing.assert_close(table, torch.cat([angles.cos(), angles.sin()], 1))
    assert Rope(theta=100.0, attention_factor=2.0).table(5, 4)[0].tolist() == [2.0, 2.0, 0.0, 0.0]


def test_freq_factors_divide():
    plain, slowed = Rope(theta=100.0), Rope(theta=100.0, freq_factors=(1.0, 4.0))
    assert torch.equal(
        slowed.inverse_frequencies(4) * torch.tensor([1.0, 4.0]), plain.inverse_frequencies(4)
    )


NO_SIZE = (0, -1, 1.5, True, "7", [], {}, [1], float("nan"), float("inf"), 2**63)
NO_NUMBER = (0, -0.5, True, "7", [], {}, [1], float("nan"), float("inf"))
NO_FLAG = (0, 1, "true", [], {})
NO_OBJECT = (1, "x", True, [1])
SIZES_OF = (
    "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "draft_vocab_size",
)  # fmt: skip
WRONG = {
    **dict.fromkeys(SIZES_OF, NO_SIZE),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), NO_NUMBER),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), NO_FLAG),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), NO_OBJECT),
    "num_nextn_predict_layers": (-1, 1.5, "1", [1], True),
    "model_type": ([], {}, 1, "", None),
    "dtype": (1, [1], "int8"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_value_of_a_wrong_kind_is_refused_by_its_key(key):
    for value in WRONG[key]:
        with pytest.raises(ValueError, match=key.partition("_type")[0]):
            read(**{key: value})


@pytest.mark.parametrize("key", ["factor", "rope_theta", "beta_fast", "attention_factor", "mscale"])
def test_a_rope_of_wrong_numbers_is_refused_by_its_key(key):
    yarn = {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    for value in (-1.0, "2", True, [2], float("nan"), float("inf")):
        with pytest.raises(ValueError, match=key):
            read(rope_scaling={**yarn, key: value})


@pytest.mark.parametrize("key", ["layer_types", "no_rope_layers", "sliding_window"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3"])
def test_layers_told_by_no_list_are_refused(key, family):
    for value in (1, True, "x", {"a": 1}):
        if key == "sliding_window" and value == 1:
            continue
        if key == "no_rope_layers" and family == "qwen3":
            continue
        with pytest.raises(ValueError, match=key):
            read(model_type=family, num_key_value_heads=2, **{key: value})


def test_more_layers_than_any_model_has():
    with pytest.raises(ValueError, match="num_hidden_layers must be at most 4096"):
        read(num_hidden_layers=2**30)
