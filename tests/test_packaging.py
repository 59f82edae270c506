"""What pip gets: the sdist has what a build needs, and the wheel runs without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from specfast import extension, ops

ROOT = Path(__file__).parents[1]
TRANSIENT = {"__pycache__", "build", "dist"}

# Imports every module of the wheel and runs an op; the source tree must not be what was found.
USE_WHEEL = """
import sys; sys.path.insert(0, sys.argv[1])
import importlib, pkgutil, specfast, torch
from specfast import _host, ops
for module in pkgutil.walk_packages(specfast.__path__, "specfast."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for module in (specfast, ops, ops._C, _host):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
out = torch.empty(1, 1)
ops.linear(torch.ones(1, 3), ops.pack_linear(torch.full((1, 3), 2.0)), out)
print(specfast.__version__, out.item())
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder))
    done = python("-m", "pip", "wheel", *options, str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("specfast-*.whl")
    zipfile.ZipFile(file).extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_runs_without_a_compiler(wheel, tmp_path):
    done = python("-I", "-c", USE_WHEEL, str(wheel), PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    version, product = done.stdout.split()
    assert float(product) == 6.0
    assert (wheel / f"specfast-{version}.dist-info").exists()


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    assert {p.name.split("-")[0] for p in wheel.iterdir()} == {"specfast"}
    assert {p.name.split(".")[0] for p in wheel.rglob("*.so")} == {"_C", "_host"}
    weights = [f"data/{name}/model.safetensors" for name in ("demo-draft", "tiny/target")]
    for file in ("py.typed", "_C.pyi", "data/workload.jsonl", *weights):
        assert (wheel / "specfast" / file).exists()


def test_no_library_path_of_the_build_machine_is_kept(wheel):
    for library in wheel.rglob("*.so"):
        shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True)
        assert "NEEDED" in shown.stdout
        assert "RPATH" not in shown.stdout and "RUNPATH" not in shown.stdout


def test_cuda_kernels_are_built_wherever_nvcc_is():
    if shutil.which("nvcc") or os.environ.get("CI") == "true":
        assert ops._C.cuda_images, "the compiled ops are without CUDA: `make build` adds it"


def test_the_sdist_has_what_a_build_and_its_tests_need(tmp_path):
    done = python("-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("specfast-*.tar.gz")
    with tarfile.open(file) as sdist:
        packed = {"/".join(Path(n).parts[1:]) for n in sdist.getnames()}
    needed = {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"}
    for folder in ("csrc", "tests", "tools", "requirements", "specfast"):
        files = (p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix != ".so")
        names = (p.relative_to(ROOT) for p in files)
        needed |= {n.as_posix() for n in names if not TRANSIENT & set(n.parts)}
    assert not needed - packed
    assert not [n for n in packed if n.endswith((".so", ".pyc"))]


def test_a_package_without_its_extension_says_how_to_build_it():
    done = python("-c", "import sys; sys.modules['specfast._C'] = None; from specfast import LLM")
    assert done.returncode == 1
    assert "ImportError: specfast's compiled ops don't load" in done.stderr
    assert "pip install --no-build-isolation" in done.stderr


def test_an_extension_older_than_the_package_says_so():
    with pytest.raises(ImportError, match="older than the package: not_built_yet not found"):
        extension.load(["linear", "not_built_yet"])
