"""The CUDA half of the ops as far as it runs without a GPU: up to the launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specfast import ops
from tests.unit.fake_cuda import on_cuda

ROOT = Path(__file__).parents[2]
SOURCES = {path.stem for path in (ROOT / "csrc" / "cuda").glob("*.cu")}
HAS_KERNEL = torch._C._dispatch_has_kernel_for_dispatch_key


def test_every_kernel_source_has_its_op():
    found = {name for name in ops._OUT_VARIANTS if HAS_KERNEL(f"specfast::{name}", "CUDA")}
    assert found and found <= SOURCES  # equal when every kernel has landed


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


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        ops.silu_mul(gate_up, out)


def test_the_tensor_elsewhere_is_named():
    gate_up, out = torch.ones(2, 6), torch.ones(2, 3)
    silu_mul(on_cuda(gate_up), out, "out: is on cpu, but gate_up on cuda:0")
    silu_mul(gate_up, on_cuda(out, 1), "out: is on cuda:1, but gate_up on cpu")
    silu_mul(on_cuda(gate_up), on_cuda(out, 1), "out: is on cuda:1, but gate_up on cuda:0")


def test_bf16_activations_are_for_cuda_and_all_alike():
    gate_up, out = torch.ones(2, 6).bfloat16(), torch.ones(2, 3).bfloat16()
    silu_mul(gate_up, out, "gate_up: dtype must be Float, got BFloat16")
    silu_mul(on_cuda(gate_up), on_cuda(out.float()), "out: dtype must be BFloat16, got Float")
    silu_mul(on_cuda(gate_up.half()), on_cuda(out), "gate_up: dtype must be float32 or bfloat16")


def test_what_goes_into_the_cache_is_alike_too():
    row = torch.ones(1, 1, 16)
    k, v, cache = on_cuda(row.bfloat16()), on_cuda(row), on_cuda(torch.zeros(2, 1, 1, 1, 16))
    slots, status = on_cuda(torch.zeros(1).long()), on_cuda(torch.zeros(1).int())
    with pytest.raises(RuntimeError, match="v: dtype must be BFloat16, got Float"):
        ops.kv_append(k, v, slots, cache, status)
    qkv, table = on_cuda(torch.ones(1, 48).bfloat16()), on_cuda(torch.ones(1, 0))
    with pytest.raises(RuntimeError, match="q_out: dtype must be BFloat16, got Float"):
        ops.rope_kv_append(qkv, table, status, slots, v, cache, status)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_keeps_an_op_from_launching_is_said_with_its_name(dtype):
    if torch.cuda.is_available():
        gate_up, out = torch.ones(2, 6, device="cuda", dtype=dtype), torch.ones(2, 3, dtype=dtype)
        ops.silu_mul(gate_up, out := out.cuda())
        expected = torch.nn.functional.silu(torch.ones(2, 3))
        torch.testing.assert_close(out.float().cpu(), expected, rtol=1e-2, atol=0)
    else:
        gate_up, out = torch.ones(2, 6, dtype=dtype), torch.ones(2, 3, dtype=dtype)
        silu_mul(on_cuda(gate_up), on_cuda(out), "^silu_mul: ")


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
