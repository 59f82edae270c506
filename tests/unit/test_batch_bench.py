"""specfast bench --batch over a bookkeeping target: batches, their copies, throughput, the gate."""

import json

import pytest

from specfast import cli
from specfast.batch_bench import BatchResult, filling, run_batches, throughputs
from specfast.bench import BenchSettings
from specfast.config import EngineConfig
from specfast.data import Prompt
from specfast.measure import Comparison, Sample, Task
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_bench import load

PROMPTS = [Prompt("one", "prose", ("abcabcabc",)), Prompt("two", "code", ("xyxyxy",))]


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr("specfast.batch_bench.load", load)


def run(sizes, temperature=0.0, seed=None, **speculation):
    spec = SpeculativeConfig("ngram", 4, **speculation)
    config = EngineConfig("toy", num_blocks=128, speculative_config=spec)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=30, ignore_eos=True)
    return run_batches(BenchSettings(config, params), PROMPTS, sizes)


def test_several_batch_sizes_in_one_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    data, report, picture = tmp_path / "mine.jsonl", tmp_path / "r.json", tmp_path / "p.png"
    data.write_text("".join(f'{{"prompt": "abcab{c}"}}\n' for c in "cde"))
    arguments = ["bench", "toy", "--dataset", data, "--ignore-eos", "--max-tokens", 20]
    arguments += ["--batch", "5,1", "--json", report, "--plot", picture]
    code = cli.run([str(a) for a in [*arguments, "--kv-cache-memory", 2**14]])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "2 of 5 are copies" in err and "same bytes" in out
    value = json.loads(report.read_text())
    one, five = value["batches"]
    assert (one["batch_size"], one["num_requests"], one["num_repeated"]) == (1, 3, 0)
    assert (five["batch_size"], five["num_requests"], five["num_repeated"]) == (5, 5, 2)
    assert value["identical"] is True and value["synthetic"] is False
    assert all(b["throughput"]["plain"] > 0 and b["speedup"]["value"] > 0 for b in (one, five))
    assert all(b["gated_share"] == 0.0 for b in (one, five)) and "gated" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("more", [["0"], ["a"], [""], ["1,2", "--batch-size", "2"]], ids=str)
def test_wrong_batch_sizes_are_refused(capsys, more):
    assert cli.run(["bench", "toy", "--batch", *more]) != 0
    assert "--batch" in capsys.readouterr().err


def answers(*seconds):
    """An answer of ten tokens each, at so many seconds a token."""
    return tuple((Sample((1,) * 10, tuple(s * (j + 1) for j in range(10))),) for s in seconds)


def test_throughput_is_the_whole_batchs():
    """Its tokens over its slowest answer's time, and the median over batches."""
    tasks = tuple(Task(f"t{i}", "all", (i,)) for i in range(6))
    samples = {"plain": answers(0.1, 0.05, 0.2, 0.2, 0.4, 0.1)}
    result = BatchResult(2, 0, Comparison(tasks, samples))
    assert throughputs(result.comparison, "plain", 2).tolist() == pytest.approx([20, 10, 5])
    assert result.throughput("plain") == pytest.approx(10.0)


def test_the_speedup_is_speculation_over_plain():
    tasks = tuple(Task(f"t{i}", "all", (i,)) for i in range(4))
    samples = {"plain": answers(*[0.1] * 4), "speculative": answers(*[0.05] * 4)}
    found = BatchResult(2, 0, Comparison(tasks, samples))
    assert found.speedup.value == found.to_dict()["speedup"]["value"] == pytest.approx(2.0)


def test_batches_are_whole():
    tasks = [Task(f"t{i}", "c", (i,)) for i in range(5)]
    assert [len(filling(tasks, n)) for n in (1, 2, 5, 8)] == [5, 4, 5, 8]
    assert len({t.id for t in filling(tasks, 8)}) == 8


def test_copies_are_numbered():
    tasks = [Task(f"t{i}", "c", (i,)) for i in range(2)]
    found = [(t.id, t.copy, t.prompt_token_ids) for t in filling(tasks, 5)]
    assert found[:2] == [("t0", 0, (0,)), ("t1", 0, (1,))]
    assert found[2:] == [("t0#2", 1, (0,)), ("t1#2", 1, (1,)), ("t0#3", 2, (0,))]


@pytest.mark.parametrize(
    ("temperature", "num_texts"), [(1.0, 6), (0.0, 1)], ids=["drawn", "greedy"]
)
def test_copies_are_drawn_by_seeds_of_their_own(temperature, num_texts):
    """The same ones in both arms, and the first copy's is the one that was given."""
    report = run([1, 6], temperature, seed=-3)
    assert report.to_dict()["identical"] is True
    plain = [zip(r.comparison.tasks, r.comparison.samples["plain"]) for r in report.results]
    alone, filled = ({task.id: s[0].token_ids for task, s in pairs} for pairs in plain)
    assert len(filled) == 6 and len(set(filled.values())) == num_texts
    assert alone.items() <= filled.items()


def test_the_share_that_the_gate_kept_from_drafting():
    """By batch size, of the speculative arm: all but the last tokens, which take no drafts."""
    gated = run([1, 2], policy="fixed", gate={"max_batch_size": 1})
    assert [r.to_dict()["gated_share"] for r in gated.results] == [0.0, 29 / 30]
    assert run([2], policy="fixed").results[0].to_dict()["gated_share"] == 0.0
