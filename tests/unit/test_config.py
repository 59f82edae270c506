"""Settings of the wrong type or size: a ValueError that names the setting, never another error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specfast.config import EngineConfig
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

NAN, INF = float("nan"), float("inf")
WRONG_TYPES = ["x", "", b"x", {"a": 1}, [None], object(), NAN, -INF]
NO_INTEGERS = [*WRONG_TYPES, True, False, 1.5, 10**30]
NO_FLAGS = [*WRONG_TYPES, None, 0, 1]
BASE = {SamplingParams: {}, SpeculativeConfig: {"method": "ngram"}, EngineConfig: {"model": "m"}}

WRONG = {
    (SamplingParams, "n"): [*NO_INTEGERS, None, 0, -1],
    (SamplingParams, "temperature"): [*WRONG_TYPES, None, True, -1, INF, 1e39],
    (SamplingParams, "top_p"): [*WRONG_TYPES, None, True, 0, 1.1],
    (SamplingParams, "min_p"): [*WRONG_TYPES, None, True, -0.1, 1.1],
    (SamplingParams, "top_k"): [*NO_INTEGERS, None, -2],
    (SamplingParams, "seed"): [*NO_INTEGERS, 2**64, -(2**63) - 1],
    (SamplingParams, "max_tokens"): [*NO_INTEGERS, 0],
    (SamplingParams, "stop"): [b"x", 0, 5, False, True, NAN, [""], ["a", 1], [None]],
    (SamplingParams, "stop_token_ids"): ["1", b"x", 0, 5, True, [-1], [1.5], ["a"], [True]],
    (SamplingParams, "ignore_eos"): NO_FLAGS,
    (SamplingParams, "skip_special_tokens"): NO_FLAGS,
    (SamplingParams, "include_stop_str_in_output"): NO_FLAGS,
    (SamplingParams, "speculative"): [*WRONG_TYPES, 1, {"num_speculative_tokens": True}],
    (SamplingParams, "label"): [b"x", "", 1, 1.5, True, NAN, ["x"], {"a": 1}, object(), "x" * 65],
    (SpeculativeConfig, "method"): [*WRONG_TYPES[1:], None, 1],
    (SpeculativeConfig, "num_speculative_tokens"): [*NO_INTEGERS, None, 0, 65],
    (SpeculativeConfig, "max_tree_nodes"): [*NO_INTEGERS, 4, 65],
    (SpeculativeConfig, "draft_dtype"): [*WRONG_TYPES, 1, "float16"],
    (SpeculativeConfig, "prompt_lookup_max"): [*NO_INTEGERS, 0, 257],
    (SpeculativeConfig, "prompt_lookup_min"): [*NO_INTEGERS, 0, 257],
    (SpeculativeConfig, "suffix_decoding_max_tree_depth"): [*NO_INTEGERS, 0, 8, 257],
    (SpeculativeConfig, "suffix_decoding_max_cached_requests"): [*NO_INTEGERS, -1],
    (SpeculativeConfig, "suffix_decoding_min_token_prob"): [*WRONG_TYPES, True, -0.1, 1.1],
    (SpeculativeConfig, "model"): [b"x", "", 1, 1.5, True, object()],
    (SpeculativeConfig, "verification"): [*WRONG_TYPES, None, True, "standard", "block"],
    (SpeculativeConfig, "rejection_rule"): [*WRONG_TYPES, True, "traversal"],
    (SpeculativeConfig, "typical_threshold"): [*WRONG_TYPES, True, 0, 1.1],
    (SpeculativeConfig, "typical_alpha"): [*WRONG_TYPES, True, 0, -0.3],
    (SpeculativeConfig, "policy"): [*WRONG_TYPES, None, True, "adaptive"],
    (SpeculativeConfig, "gate"): [
        *(*WRONG_TYPES, 1, True, {}, {"max_batch_size": 0}, {"max_batch_size": True}),
        {"max_batch_size": 4, "k": 1},
    ],
    (SpeculativeConfig, "num_speculative_tokens_per_batch_size"): [
        *(*WRONG_TYPES, 5, True, [], {}, [[1, 4]], [[0, 4, 1]], [[1, 4, 9]], [[1, 4, -1]]),
        *([[4, 1, 2]], [[1, 4, 2], [4, 8, 1]], [[1, 4.0, 2]], {"1-x": 2}, {"4-1": 2}, {"-3": 1}),
    ],
    (SpeculativeConfig, "ab_fraction"): [*WRONG_TYPES, None, True, 1, 1.5, -0.1],
    (SpeculativeConfig, "synthetic_acceptance"): [
        *(*WRONG_TYPES, True, 0.5, 9.5, [], [1.1], [0.5, 0.6], [-0.1], [True], [0.1] * 9, ["x"]),
    ],
    (EngineConfig, "model"): [*WRONG_TYPES[1:], None, 1],
    (EngineConfig, "max_model_len"): [*NO_INTEGERS, 0],
    (EngineConfig, "num_blocks"): [*NO_INTEGERS, 0],
    (EngineConfig, "max_num_seqs"): [*NO_INTEGERS, None, 0],
    (EngineConfig, "max_num_batched_tokens"): [*NO_INTEGERS, None, 0, 31],
    (EngineConfig, "block_size"): [*NO_INTEGERS, None, 0],
    (EngineConfig, "kv_cache_memory"): [*NO_INTEGERS, None, 0],
    (EngineConfig, "enable_prefix_caching"): NO_FLAGS,
    (EngineConfig, "speculative_config"): [*WRONG_TYPES, {}, 1, True],
}


@pytest.mark.parametrize("case", WRONG.items(), ids=lambda c: f"{c[0][0].__name__}.{c[0][1]}")
def test_wrong_values_are_refused_by_name(case):
    (cls, name), values = case
    for value in values:
        with pytest.raises(ValueError) as refusal:
            cls(**{**BASE[cls], name: value})
        word = "prompt_lookup_m" if name.startswith("prompt_lookup") else name
        assert word in str(refusal.value), value


def test_a_label_may_be_64_characters_long():
    assert SamplingParams(label="x" * 64).label == "x" * 64


def test_a_method_may_have_the_name_that_others_gave_it():
    assert SpeculativeConfig("eagle3") == SpeculativeConfig("eagle")
    assert SpeculativeConfig.from_dict({"method": "mimo_mtp"}).method == "mtp"


def test_an_unknown_parameter_is_a_value_error():
    with pytest.raises(ValueError, match="SamplingParams: unknown key 'temprature'; known are"):
        SamplingParams(temprature=1)
    with pytest.raises(TypeError):
        SamplingParams(1, n=1)


def test_lookups_in_the_wrong_order():
    with pytest.raises(ValueError, match="prompt_lookup_min=5 must not be above"):
        SpeculativeConfig("ngram", prompt_lookup_min=5, prompt_lookup_max=4)


RULES = {
    "rejection_rule": {"verification": "rejection", "rejection_rule": "token"},
    "typical_threshold": {"verification": "typical", "typical_threshold": 0.2},
    "typical_alpha": {"verification": "typical", "typical_alpha": 0.2},
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("rule", ["match", "rejection", "typical"])
def test_a_setting_of_another_rule_is_refused(name, rule):
    own = RULES[name]["verification"]
    values = {**RULES[name], "verification": rule}
    if rule == own:
        assert getattr(SpeculativeConfig("ngram", **values), name) == RULES[name][name]
        return
    with pytest.raises(ValueError, match=f"{name} does nothing with verification='{rule}'"):
        SpeculativeConfig("ngram", **values)


def test_a_rule_has_its_defaults():
    block = SpeculativeConfig("ngram", verification="rejection")
    assert block.rejection_rule == "block" and block.lossless
    typical = SpeculativeConfig("ngram", verification="typical")
    assert (typical.typical_threshold, typical.typical_alpha) == (0.09, 0.3)
    assert not typical.lossless
    plain = SpeculativeConfig("ngram")
    assert plain.rejection_rule is plain.typical_threshold is plain.typical_alpha is None


@pytest.mark.parametrize(
    "key, ours",
    [
        ("rejection_sample_method", "verification"),
        ("draft_sample_method", "verification"),
        ("acceptance_method", "verification"),
        ("posterior_threshold", "typical_threshold"),
        ("posterior_alpha", "typical_alpha"),
    ],
)
def test_other_engines_keys_are_answered_with_ours(key, ours):
    with pytest.raises(ValueError, match=f"{key!r} is {ours!r} here"):
        SpeculativeConfig.from_dict({"method": "ngram", key: "block"})


def test_numbers_of_numpy_become_pythons():
    params = SamplingParams(
        n=np.int64(2), temperature=np.float32(0.5), seed=np.uint64(7), stop_token_ids=[np.int32(3)]
    )
    assert params == SamplingParams(n=2, temperature=0.5, seed=7, stop_token_ids=[3])
    assert all(type(v) is int for v in (params.n, params.seed, *params.stop_token_ids))
    assert SamplingParams(speculative={"num_speculative_tokens": np.int64(1)}).speculation.enabled


def test_a_model_may_be_a_path():
    assert EngineConfig(Path("a/b")).model == "a/b"


@pytest.mark.parametrize(
    "table", [[[2, 4, 5], [9, 16, 2], [17, 64, 0]], {"2-4": 5, "9-16": 2, "17-64": 0}]
)
def test_k_by_batch_size_fills_gaps_with_what_is_before(table):
    config = SpeculativeConfig("ngram", num_speculative_tokens_per_batch_size=table)
    depths = {n: config.schedule.depth(n) for n in (1, 2, 4, 5, 8, 9, 16, 17, 64, 65, 1000)}
    assert depths == {1: 5, 2: 5, 4: 5, 5: 5, 8: 5, 9: 2, 16: 2, 17: 0, 64: 0, 65: 0, 1000: 0}


def test_a_gate_by_batch_size_is_a_schedule():
    schedule = SpeculativeConfig("ngram", 3, gate={"max_batch_size": 4}).schedule
    assert [schedule.depth(n) for n in (1, 4, 5, 999)] == [3, 3, 0, 0]
    assert SpeculativeConfig("ngram").schedule is None
    assert SpeculativeConfig("ngram", gate="auto").schedule is None
    with pytest.raises(ValueError, match="not both"):
        SpeculativeConfig(
            "ngram",
            gate={"max_batch_size": 4},
            num_speculative_tokens_per_batch_size=[[1, 2, 1]],
        )


@pytest.mark.parametrize("length", (1, 1.7, 3.0, 4.999, 5))
def test_synthetic_acceptance_by_length_is_an_even_rate(length):
    config = SpeculativeConfig("ngram", 4, synthetic_acceptance=length)
    rates = np.array(config.synthetic.per_pos)
    assert 1 + rates.sum() == pytest.approx(length, abs=1e-6) and len(rates) == 4
    np.testing.assert_allclose(rates, rates[0] ** np.arange(1, 5), atol=1e-9)
    assert not config.lossless


def test_synthetic_acceptance_replaces_verification():
    assert SpeculativeConfig("ngram", synthetic_acceptance=[0.8, 0.6]).synthetic.per_pos == (
        0.8,
        0.6,
    )
    assert SpeculativeConfig("ngram").synthetic is None
    with pytest.raises(ValueError, match="synthetic_acceptance stands in for verification"):
        SpeculativeConfig("ngram", verification="rejection", synthetic_acceptance=2)
