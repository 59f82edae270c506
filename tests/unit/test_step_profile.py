"""Steps are profiled in the pool's spare blocks, within a time, and kept on disk."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specfast import LLM, step_profile
from specfast.control.cost_profile import CostProfile
from specfast.sampling_params import SamplingParams
from specfast.step_profile import LONG_ROWS, ROWS, cost_profile, fingerprint, measure_profile
from tests.unit.test_engine import GREEDY, make_engine, run, target_stream, tokens
from tests.unit.toy_model import ToyModel

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, **GREEDY)
PROMPT = [3, 1, 4, 1, 5]


class Timed(ToyModel):
    """A step takes one second, and a tenth of one for each row, by a clock of its own."""

    def __init__(self, monkeypatch, scale=1.0):
        super().__init__()
        self.now, self.scale = 0.0, scale
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(step_profile, "time", clock)

    def forward_with_features(self, rows, kv_cache, layers):
        self.now += self.scale * (1 + 0.1 * len(rows.token_ids))
        return super().forward_with_features(rows, kv_cache, layers)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_rows_are_timed_and_the_pool_is_left_as_it_was(monkeypatch):
    model = Timed(monkeypatch)
    engine = make_engine(model=model, num_blocks=400, max_num_batched_tokens=200)
    before = run(engine, [PROMPT], PARAMS)
    blocks = engine.scheduler.blocks
    profile = measure_profile(engine, max_seconds=1e3)
    assert profile.rows == ROWS
    np.testing.assert_allclose(profile.seconds, 1 + 0.1 * np.array(ROWS))
    assert profile.context_seconds == profile.row_context_seconds == 0.0
    assert blocks.num_free_blocks == blocks.num_blocks
    engine.check_integrity()
    after = run(engine, [PROMPT], PARAMS)
    assert tokens(before) == tokens(after) == [[target_stream(PROMPT, PARAMS, 20)[len(PROMPT) :]]]
    assert engine.scheduler.stats.num_prefix_hit_tokens, "published blocks were not forgotten"


@pytest.mark.parametrize("num_blocks, rows", [(8, 8), (64, 32)])
def test_what_does_not_fit_the_pool_is_left_out(num_blocks, rows):
    engine = make_engine(num_blocks=num_blocks, max_num_batched_tokens=32)
    profile = measure_profile(engine)
    assert profile.rows[-1] <= rows and profile.rows[0] == 1
    assert engine.scheduler.blocks.num_free_blocks == num_blocks


@pytest.mark.parametrize("max_seconds, rows", [(1e3, ROWS), (8.0, ROWS[:4]), (0.1, ROWS[:1])])
def test_a_slow_target_gets_fewer_rows_and_rounds(max_seconds, rows, monkeypatch):
    model = Timed(monkeypatch)
    engine = make_engine(model=model, num_blocks=400, max_num_batched_tokens=200)
    assert measure_profile(engine, max_seconds).rows == rows
    slowest = 1 + 0.1 * ROWS[-1]
    assert model.now < max_seconds + slowest


def test_a_profile_is_measured_once(folder, monkeypatch):
    engine = make_engine()
    first = cost_profile(engine)
    (path,) = folder.rglob("*.json")
    assert path.stem == fingerprint(engine) and CostProfile.load(path) == first
    monkeypatch.setattr("specfast.step_profile.measure_profile", None)
    assert cost_profile(make_engine()) == first


def test_another_machine_or_target_has_another_profile(monkeypatch):
    engine = make_engine()
    names = {fingerprint(engine), fingerprint(make_engine(block_size=8))}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    names.add(fingerprint(engine))
    monkeypatch.setattr("specfast.step_profile.cpu_name", lambda: "another")
    names.add(fingerprint(engine))
    assert len(names) == 4


def test_a_spoilt_file_is_measured_again_and_said(folder, caplog):
    engine = make_engine()
    cost_profile(engine)
    (path,) = folder.rglob("*.json")
    path.write_text("{}")
    profile = cost_profile(engine)
    assert "measured again" in caplog.text and CostProfile.load(path) == profile


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECFAST_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO, "specfast"):
        assert cost_profile(make_engine()).rows[0] == 1
    assert "can't be kept" in caplog.text


@pytest.mark.parametrize("policy, knows", [("auto", True), ("fixed", False)])
def test_an_llm_knows_its_costs_from_the_start(policy, knows, folder):
    llm = LLM("tiny", speculative_config={"method": "ngram", "policy": policy})
    assert llm.engine.budget.cost.is_known == knows
    assert bool(list(folder.rglob("*.json"))) == knows
    assert set(LONG_ROWS) <= set(ROWS)
