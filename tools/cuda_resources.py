"""What the CUDA kernels take of a GPU, by the compiler's report, against the record.

The build keeps `ptxas -v`'s report of each object beside it (tools/keep_report.sh). Any spill is a
fault. Under the nvcc that made the record, registers and shared memory must be equal; under another
version, registers may differ by 8, the step in which a thread gets them. An object's device code
(all images, compressed) may differ by a tenth under either.

    python tools/cuda_resources.py [--record] [BUILD]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "cuda_resources.json"
BUILD = ROOT / "build" / f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
CODE_APART, REGISTERS_APART = 0.1, 8


class Use(NamedTuple):
    """registers, spilt: of a thread; shared: static bytes of a block; spilt: bytes."""

    registers: int
    shared: int
    spilt: int = 0

    @classmethod
    def parse(cls, lines: str) -> Use:
        """The report of one kernel; the functions that it calls add to what it spills."""
        shared = re.search(r"(\d+) bytes smem", lines)
        spilt = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", lines)
        return cls(
            int(re.search(r"Used (\d+) registers", lines)[1]),
            int(shared[1]) if shared else 0,
            sum(int(stores) + int(loads) for stores, loads in spilt),
        )


Kernels = dict[str, dict[str, Use]]  # name -> arch -> use


@dataclass
class Object:
    """One source's device code: its bytes, and its kernels."""

    code: int
    kernels: Kernels


@dataclass
class Resources:
    """compiler: nvcc's version; objects: by the source's name."""

    compiler: str
    objects: dict[str, Object]

    @classmethod
    def built(cls, build: Path) -> Resources:
        """Of every csrc/cuda/*.cu, as compiled last in that build folder."""
        folder = build / "CMakeFiles" / "specfast_cuda.dir" / "csrc" / "cuda"
        objects = {}
        for source in sorted((ROOT / "csrc" / "cuda").glob("*.cu")):
            file = folder / f"{source.name}.o"
            kernels = parse(file.with_name(f"{file.name}.ptxas").read_text())
            objects[source.stem] = Object(code_bytes(file), kernels)
        return cls(compiler_version(build), objects)

    @classmethod
    def load(cls, text: str) -> Resources:
        record = json.loads(text)
        objects = {
            name: Object(
                o["code"],
                {k: {a: Use(*u) for a, u in archs.items()} for k, archs in o["kernels"].items()},
            )
            for name, o in record["objects"].items()
        }
        return cls(record["compiler"], objects)

    def dump(self) -> str:
        """JSON with a line for each kernel."""
        text = json.dumps(asdict(self), indent=1) + "\n"
        text = re.sub(r"(?<=[\[{])\n {5,}|\n {4,}(?=[\]}])", "", text)
        return re.sub(r"\n {5,}", " ", text)


def parse(report: str) -> Kernels:
    kernels: dict[str, dict[str, Use]] = {}
    for lines in re.split(r"(?=ptxas info +: Compiling entry)", report)[1:]:
        name, arch = re.match(r".*function '(\w+)' for '(\w+)'", lines).groups()
        kernels.setdefault(name, {})[arch] = Use.parse(lines)
    return dict(zip(demangle(list(kernels)), kernels.values()))


def demangle(names: list[str]) -> list[str]:
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return [short_name(line) for line in done.stdout.splitlines()]


def short_name(demangled: str) -> str:
    """'void specfast::cuda::(anonymous namespace)::f<specfast::Bf16>(int)' -> 'f<Bf16>'."""
    name = re.sub(r"^void |specfast::|cuda::|\(anonymous namespace\)::", "", demangled)
    depth = 0
    for i in range(len(name) - 1, -1, -1):  # back to where the parameters begin
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            return name[:i] if name[i] == "(" else name
    return name


def code_bytes(file: Path) -> int:
    done = subprocess.run(["size", "-A", file], capture_output=True, text=True, check=True)
    return int(re.search(r"^\.nv_fatbin +(\d+)", done.stdout, re.MULTILINE)[1])


def compiler_version(build: Path) -> str:
    cache = (build / "CMakeCache.txt").read_text()
    nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)", cache, re.MULTILINE)[1]
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    return re.search(r"\bV([\d.]+)", done.stdout)[1]


def differences(record: Resources, built: Resources) -> Iterator[str]:
    """A sentence for each."""
    yield from unmatched("object", record.objects, built.objects)
    apart = 0 if record.compiler == built.compiler else REGISTERS_APART
    for name in record.objects.keys() & built.objects.keys():
        was, now = record.objects[name], built.objects[name]
        if abs(now.code - was.code) > CODE_APART * was.code:
            yield f"{name}: {now.code} bytes of code, recorded are {was.code}"
        yield from unmatched(f"{name}: kernel", was.kernels, now.kernels)
        for kernel in was.kernels.keys() & now.kernels.keys():
            for difference in compare(was.kernels[kernel], now.kernels[kernel], apart):
                yield f"{name}: {kernel} {difference}"


def unmatched(what: str, record: dict, built: dict) -> Iterator[str]:
    yield from (f"{what} {name} is not recorded" for name in built.keys() - record.keys())
    yield from (f"{what} {name} is recorded but not built" for name in record.keys() - built.keys())


def compare(record: dict[str, Use], built: dict[str, Use], apart: int) -> Iterator[str]:
    yield from unmatched("on", record, built)
    for arch in record.keys() & built.keys():
        was, now = record[arch], built[arch]
        if abs(now.registers - was.registers) > apart:
            yield f"on {arch} uses {now.registers} registers, recorded are {was.registers}"
        if now.shared != was.shared:
            yield f"on {arch} uses {now.shared} bytes of shared memory, recorded are {was.shared}"


def spills(built: Resources) -> Iterator[str]:
    for name, o in built.objects.items():
        for kernel, archs in o.kernels.items():
            for arch, use in archs.items():
                if use.spilt:
                    yield f"{name}: {kernel} on {arch} spills {use.spilt} bytes"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", default=BUILD)
    parser.add_argument("--record", action="store_true", help="make the record anew")
    options = parser.parse_args(arguments)
    try:
        built = Resources.built(options.build)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: `make build` makes it") from None
    faults = list(spills(built))
    if options.record:
        RECORD.write_text(built.dump())
    else:
        faults += differences(Resources.load(RECORD.read_text()), built)
    print(*sorted(faults), sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
