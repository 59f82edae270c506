"""The exposition, parsed by prometheus_client's own parser and compared with the counters."""

import random
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specfast.control.cost_profile import CostProfile
from specfast.intervals import Interval
from specfast.llm import LLM
from specfast.prometheus import exposition
from specfast.sampling_params import SamplingParams
from specfast.warning_signs import SIGNS
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer

SPECULATION = "specfast:spec_decode_num_"
SHARED = {  # with vLLM, llama.cpp and LMDeploy, but for the prefix
    *(f"{SPECULATION}drafts_total", f"{SPECULATION}draft_tokens_total"),
    f"{SPECULATION}accepted_tokens_total",
}


def samples(text):
    """{(name, labels besides model_name and method): value}"""
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            own = {k: v for k, v in s.labels.items() if k not in ("model_name", "method")}
            key = (s.name, *own.values())
            assert key not in found, f"{key} twice"
            found[key] = s.value
    return found


@pytest.fixture(scope="module")
def engine():
    params = [
        SamplingParams(max_tokens=20, ignore_eos=True, label=label, **GREEDY)
        for label in (None, "code", "chat")
    ]
    prompts = prompts_of(random.Random(9), 3)
    streams = {tuple(p): target_stream(p, params[0], 20) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong=1, miss=0.3), k=3)
    run(engine, prompts, params)
    return engine


def test_values_are_the_counters(engine):
    s, found = engine.metrics.stats, samples(exposition(engine))
    assert found[f"{SPECULATION}drafts_total",] == s.num_drafts > 5
    assert found[f"{SPECULATION}draft_tokens_total",] == s.num_draft_tokens > s.num_drafts
    assert found[f"{SPECULATION}draft_positions_total",] == s.num_draft_positions
    assert found[f"{SPECULATION}accepted_tokens_total",] == s.num_accepted_tokens > 5
    assert found[f"{SPECULATION}emitted_tokens_total",] == s.num_drafted_emitted_tokens
    assert found[f"{SPECULATION}sequence_steps_total",] == s.num_sequence_steps
    assert found[f"{SPECULATION}gated_steps_total",] == s.num_gated_steps
    assert found[f"{SPECULATION}rollbacks_total",] == s.num_rollbacks > 0
    assert found[f"{SPECULATION}rolled_back_tokens_total",] == s.num_rolled_back_tokens > 0
    per_pos = [found[f"{SPECULATION}accepted_tokens_per_pos_total", str(i)] for i in range(3)]
    assert per_pos == list(s.num_accepted_per_pos)
    depths = [found[f"{SPECULATION}steps_per_depth_total", str(i)] for i in range(4)]
    assert depths == list(s.k_chosen) and sum(depths) == s.num_sequence_steps
    assert found["specfast:generation_tokens_total",] == 60 == s.num_emitted_tokens
    assert found["specfast:engine_steps_total",] == s.num_steps
    assert found["specfast:step_seconds_total",] == s.step_seconds
    assert 0 < found["specfast:draft_seconds_total",] == s.propose_seconds
    assert found["specfast:e2e_request_latency_seconds_count",] == 3
    assert found["specfast:time_to_first_token_seconds_bucket", "+Inf"] == 3
    total = engine.latencies.e2e_request_latency.total
    assert found["specfast:e2e_request_latency_seconds_sum",] == total


def test_by_proposer_and_by_label(engine):
    s, found = engine.metrics.stats, samples(exposition(engine))
    for name in ("drafts", "draft_tokens", "draft_positions", "accepted_tokens"):
        whole = getattr(s, f"num_{name}")
        assert found[f"{SPECULATION}{name}_by_proposer_total", "test"] == whole
        parts = [found[f"{SPECULATION}{name}_by_label_total", x] for x in ("none", "code", "chat")]
        assert sum(parts) == whole and all(parts)
    emitted = f"{SPECULATION}emitted_tokens_by_label_total"
    by_label = [value for key, value in found.items() if key[0] == emitted]
    assert by_label == [20, 20, 20]


