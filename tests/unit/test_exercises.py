"""Each exercise as a user runs it, on the tiny target: its table, its picture, its refusals."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module

import pytest

from bench.exercises import a_ngram, c_batch_gate, e_equivalence, f_kv_rollback
from bench.exercises.planted_bugs import BUGS
from specfast.measure import Comparison, Sample, Task

PNG = b"\x89PNG"
TEXTS = {
    "summarisation": ("red green blue ", "one two three ", "up and down "),
    "prose": ("once upon a time ", "the cat sat on ", "a b c d "),
}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """-> rows [[cell]] of all tables of an exercise; its picture was drawn."""
    dataset, picture = tmp_path / "prompts.jsonl", tmp_path / "picture.png"
    lines = [{"category": c, "prompt": t * 8} for c, texts in TEXTS.items() for t in texts]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(name, *arguments):
        given = ("--model", "tiny", "--dataset", dataset, "--num-prompts", 6, "--max-tokens", 16)
        argv = [name, *given, "--plot", picture, *arguments]
        monkeypatch.setattr(sys, "argv", [str(word) for word in argv])
        import_module(f"bench.exercises.{name}").main()
        assert picture.read_bytes().startswith(PNG)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
        return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]

    monkeypatch.setenv("COLUMNS", "200")
    return run


def is_ratio(cell):
    return re.match(r"\d+\.\d\dx", cell) is not None


def test_a_says_where_answers_come_from(run):
    rows = run("a_ngram", "--categories", "summarisation,prose")
    assert [row[0] for row in rows] == ["summarisation", "prose"]
    for row in rows:
        assert all(re.fullmatch(r"\d+%", cell) for cell in row[1:6]) and is_ratio(row[-1])
        assert 1 <= float(row[6]) <= 9, "tokens a step"


def test_runs_of_an_answer_are_found_where_they_stand():
    """1 2 3 4 stands in the prompt, 7 8 9 7 8 9 goes on with itself."""
    found = a_ngram.Origins.of([1, 2, 3, 4, 5], [1, 2, 3, 4, 7, 8, 9, 7, 8, 9, 7, 8])
    assert found.in_prompt == pytest.approx(1 / 9)
    assert found.in_answer == pytest.approx(2 / 9), "7 8 9 7 and 8 9 7 8, the second time"
    assert a_ngram.Origins.of([1], [2, 3]).in_prompt == 0


def test_b_has_formula_survival_and_measurement_for_every_k(run):
    rows = run("b_draft_selection", "--k", "2,1")
    drafters = ("tiny-draft-m", "tiny-eagle", "tiny-medusa")
    assert [tuple(row[:2]) for row in rows] == [(d, k) for d in drafters for k in "12"]
    for row in rows:
        k, (a, c, v) = int(row[1]), map(float, row[2:5])
        formula = (1 - a ** (k + 1)) / ((1 - a) * (1 + c * k + v * k))
        assert float(row[5][:-1]) == pytest.approx(formula, abs=0.03), "as its row says"
        assert is_ratio(row[6]) and is_ratio(row[7])
        error = float(row[5][:-1]) / float(row[7].split("x")[0]) - 1
        assert float(row[8][:-1]) / 100 == pytest.approx(error, abs=0.03)


def test_c_has_every_size_and_the_gate_s_steps(run):
    rows = run("c_batch_gate", "--sizes", "1,8", "--k", "1,2")
    assert [row[0] for row in rows] == ["1", "8"]
    for row in rows:
        assert all(map(is_ratio, row[1:4])), "k = 1, k = 2, auto"
        assert int(row[4]) >= 3 * 16 / 3 and row[5].endswith("%")


def test_c_counts_from_when_the_whole_batch_decodes():
    early = Sample(tuple(range(10)), tuple(float(t) for t in range(1, 11)))
    late = Sample(tuple(range(10)), tuple(float(t) for t in range(5, 15)))
    tasks = (Task("0", "all", (1,)), Task("1", "all", (1,)))
    found = c_batch_gate.decoding(Comparison(tasks, {"plain": ((early,), (late,))}), 2)
    (first,), (second,) = found.samples["plain"]
    assert first.times == (5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    assert second.times == late.times


def test_d_has_fixed_and_adaptive_depths(run):
    rows = run("d_adaptive_k", "--categories", "summarisation,prose", "--k", "1,2")
    assert [row[0] for row in rows] == ["k = 1", "k = 2", "simple", "auto"]
    assert all(is_ratio(cell) for row in rows for cell in row[1:4])
    assert any(row[-1].startswith("1.000 (1.000 to 1.000)") for row in rows[:2]), "the best itself"


def test_e_finds_the_same_bytes_and_sees_a_fault(run):
    rows = run("e_equivalence")
    methods = [*e_equivalence.methods("tiny"), e_equivalence.FAULT]
    assert [row[0] for row in rows] == 2 * methods
    for method, _, num_same, tokens in rows:
        assert (num_same == "6/6") == (method != e_equivalence.FAULT)
        assert float(tokens) > 1, "drafts were accepted"


def test_e_ends_badly_where_bytes_differ(run, monkeypatch):
    monkeypatch.setattr(e_equivalence, "same", lambda expected, found: len(found) - 1)
    with pytest.raises(SystemExit, match="answers differ: draft model, T = 0.8.*, ngram, greedy"):
        run("e_equivalence")


def test_f_accounts_for_every_slot_and_catches_every_bug(run):
    rows = run("f_kv_rollback")
    slots = {fate: int(num) for fate, num, _ in rows[:3]}
    assert set(slots) == set(f_kv_rollback.FATES) and all(slots.values())
    assert [row[0] for row in rows[3:]] == list(BUGS) and all(row[1] for row in rows[3:])


def test_f_ends_badly_where_a_bug_is_missed(run, monkeypatch):
    def harmless(engine):
        """Breaks nothing."""

    monkeypatch.setattr(f_kv_rollback, "BUGS", {"harmless": harmless})
    with pytest.raises(SystemExit, match="harmless was not caught"):
        run("f_kv_rollback")
