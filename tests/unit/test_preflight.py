from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "preflight.sh"


def preflight(**environment: str) -> tuple[int, list[str]]:
    env = {**os.environ, "PYTHON": sys.executable, **environment}
    done = subprocess.run(["/bin/sh", SCRIPT], env=env, capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()


def test_this_machine_has_what_it_takes():
    assert preflight() == (0, [])


def test_each_missing_tool_is_one_sentence_with_its_package(tmp_path):
    code, lines = preflight(PATH=str(tmp_path), CXX="g++", PYTHON=str(tmp_path / "python3"))
    assert code == 1
    assert [line.rpartition("apt-get install ")[2] for line in lines] == [
        "make.",
        "g++.",
        "python3.",
    ]


FAKE_PYTHONS = {
    "python3": "exit 1",
    "python3-venv": 'case "$2" in *ensurepip*) exit 1 ;; *sysconfig*) echo {here} ;; esac',
    "python3-dev": 'case "$2" in *sysconfig*) echo /nowhere ;; esac',
}


@pytest.mark.parametrize("package", FAKE_PYTHONS)
def test_what_python_lacks_is_told_apart(package, tmp_path):
    (tmp_path / "Python.h").touch()
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\n" + FAKE_PYTHONS[package].format(here=tmp_path))
    fake.chmod(0o755)
    code, lines = preflight(PYTHON=str(fake))
    assert code == 1
    assert len(lines) == 1 and lines[0].endswith(f"on Debian, apt-get install {package}.")
