"""specfast bench over a bookkeeping target: keys, honesty about differences, pictures."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from specfast import cli
from specfast.bench import BenchSettings, run_bench
from specfast.config import EngineConfig
from specfast.data import Prompt
from specfast.measure import EngineArm, Sample, Task
from specfast.sampling_params import SamplingParams
from specfast.scheduler import Scheduler
from specfast.speculative_config import SpeculativeConfig
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer

PROMPTS = [
    Prompt("one", "prose", ("abcabcabc",)),
    Prompt("two", "code_editing", ("xyxyxy", "again")),
]


@dataclass(frozen=True)
class BenchConfig(ToyConfig):
    max_position_embeddings: int = 1024
    dtype: torch.dtype = torch.float32


class BenchModel(ToyModel):
    weights = SimpleNamespace(arena=torch.zeros(2**14))


class BenchTokenizer(ToyTokenizer):
    has_chat_template = True

    def chat_prompt(self, messages, add_generation_prompt=True):
        for i, message in enumerate(messages):
            if message["role"] != ("user", "assistant")[i % 2]:
                raise ValueError("Roles must alternate.")
        return "".join(m["content"] for m in messages) + ":"

    def encode_chat(self, messages):
        return self.encode(self.chat_prompt(messages), add_special_tokens=False)


def load(model, dtype):
    return BenchModel(BenchConfig(), order=1), BenchTokenizer()


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr("specfast.bench.load", load)


def bench(**changes):
    config = EngineConfig("toy", num_blocks=128, speculative_config=SpeculativeConfig("ngram"))
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    return run_bench(BenchSettings(config, params, **changes), PROMPTS)


def test_report_has_what_the_measures_refer_to():
    value = json.loads(json.dumps(bench().to_dict(), default=str))
    assert value["identical"] is True
    ratios = value["ratios"]
    assert ratios["plain_vs_transformers"] is None, "nothing was compared"
    assert ratios["plain_fp32_vs_transformers_fp32"] is None
    for name in ("spec_vs_plain", "rows5_vs_rows1", "bandwidth_share"):
        assert ratios[name] > 0
    assert set(ratios["spec_vs_plain_by_category"]) == {"prose", "code_editing", "copy_heavy"}
    low, high = value["intervals"]["spec_vs_plain"]
    assert low <= ratios["spec_vs_plain"] <= high
    assert value["arms"]["speculative"]["acceptance_length"] > 1
    assert value["arms"]["plain"]["by_category"]["prose"]["num_tokens"] == 40


def test_each_turn_is_a_task_with_the_plain_answer_before_it():
    report = bench()
    assert [t.id for t in report.comparison.tasks] == ["one", "two/1", "two/2"]
    first, second = report.comparison.tasks[1:]
    answer = report.comparison.samples["plain"][1][0].token_ids
    text = BenchTokenizer().decode(answer)
    expected = BenchTokenizer().encode(f"xyxyxy{text}again:")
    assert list(second.prompt_token_ids) == expected


def test_a_base_model_gets_the_bare_text(monkeypatch):
    monkeypatch.setattr(BenchTokenizer, "has_chat_template", False)
    task = bench().comparison.tasks[0]
    assert list(task.prompt_token_ids) == BenchTokenizer().encode("abcabcabc")


def test_different_outputs_are_said(monkeypatch):
    commit = Scheduler._commit_tokens

    def wrong(self, seq, row, proposal, result):
        if proposal.lengths[row]:
            result.next_tokens[row] = 1
        return commit(self, seq, row, proposal, result)

    monkeypatch.setattr(Scheduler, "_commit_tokens", wrong)
    report = bench()
    assert report.differing == ["one", "two/1", "two/2"]
    assert report.to_dict()["identical"] is False


def test_proposer_and_prefix_cache_are_empty_at_each_answer():
    spec = SpeculativeConfig("ngram", policy="fixed")
    config = EngineConfig("toy", num_blocks=128, speculative_config=spec)
    from specfast.engine import Engine
    from specfast.proposers.registry import make_proposer
    from specfast.proposers.target import Target

    model, tokenizer = BenchModel(BenchConfig(), order=1), BenchTokenizer()
    proposer = make_proposer(Target(model, tokenizer, config))
    engine = Engine(model, tokenizer, config, proposer)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    arm = EngineArm("a", engine, params)
    task = Task("t", "c", tuple(range(1, 39)))
    first, second = arm.answer(task), arm.answer(task)
    assert engine.scheduler.stats.num_prefix_hit_tokens == 0
    assert first.token_ids == second.token_ids
    assert first.stats.num_draft_tokens == second.stats.num_draft_tokens > 0
    assert isinstance(first, Sample) and list(first.times) == sorted(first.times)


def test_a_model_that_fails_is_said(monkeypatch):
    def no_number(self, hidden, index):
        return ToyModel.logits(self, hidden, index) * float("nan")

    monkeypatch.setattr(BenchModel, "logits", no_number)
    with pytest.raises(ValueError, match="No speed can be measured: .* not a number"):
        bench()


def test_a_prompt_that_cannot_be_served_is_named():
    long = [Prompt("long", "prose", ("x" * 2000,))]
    config = EngineConfig("toy", num_blocks=128, speculative_config=SpeculativeConfig("ngram"))
    settings = BenchSettings(config, SamplingParams(max_tokens=4))
    with pytest.raises(ValueError, match="Prompt long: The prompt has 2001 tokens"):
        run_bench(settings, long)


def test_command_writes_tables_json_and_picture(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    data = tmp_path / "mine.jsonl"
    data.write_text('{"category": "rag", "turns": ["abcabc"]}\n{"turns": ["de"]}\n')
    report, picture = tmp_path / "r.json", tmp_path / "p.png"
    arguments = ["bench", "toy", "--dataset", data, "--ignore-eos", "--max-tokens", 30]
    arguments += ["--kv-cache-memory", 2**14, "--json", report, "--plot", picture]
    code = cli.run([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "Outputs are the same bytes with speculation on and off." in out
    assert "These prompts are too few for a verdict." in out
    assert {"rag", "mine", "copy_heavy"} == set(
        json.loads(report.read_text())["ratios"]["spec_vs_plain_by_category"]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("temperature", [0, 1])
def test_outputs_that_rejection_draws_anew_are_not_compared(capsys, tmp_path, temperature):
    data, report = tmp_path / "mine.jsonl", tmp_path / "r.json"
    data.write_text('{"prompt": "abcabc"}\n')
    config = '{"method": "ngram", "verification": "rejection"}'
    arguments = ["bench", "toy", "--dataset", data, "--max-tokens", 20, "--json", report]
    arguments += ["--kv-cache-memory", 2**14, "--speculative-config", config]
    arguments += ["--temperature", 1, "--seed", 3] if temperature else []
    assert cli.run([str(a) for a in arguments]) == 0
    out = capsys.readouterr().out
    assert ("Outputs are not compared" in out) == bool(temperature)
    assert json.loads(report.read_text())["identical"] is (None if temperature else True)


def test_quick_takes_few_prompts_and_tokens(capsys, tmp_path):
    data, report = tmp_path / "mine.jsonl", tmp_path / "r.json"
    data.write_text("".join(f'{{"prompt": "ab{i}"}}\n' for i in range(6)))
    arguments = ["bench", "toy", "--quick", "--dataset", data, "--kv-cache-memory", 2**14]
    assert cli.run([str(a) for a in [*arguments, "--json", report]]) == 0
    assert "on 4 prompts" in capsys.readouterr().err
    assert json.loads(report.read_text())["settings"]["params"]["max_tokens"] == 96


def test_built_in_prompts_that_are_too_long_are_left_out(caplog):
    config = EngineConfig("toy", num_blocks=128, speculative_config=SpeculativeConfig("ngram"))
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    settings = BenchSettings(config, params, leaves_out_long=True)
    long = Prompt("long", "prose", ("x" * 2000,))
    report = run_bench(settings, [long, *PROMPTS])
    assert [t.id for t in report.comparison.tasks] == ["one", "two/1", "two/2"]
    assert "1 prompts are longer than the model's context" in caplog.text
    with pytest.raises(ValueError, match="Every prompt is longer"):
        run_bench(settings, [long])
