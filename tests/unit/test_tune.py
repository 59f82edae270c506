"""specfast tune as a user runs it, on the tiny family: tables, files, refusals."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from specfast import cli
from specfast.models.committed import FOLDERS

PNG = b"\x89PNG"


@pytest.fixture
def run(capsys, monkeypatch):
    """-> (exit code, stdout, stderr) of `specfast tune tiny` with these arguments."""
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments):
        code = cli.run(["tune", "tiny", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"category": category, "prompt": text * 6}
        for category in ("colours", "numbers")
        for text in ("red green blue ", "one two three ", "a b c d ")
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_whole_command(run, prompts, tmp_path):
    files = [tmp_path / name for name in ("r.json", "r.md")]
    code, out, err = run(
        *("--candidates", "ngram,tiny-draft-s", "--dataset", prompts, "--k", "2,1"),
        *("--batch", "1,2", "--max-tokens", 14, "--ignore-eos", "--every-k"),
        *("--json", files[0], "--report", files[1], "--plot", tmp_path / "plots"),
    )
    assert code == 0, err
    assert "Tuning tiny on 6 prompts: ngram, tiny-draft-s ..." in err
    value = json.loads(files[0].read_text())
    assert value["identical"] is True
    first, second = value["trials"]
    assert (first["batch_size"], second["batch_size"]) == (1, 2)
    for name in ("ngram", "tiny-draft-s"):
        found = first["candidates"][name]
        predictions = {p["k"]: p["survival"] for p in found["predictions"]}
        assert list(predictions) == [1, 2] and all(p > 0 for p in predictions.values())
        measured = found["measured"][str(found["best_k"])]
        assert measured["low"] <= measured["value"] <= measured["high"]
        assert set(found["measured"]) == {"1", "2", "auto"}, "--every-k"
        error = predictions[found["best_k"]] / measured["value"] - 1
        assert found["error"] == pytest.approx(error)
        assert set(found["acceptance_by_category"]) == {"colours", "numbers"}
    drafted = first["candidates"]["tiny-draft-s"]
    assert drafted["acceptance"]["proposing"] > 0.8 and drafted["cost"]["drafting"]["each"] > 0
    assert value["memory"]["tiny-draft-s"]["num_tokens_given_up"] > 0
    page = files[1].read_text()
    for title in ("Recommendation", "Batch size 2: prediction", "Speed-up by k", "Memory"):
        assert f"## {title}" in page
    assert all(reason in page for reason in value["reasons"])
    assert out.rstrip().splitlines()[-1] == (
        json.dumps(value["recommended"])
        if value["recommended"]
        else "Leave speculation off: plain decoding."
    )
    pictures = {p.stem: p.read_bytes() for p in (tmp_path / "plots").glob("*.png")}
    assert set(pictures) == {
        *("speedup_by_k", "prediction", "acceptance_by_position", "acceptance_by_category"),
        *("step_cost", "speedup_by_batch"),
    }
    assert all(data.startswith(PNG) for data in pictures.values())


def test_a_tree_is_tried_beside_the_chain(run, prompts, tmp_path, monkeypatch):
    """And the smallest batch size decides k for all: asked again, the answer would be another."""
    asked = itertools.count()
    monkeypatch.setattr("specfast.tune.tuning.best_of", lambda found: found[next(asked) // 2])
    code, out, err = run(
        *("--candidates", "tiny-draft-s", "--dataset", prompts, "--k", "2,1", "--batch", "2,1"),
        *("--max-tree-nodes", 6, "--max-tokens", 14, "--ignore-eos"),
        *("--json", tmp_path / "r.json"),
    )
    assert code == 0, err
    value = json.loads((tmp_path / "r.json").read_text())
    assert value["identical"] is True
    first, second = value["trials"]
    assert (first["batch_size"], second["batch_size"]) == (1, 2)
    for name, shown in (("tiny-draft-s", "1"), ("tiny-draft-s tree=6", "1 (3)")):
        k = first["candidates"][name]["best_k"]
        assert k == second["candidates"][name]["best_k"] == 1
        assert set(second["candidates"][name]["measured"]) == {str(k), "auto"}
        lines = [[c.strip() for c in line.split("│")[1:]] for line in out.splitlines()]
        assert any(c[:2] == [name, shown] for c in lines)
        v = first["candidates"][name]["acceptance"]
        assert len(v["survival"]) == 2, "as deep as it is asked for, however wide"


def test_profile_prints_and_draws(run, tmp_path):
    code, out, err = run("--profile", "--json", tmp_path / "p.json", "--plot", tmp_path)
    assert code == 0, err
    profile = json.loads((tmp_path / "p.json").read_text())
    lines = [line.split("│")[1:] for line in out.splitlines() if "│" in line and "x " in line]
    assert [int(cells[0]) for cells in lines] == profile["rows"]
    assert [float(cells[1]) for cells in lines] == pytest.approx(
        [1e3 * s for s in profile["seconds"]], abs=0.006
    )
    assert lines[0][2].strip() == "1.00x"
    assert "idge point" in out
    assert (tmp_path / "step_cost.png").read_bytes().startswith(PNG)


def test_another_tokenizer_is_refused_with_the_difference(run, prompts, tmp_path):
    folder = shutil.copytree(FOLDERS["tiny-draft-s"], tmp_path / "draft")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(content))
    code, _, err = run("--candidates", f"ngram,{folder}", "--dataset", prompts)
    assert code == 2
    (error,) = [line for line in err.splitlines() if line.startswith("Error")]
    assert f"{folder} can't draft for this target: the token 'a' has id" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--candidates magic", "There is no candidate 'magic'; known are ngram, suffix, recycle"),
        ("--candidates ,", "--candidates names nobody"),
        ("--candidates demo-draft", "was made for a target with a vocabulary of"),
        ("--k 0,2", "--k must be numbers from 1 to 64, such as 1,2,4, not '0,2'"),
        ("--batch x", "--batch must be numbers from 1 to 512"),
        ("--max-tree-nodes 8", "above the largest --k (8) and at most 64, not 8"),
        ("--max-tree-nodes 65", "above the largest --k (8) and at most 64, not 65"),
        ("--max-tree-nodes 16 --candidates ngram", "does nothing: no candidate can branch"),
        ("--cycles 0", "--cycles must be at least 1"),
        ("--temperature 1", "give --seed with --temperature"),
        ("--num-prompts 2 --candidates ngram", "of the category 'colours' there is one alone"),
        ("--json /no/such/folder/x.json", "There is no folder"),
    ],
)
def test_refusals(run, prompts, arguments, says):
    code, _, err = run("--dataset", prompts, *arguments.split())
    assert code == 2
    assert says in err and err.count("Error") == 1
