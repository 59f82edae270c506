"""The CUDA half of the ops as far as it runs without a GPU: up to the launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specfast import ops
from tests.gpu.calls import CALLS, CPU_ONLY, Random, workspace_of
from tests.unit.fake_cuda import on_cuda

ROOT = Path(__file__).parents[2]
HAS_KERNEL = torch._C._dispatch_has_kernel_for_dispatch_key
# A call of each op, with all that it may be given.
NAMES = (
    "rms_norm 33", "silu_mul 21", "rope_kv_append norms", "kv_append bfloat16", "kv_compact 5",
    "tree_attention 64", "sample_rows 5", "rank_candidates", "draw_candidates", "accept_path 1",
    "rejection_sample token 50", "typical_sample 50",
)  # fmt: skip


def operands(dtype: torch.dtype = torch.float32) -> dict[str, dict[str, object]]:
    """Arguments of each op, with activations of that dtype."""
    found = {}
    for call in (CALLS[name](Random(0)).activations(dtype) for name in NAMES):
        found[call.op] = dict(call.arguments)
        if size := workspace_of(call.op, call.arguments):
            found[call.op]["workspace"] = room(size)
    return found


def room(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def refused(op: str, arguments: dict[str, object], match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        getattr(torch.ops.specfast, op)(**arguments)


def moved(arguments: dict[str, object]) -> dict[str, object]:
    return {n: on_cuda(a) if isinstance(a, Tensor) else a for n, a in arguments.items()}


def tensors(needed: str = "") -> list[tuple[str, str]]:
    """(op, argument) of every tensor, or of those of that name."""
    return [
        (op, name)
        for op, arguments in operands().items()
        for name, argument in arguments.items()
        if isinstance(argument, Tensor) and needed in ("", name)
    ]


def test_every_op_but_the_cpus_own_has_a_kernel():
    found = {name for name in ops._OUT_VARIANTS if HAS_KERNEL(f"specfast::{name}", "CUDA")}
    assert found == set(ops._OUT_VARIANTS) - CPU_ONLY == set(operands())
    assert found <= {path.stem for path in (ROOT / "csrc" / "cuda").glob("*.cu")}


if not torch.cuda.is_available():  # else these values would be looked at

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("op", operands())
    def test_an_op_gets_to_its_launch_whatever_the_values(op, dtype):
        arguments = operands(dtype)[op]
        for argument in arguments.values():
            if isinstance(argument, Tensor) and not argument.is_floating_point():
                argument.fill_(99)
        refused(op, moved(arguments), f"^{op}: .*(CPU build|CUDA error)")


@pytest.mark.parametrize(("op", "name"), tensors())
def test_the_tensor_elsewhere_is_named(op, name):
    arguments = operands()[op]
    tensor = arguments[name]
    away = {**moved(arguments), name: tensor}
    refused(op, away, rf"{name}: is on cpu, but \w+ on cuda:0|: is on cuda:0, but {name} on cpu")
    away = {**moved(arguments), name: on_cuda(tensor, 1)}
    refused(op, away, rf"{name}: is on cuda:1, but|but {name} on cuda:1")


@pytest.mark.parametrize("op", operands())
def test_activations_are_bf16_on_cuda_only(op):
    floats, halves = operands()[op], operands(torch.bfloat16)[op]
    changed = [n for n, a in floats.items() if isinstance(a, Tensor) and a.dtype != halves[n].dtype]
    for name in changed:
        refused(op, {**moved(halves), name: on_cuda(halves[name].half())}, f"{name}: dtype must be")
    if changed:
        refused(op, halves, "dtype must be Float, got BFloat16")


@pytest.mark.parametrize(("op", "name"), tensors("workspace"))
def test_a_workspace_too_small_is_told_its_size(op, name):
    arguments = moved(operands()[op])
    small, odd = room(3), room(arguments[name].numel() + 32)
    if op != "tree_attention":  # which makes do with less
        want = arguments[name].numel()
        refused(op, {**arguments, name: None}, f"workspace: must have {want} bytes, got 0")
        refused(op, {**arguments, name: on_cuda(small)}, f"must have {want} bytes, got 3")
    odd = odd[16 - odd.data_ptr() % 16 + 4 :]
    refused(op, {**arguments, name: on_cuda(odd)}, "workspace: must be 16-byte aligned")


def test_images_are_for_the_devices_promised():
    images = set(ops._C.cuda_images.split())
    assert images == {"sm_80", "sm_90", "sm_100", "compute_80"}


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 7), (9, 0), (10, 0), (10, 3), (12, 1)])
def test_a_later_device_has_an_image(capability):
    assert ops._C.cuda_misfit(*capability) == ""


def test_an_older_device_has_none_and_is_told_of_those_built():
    misfit = ops._C.cuda_misfit(7, 5)
    assert misfit.startswith("no kernel image fits compute capability 7.5; built are ")
    assert misfit.endswith(ops._C.cuda_images)


def test_what_goes_into_the_cache_is_alike_too():
    row = torch.ones(1, 1, 16)
    k, v, cache = on_cuda(row.bfloat16()), on_cuda(row), on_cuda(torch.zeros(2, 1, 1, 1, 16))
    slots, status = on_cuda(torch.zeros(1).long()), on_cuda(torch.zeros(1).int())
    with pytest.raises(RuntimeError, match="v: dtype must be BFloat16, got Float"):
        ops.kv_append(k, v, slots, cache, status)
    qkv, table = on_cuda(torch.ones(1, 48).bfloat16()), on_cuda(torch.ones(1, 0))
    with pytest.raises(RuntimeError, match="q_out: dtype must be BFloat16, got Float"):
        ops.rope_kv_append(qkv, table, status, slots, v, cache, status)


# A torch that keeps its CUDA half out of the extension's scope: the stream is found all the same.
TORCH_CUDA = """
#include <cstdint>
extern "C" {
int asked = -1;
int aoti_torch_get_current_cuda_stream(int32_t device, void**) { return asked = device, 0; }
}
"""
USE_TORCH_CUDA = """
import ctypes, sys, torch
from specfast import ops
from tests.unit.fake_cuda import on_cuda
torch_cuda = ctypes.CDLL(sys.argv[1]) if len(sys.argv) > 1 else None
try:
    ops.silu_mul(on_cuda(torch.ones(2, 6), 3), on_cuda(torch.ones(2, 3), 3))
except RuntimeError as error:
    print("asked for", ctypes.c_int.in_dll(torch_cuda, "asked").value if torch_cuda else error)
"""


def first_call(*arguments: str | Path) -> str:
    command = [sys.executable, "-c", USE_TORCH_CUDA, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if torch.version.cuda is None:

    def test_torchs_stream_is_found_when_it_is_loaded(tmp_path):
        source, library = tmp_path / "torch_cuda.cpp", tmp_path / "libtorch_cuda.so"
        source.write_text(TORCH_CUDA)
        compile = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
        subprocess.run([*compile, source, "-o", library], check=True)
        assert first_call(library) == "asked for 3\n"

    def test_a_torch_without_streams_is_said_to_be_a_cpu_build():
        assert "this torch is a CPU build: it has no CUDA streams" in first_call()
