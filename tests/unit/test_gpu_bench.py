"""bench/gpu/measure.py as far as it runs without a GPU: what it writes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from bench.gpu import measure


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(outcome of each case) -> bench.json; an exception is raised, all else is the row."""
    options = ["measure", "--out", str(tmp_path), "-k", "kv_compact"]
    monkeypatch.setattr("sys.argv", options)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 4e12)
    monkeypatch.setattr(measure, "matmul_rate", lambda: 7e14)

    def with_outcomes(*outcomes: BaseException | dict) -> SimpleNamespace:
        following = iter(outcomes)

        def next_outcome(named, bandwidth):
            outcome = next(following)
            if isinstance(outcome, BaseException):
                raise outcome
            return {"op": named[0].__name__, "arguments": named[1], **outcome}

        monkeypatch.setattr(measure, "measure", next_outcome)
        try:
            status = measure.main()
        except KeyboardInterrupt:
            status = None
        report = json.loads((tmp_path / "bench.json").read_text())
        return SimpleNamespace(
            status=status, rows=report["rows"], table=(tmp_path / "bench.md").read_text()
        )

    return with_outcomes


def row(us: float) -> dict:
    ours = {"us": us, "least_us": us, "graph": True}
    return {
        "bytes": 8, "flops": 0, "copies": 1, "ours": ours, "of_copy_bandwidth": 0.5,
        "flops_per_second": 0.0, "theirs": {"indexing": {"error": "ValueError: no"}},
    }  # fmt: skip


def test_every_case_is_a_row(run):
    result = run(row(1.5), row(2.5), row(3.5))
    assert result.status == 0
    assert [r["ours"]["us"] for r in result.rows] == [2.5, 1.5, 3.5]  # by their arguments
    assert "| kv_compact | 32 5 | 1.5 | 0.00 | 50% |  | indexing ValueError |" in result.table


def test_an_error_is_a_row_too_whatever_it_says(run):
    result = run(row(1.5), ValueError(), RuntimeError("a | b\nc"))
    assert result.status == 1
    assert [r.get("error") for r in result.rows] == ["ValueError: ", None, "RuntimeError: a | b"]
    assert "| kv_compact | 256 5 | RuntimeError: a / b | | | | |" in result.table


def test_what_was_measured_outlives_the_run(run):
    result = run(row(1.5), KeyboardInterrupt())
    assert result.status is None and len(result.rows) == 1
