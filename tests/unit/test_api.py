"""The package's front door."""

import subprocess
import sys

import pytest

import specfast


def test_every_public_name_is_there_and_no_other():
    for name in specfast.__all__:
        assert getattr(specfast, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        specfast.Nothing  # noqa: B018


def test_importing_the_package_loads_neither_torch_nor_the_ops():
    code = "import sys, specfast; print({'torch', 'specfast._C'} & sys.modules.keys())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
