"""The commands on the demo model, as a user runs them."""

import json
import subprocess
import sys

import pytest

from specfast import cli

PROMPT = "Repeat after me: red green blue red green blue red green blue."


def specfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specfast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("demo_path")
def test_generate_gives_the_same_stdout_with_and_without_speculation():
    common = ["generate", "demo", PROMPT, "--chat", "--max-tokens", "32", "--threads", "1"]
    on, off = specfast(*common), specfast(*common, "--spec-method", "none")
    assert (on.returncode, off.returncode) == (0, 0), on.stderr + off.stderr
    assert on.stdout == off.stdout
    assert "\x1b" not in on.stdout + on.stderr
    assert "drafts accepted" in on.stderr


@pytest.mark.usefixtures("demo_path")
def test_certify(tmp_path):
    path = tmp_path / "certificate.json"
    arguments = ["certify", "demo", "--num-prompts", "4", "--num-settings", "3"]
    code = cli.run([*arguments, "--max-tokens", "24", "--json", str(path)])
    result = json.loads(path.read_text())
    assert result["checked"] == result["identical"] == 12
    assert {f["kind"] for f in result["failures"]} <= {"unseen event"}, "4 prompts may not meet all"
    assert code == bool(result["failures"])


@pytest.mark.usefixtures("demo_path")
def test_bench(tmp_path):
    path = tmp_path / "bench.json"
    arguments = ["bench", "demo", "--num-prompts", "2", "--max-tokens", "24", "--threads", "1"]
    assert specfast(*arguments, "--json", str(path)).returncode == 0
    result = json.loads(path.read_text())
    assert result["identical"] is True
    assert result["ratios"]["spec_vs_plain"] > 0
    assert result["ratios"]["rows5_vs_rows1"] > 0
    assert result["ratios"]["bandwidth_share"] > 0
    assert result["arms"]["speculative"]["acceptance_length"] >= 1
    assert result["arms"]["speculative"]["draft_time_fraction"] < 0.5