def test_the_shared_names_are_spelt_exactly_and_labelled(engine):
    text = exposition(engine, model_name="served")
    lines = text.splitlines()
    for name in SHARED:
        assert f"# TYPE {name} counter" in lines
        start = f'{name}{{method="test",model_name="served"}} '
        assert [line for line in lines if line.startswith(start)]
    name = f"{SPECULATION}accepted_tokens_per_pos_total"
    assert any(line.startswith(f"{name}{{") and 'position="0"' in line for line in lines)
    assert all("model_name=" in line for line in lines if not line.startswith("#"))
    assert 'model_name="toy"' in exposition(engine)


def test_all_are_there_as_zero_without_speculation():
    engine = make_engine()
    run(engine, [[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True, **GREEDY))
    text = exposition(engine)
    found = samples(text)
    assert {found[name,] for name in SHARED} == {0}
    assert found[f"{SPECULATION}accepted_tokens_per_pos_total", "0"] == 0
    assert found[f"{SPECULATION}gated_steps_total",] == 0
    assert found["specfast:generation_tokens_total",] == 4
    assert 'method="none"' in text


def test_the_engines_state_is_read_at_the_scrape():
    engine = make_engine(num_blocks=16, max_num_seqs=1)
    prompt = list(range(1, 14))
    for _ in range(2):
        engine.add_request(prompt, SamplingParams(max_tokens=9, ignore_eos=True, **GREEDY))
    engine.step()
    found = samples(exposition(engine))
    assert found["specfast:num_requests_running",] == found["specfast:num_requests_waiting",] == 1
    assert found["specfast:kv_cache_usage_perc",] == 4 / 16
    assert found["specfast:kv_cache_max_usage_perc",] == 4 / 16
    while engine.has_unfinished:
        engine.step()
    found = samples(exposition(engine))
    assert found["specfast:num_requests_running",] == found["specfast:kv_cache_usage_perc",] == 0
    assert found["specfast:kv_cache_max_usage_perc",] == 6 / 16, (
        "13 + 8 tokens; the last is in none"
    )
    assert found["specfast:prefix_cache_queries_total",] == 26
    assert found["specfast:prefix_cache_hits_total",] == 12
    assert found["specfast:num_preemptions_total",] == 0


def test_warning_signs_and_the_measured_speed(engine):
    before = samples(exposition(engine))
    assert {before["specfast:warning_sign", sign.name] for sign in SIGNS} == {0}
    assert ("specfast:effective_speedup",) not in before
    engine.warning_signs.seen.append("draft_time")
    engine.metrics.speedups = SimpleNamespace(effective_speedup=Interval(1.5, 1.25, 1.75))
    found = samples(exposition(engine))
    assert [s.name for s in SIGNS if found["specfast:warning_sign", s.name]] == ["draft_time"]
    speeds = [found[f"specfast:effective_speedup{bound}",] for bound in ("", "_low", "_high")]
    assert speeds == [1.5, 1.25, 1.75]


LEARNT = [[1, 2, 3], [4, 5]], SamplingParams(max_tokens=40, ignore_eos=True, **GREEDY)


def learning_engine():
    """Chooses drafts by what it learnt of them."""
    streams = {tuple(p): target_stream(p, LEARNT[1], 40) for p in LEARNT[0]}
    engine = make_engine(TreeProposer(streams, wrong=0, miss=0.2), policy="auto")
    engine.budget.know(CostProfile((1, 64), (1.0, 1.1)))
    return engine


def test_the_calibration_error_is_there_once_it_is_known():
    gauge = ("specfast:calibration_error",)
    engine = learning_engine()
    assert gauge not in samples(exposition(engine)), "nothing was learnt yet"
    run(engine, *LEARNT)
    error = engine.metrics.calibration_error
    assert samples(exposition(engine))[gauge] == error == engine.budget.calibration_error > 0
    engine.metrics.calibration = SimpleNamespace(calibration_error=0.0)
    assert samples(exposition(engine))[gauge] == 0.0, "none at all is known too"
    assert gauge not in samples(exposition(make_engine()))


def test_the_offline_api_shows_it():
    llm = object.__new__(LLM)
    llm.engine = make_engine()
    assert "specfast:engine_steps_total" in llm.prometheus_metrics()
