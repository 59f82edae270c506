"""What runs here: versions, SIMD tier, CUDA state, and every mismatch in a sentence."""

from __future__ import annotations

import inspect
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specfast import __version__
from specfast.models import demo

OLDEST_TORCH = (2, 10)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Extension:
    """The compiled ops. error: why they don't load, and then the rest is None or False."""

    path: str | None = None
    compiler: str | None = None
    tier: str | None = None
    best_tier: str | None = None
    outdated: bool = False
    error: str | None = None

    @classmethod
    def load(cls) -> Extension:
        try:
            from specfast import ops
        except ImportError as error:
            return cls(error=str(error))
        path = Path(inspect.getfile(ops._C))
        return cls(
            str(path),
            ops._C.compiler,
            ops.simd_tier(),
            ops.best_simd_tier(),
            _older_than(path, path.parent.parent / "csrc"),
        )


@dataclass(frozen=True)
class Cuda:
    """The CUDA kernels and what they must fit; a version as in "13.0", None where there is none.

    images: what they are compiled for, empty in a build for the CPU only; toolkit: the CUDA that
    compiled them; driver: the newest that the driver here runs; torch: the one that torch has; gpu:
    the device that torch sees; misfit: why no image runs there, empty if one does.
    """

    images: tuple[str, ...] = ()
    toolkit: str | None = None
    driver: str | None = None
    torch: str | None = None
    gpu: str | None = None
    misfit: str = ""

    @classmethod
    def look(cls) -> Cuda:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        seen = cls(torch=torch.version.cuda, gpu=gpu)
        try:
            from specfast.ops import _C
        except ImportError:
            return seen
        if not _C.cuda_images:
            return seen
        return replace(
            seen,
            images=tuple(_C.cuda_images.split()),
            toolkit=_cuda_version(_C.cuda_toolkit),
            driver=_cuda_version(_C.cuda_driver()),
            misfit=_C.cuda_misfit(*torch.cuda.get_device_capability()) if gpu else "",
        )

    @property
    def checks(self) -> tuple[tuple[object, str], ...]:
        """What may not fit: whether so, and the sentence for it."""
        built = f"the CUDA kernels are built by {self.toolkit}"
        unused = f"{self.gpu} is not used"
        return (
            (self.gpu and not self.images, f"{unused}: this build has CPU kernels only."),
            (self.misfit, f"{unused}: {self.misfit}."),
            (
                self.driver and not self.torch,
                "There is a driver for NVIDIA GPUs, but torch is a CPU build.",
            ),
            (
                _major(self.driver) < _major(self.toolkit) and self.driver,
                f"The driver runs CUDA {self.driver}, but {built}: update the driver.",
            ),
            (
                _major(self.torch) != _major(self.toolkit) and self.torch and self.toolkit,
                f"torch has CUDA {self.torch}, but {built}: build them by torch's.",
            ),
        )

    def __str__(self) -> str:
        parts = (
            f"kernels for {' '.join(self.images)}" if self.images else "CPU kernels only",
            f"built by {self.toolkit}" if self.toolkit else "",
            f"torch has {self.torch}" if self.torch else "torch is a CPU build",
            f"the driver runs {self.driver}" if self.driver else "no driver",
            self.gpu or "no GPU seen",
        )
        return "; ".join(filter(None, parts))


@dataclass(frozen=True)
class Demo:
    """The demo model's file; None: not fetched yet. error: what is wrong with it."""

    path: str | None = None
    error: str | None = None

    @classmethod
    def look(cls) -> Demo:
        try:
            path = demo.here()
        except ValueError as error:
            return cls(error=str(error))
        return cls(str(path) if path else None)


@dataclass(frozen=True)
class Info:
    """This installation on this machine.

    huge_pages: "always", "madvise" or "never"; None: the system does not say.
    """

    specfast: str
    torch: str
    python: str
    machine: str
    extension: Extension
    threads: int
    cores: int
    huge_pages: str | None
    cuda: Cuda
    demo: Demo

    @property
    def mismatches(self) -> list[str]:
        """What does not fit together, a sentence each; empty when all is well."""
        checks = (
            (_version(self.torch) < OLDEST_TORCH, f"torch {self.torch} is older than 2.10."),
            (self.extension.error, self.extension.error or ""),
            (
                self.extension.outdated,
                "The compiled ops are older than csrc/: run `make build`.",
            ),
            (
                self.extension.tier == "scalar" and self.machine in ("x86_64", "AMD64"),
                "This CPU has no AVX2, or it is hidden: the scalar kernels are slow.",
            ),
            (
                self.extension.tier != self.extension.best_tier,
                f"The SIMD tier was set to {self.extension.tier}; this CPU runs "
                f"{self.extension.best_tier}.",
            ),
            (
                self.threads > self.cores,
                f"torch uses {self.threads} threads on {self.cores} cores: set OMP_NUM_THREADS.",
            ),
            (
                self.huge_pages == "never",
                f"Huge pages are off: weights stream slower. Write madvise to {HUGE_PAGES}.",
            ),
            (self.demo.error, self.demo.error or ""),
            *self.cuda.checks,
        )
        return [sentence for wrong, sentence in checks if wrong]


def collect() -> Info:
    """Looks at this process and machine; loads the compiled ops if they load."""
    return Info(
        specfast=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        extension=Extension.load(),
        threads=torch.get_num_threads(),
        cores=_num_cores(),
        huge_pages=_huge_pages(),
        cuda=Cuda.look(),
        demo=Demo.look(),
    )


def render(info: Info) -> str:
    """One fact a line, then the mismatches."""
    extension = info.extension
    facts = {
        "specfast": info.specfast,
        "torch": info.torch,
        "Python": f"{info.python} ({info.machine})",
        "compiled ops": f"{extension.path}, by {extension.compiler}" if extension.path else "none",
        "SIMD tier": f"{extension.tier} (best here: {extension.best_tier})",
        "threads": f"{info.threads} on {info.cores} cores",
        "huge pages": info.huge_pages or "unknown",
        "CUDA": str(info.cuda),
        "demo model": info.demo.path or "not here; it is fetched when it is first used",
    }
    lines = [f"{name:<13}{value}" for name, value in facts.items()]
    lines += ["", *(f"! {m}" for m in info.mismatches)] if info.mismatches else ["", "All fits."]
    return "\n".join(lines)


def _cuda_version(number: int) -> str | None:
    """13000 -> "13.0"; 0 -> None."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _major(version: str | None) -> int:
    return int(version.split(".")[0]) if version else 0


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _older_than(path: Path, sources: Path) -> bool:
    """False where there are no sources: an installed wheel."""
    dates = [f.stat().st_mtime for f in sources.rglob("*") if f.is_file()]
    return bool(dates) and path.stat().st_mtime < max(dates)


def _num_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _huge_pages() -> str | None:
    """The chosen word of e.g. "always [madvise] never"."""
    try:
        return HUGE_PAGES.read_text().partition("[")[2].partition("]")[0] or None
    except OSError:
        return None
