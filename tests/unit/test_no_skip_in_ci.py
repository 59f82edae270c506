from __future__ import annotations

from pathlib import Path

import pytest

SKIPS = """
import pytest

@pytest.mark.parametrize("why", ["the demo model is missing", "needs a GPU"])
def test_skips(why):
    pytest.skip(why)

@pytest.mark.skipif(True, reason="no such package")
def test_marked(): ...
"""


@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [
        ("true", {"failed": 1, "errors": 1, "skipped": 1}),
        ("false", {"skipped": 3}),
        (None, {"skipped": 3}),
    ],
)
def test_a_skip_fails_in_ci(ci, outcomes, pytester, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makepyfile(SKIPS)
    pytester.runpytest().assert_outcomes(**outcomes)
