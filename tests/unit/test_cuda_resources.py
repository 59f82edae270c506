"""The compiler's report of the CUDA kernels: how it is read, and what is a fault."""

from __future__ import annotations

import subprocess
from copy import deepcopy
from pathlib import Path

import pytest

from tools import cuda_resources as tool
from tools.cuda_resources import Object, Resources, Use

KEEP_REPORT = Path(tool.__file__).with_name("keep_report.sh")

# As nvcc 13.0 says it: a kernel that spills nothing on two devices, then one that does, by itself
# and in a function that it calls.
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8specfast4cuda12_GLOBAL__N_13sumIfEEvPKf' for 'sm_80'
ptxas info    : Function properties for _ZN8specfast4cuda12_GLOBAL__N_13sumIfEEvPKf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1152 bytes smem, 392 bytes cmem[0]
ptxas info    : Compile time = 108.584 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8specfast4cuda12_GLOBAL__N_13sumIfEEvPKf' for 'sm_90'
ptxas info    : Function properties for _ZN8specfast4cuda12_GLOBAL__N_13sumIfEEvPKf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 39 registers, used 0 barriers
ptxas info    : Compile time = 74.791 ms
ptxas info    : Compiling entry function '_ZN8specfast4cuda4sortEPi' for 'sm_90'
ptxas info    : Function properties for _ZN8specfast4cuda4sortEPi
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Function properties for _ZN8specfast4cuda4swapEPi
    0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 32 bytes cumulative stack size
"""


def test_a_report_is_read():
    kernels = tool.parse(REPORT)
    assert kernels["sum<float>"] == {"sm_80": Use(40, 1152), "sm_90": Use(39, 0)}
    assert kernels["sort"] == {"sm_90": Use(255, 0, spilt=32)}


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("specfast::cuda::sort(int*)", "sort"),
        ("void specfast::cuda::(anonymous namespace)::f<specfast::Bf16>(specfast::P)", "f<Bf16>"),
        ("void specfast::cuda::g<128, (specfast::DType)1>(void (*)(int), int)", "g<128, (DType)1>"),
        ("_Z3odd", "_Z3odd"),
    ],
)
def test_a_name_is_short(demangled, name):
    assert tool.short_name(demangled) == name


@pytest.mark.parametrize("status", [0, 3])
def test_the_report_is_kept_and_the_rest_passed_on(status, tmp_path):
    report, kept = tmp_path / "report", tmp_path / "sort.o.ptxas"
    report.write_text(REPORT + "sort.cu(3): warning #177-D: unused\n")
    compiler = ["sh", "-c", f'cat "$1" >&2; exit {status}', "nvcc", report]
    command = ["sh", KEEP_REPORT, *compiler, "-c", "sort.cu", "-o", tmp_path / "sort.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr == "sort.cu(3): warning #177-D: unused\n"
    assert kept.read_text() == REPORT


def resources(compiler: str = "13.0.88", code: int = 1000, **uses: Use) -> Resources:
    kernels = {name: {"sm_80": use, "sm_90": use} for name, use in uses.items()}
    return Resources(compiler, {"sort": Object(code, kernels)})


RECORD = resources(f=Use(40, 1152))


def test_what_is_recorded_is_no_difference():
    assert list(tool.differences(RECORD, deepcopy(RECORD))) == []
    assert Resources.load(RECORD.dump()) == RECORD


def test_a_record_has_a_line_for_each_kernel():
    lines = resources(f=Use(40, 1152), g=Use(8, 0)).dump().splitlines()
    assert '    "f": {"sm_80": [40, 1152, 0], "sm_90": [40, 1152, 0]},' in lines
    assert '    "g": {"sm_80": [8, 0, 0], "sm_90": [8, 0, 0]}' in lines


@pytest.mark.parametrize(
    ("built", "sentence"),
    [
        (resources(f=Use(41, 1152)), "sort: f on sm_80 uses 41 registers, recorded are 40"),
        (resources(f=Use(40, 0)), "sort: f on sm_90 uses 0 bytes of shared memory"),
        (resources(code=1101, f=Use(40, 1152)), "sort: 1101 bytes of code, recorded are 1000"),
        (resources(), "sort: kernel f is recorded but not built"),
        (resources(f=Use(40, 1152), g=Use(1, 0)), "sort: kernel g is not recorded"),
        (Resources("13.0.88", {}), "object sort is recorded but not built"),
        (resources("13.1.0", f=Use(49, 1152)), "uses 49 registers"),
        (resources("13.1.0", f=Use(40, 1024)), "shared memory"),
    ],
)
def test_each_difference_is_a_sentence(built, sentence):
    assert any(sentence in difference for difference in tool.differences(RECORD, built))


@pytest.mark.parametrize(
    "built", [resources("13.1.0", f=Use(48, 1152)), resources(code=1100, f=Use(40, 1152))]
)
def test_what_another_compiler_may_change(built):
    assert list(tool.differences(RECORD, built)) == []


@pytest.fixture
def build(tmp_path, monkeypatch) -> Path:
    """A build folder with one object, whose kernels are REPORT's."""
    folder = tmp_path / "CMakeFiles" / "specfast_cuda.dir" / "csrc" / "cuda"
    (tmp_path / "csrc" / "cuda").mkdir(parents=True)
    (tmp_path / "csrc" / "cuda" / "sort.cu").touch()
    folder.mkdir(parents=True)
    (folder / "sort.cu.o.ptxas").write_text(REPORT)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(tool, "code_bytes", lambda file: 1000)
    monkeypatch.setattr(tool, "compiler_version", lambda build: "13.0.88")
    return tmp_path


def test_a_spill_is_a_fault_even_if_recorded(build, capsys):
    assert tool.main(["--record", str(build)]) == 1
    assert tool.main([str(build)]) == 1
    assert capsys.readouterr().out == "sort: sort on sm_90 spills 32 bytes\n" * 2


def test_a_kernel_that_is_not_built_is_said(build):
    (build / "csrc" / "cuda" / "new.cu").touch()
    with pytest.raises(SystemExit, match="new.cu.o.ptxas is missing: `make build` makes it"):
        tool.main([str(build)])


def test_what_was_recorded_passes(build, capsys):
    report = build / "CMakeFiles/specfast_cuda.dir/csrc/cuda/sort.cu.o.ptxas"
    report.write_text(
        REPORT[: REPORT.index("ptxas info    : Compiling entry function '_ZN8specfast4cuda4sort")]
    )
    assert tool.main(["--record", str(build)]) == tool.main([str(build)]) == 0
    report.write_text(report.read_text().replace("Used 40", "Used 42"))
    assert tool.main([str(build)]) == 1
    assert "sum<float> on sm_80 uses 42 registers" in capsys.readouterr().out
