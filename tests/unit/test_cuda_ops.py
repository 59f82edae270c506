"""The CUDA half of the ops as far as it runs without a GPU: up to the launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specfast import ops, workspace
from tests.unit.fake_cuda import on_cuda

ROOT = Path(__file__).parents[2]
HAS_KERNEL = torch._C._dispatch_has_kernel_for_dispatch_key
CPU_ONLY = {"linear", "decoder_layers"}
R, V, B, N, M, H, HKV, D, BLOCKS, BLOCK_SIZE = 3, 40, 2, 4, 3, 4, 2, 64, 5, 16


def i32(*shape: int) -> Tensor:
    """Values that the CPU would refuse: on CUDA nobody may look at them."""
    return torch.full(shape, 2**30, dtype=torch.int32)


def i64(*shape: int) -> Tensor:
    return torch.full(shape, 2**60)


def room(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def operands(dtype: torch.dtype = torch.float32) -> dict[str, dict[str, object]]:
    """For each op its schema's arguments; activations are of that dtype."""

    def x(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    f32 = torch.ones
    cache = torch.zeros(2, BLOCKS, BLOCK_SIZE, HKV, D).bfloat16()
    law = {"logits": x(R, V), "temperature": f32(R), "top_k": i32(R), "top_p": f32(R)}
    law |= {"min_p": f32(R), "seeds": i64(R), "positions": i32(R)}
    key = {name: law[name] for name in ("temperature", "seeds", "positions")}
    tree = {"draft_tokens": i32(B, N), "parents": i32(B, N), "lengths": i32(B)}
    path = {"path": i32(B, N), "num_accepted": i32(B), "next_tokens": i32(B), "status": i32(B)}
    rows = {"row_status": i32(R), "row_base": i32(B)}
    d2t, scores = {"d2t": i32(V)}, {"ids": i32(R, 2), "scores": f32(R, 2)}
    return {
        "rms_norm": {"x": x(M, D), "residual": x(M, D), "weight": f32(D), "eps": 1e-5,
                     "out": x(M, D), "sum_out": x(M, D)},
        "silu_mul": {"gate_up": x(M, 2 * D), "out": x(M, D)},
        "rope_kv_append": {"qkv": x(M, (H + 2 * HKV) * D), "cos_sin": f32(8, D),
                           "positions": i32(M), "slots": i64(M), "q_norm": f32(D),
                           "k_norm": f32(D), "eps": 1e-5, "q_out": x(M, H, D), "kv_cache": cache,
                           "status": i32(M)},
        "kv_append": {"k": x(M, HKV, D), "v": x(M, HKV, D), "slots": i64(M), "kv_cache": cache,
                      "status": i32(M)},
        "kv_compact": {"cache": cache[None], "block_tables": i32(B, 3), "node_base": i32(B),
                       "path": i32(B, N), "num_accepted": i32(B)},
        "tree_attention": {"q": x(M, H, D), "kv_cache": cache, "block_tables": i32(B, 64),
                           "qo_indptr": i32(B + 1), "node_base": i32(B), "kv_start": i32(B),
                           "positions": i32(M), "node_bits": i64(M), "scale": 0.1, "window": 0,
                           "soft_cap": 0.0, "out": x(M, H, D),
                           "workspace": room(workspace.tree_attention(M, H, HKV, D, B, 1024))},
        "sample_rows": {**law, "tokens": i32(R), "status": i32(R), "logprob_ids": i32(R, 3),
                        "logprobs": f32(R, 3), "workspace": room(workspace.sample_rows(R, V, 2))},
        "rank_candidates": {"logits": x(R, V), **d2t, **key, **scores,
                            "workspace": room(workspace.rank_candidates(R, V, 2))},
        "draw_candidates": {"logits": x(R, V), **d2t, **law, "nodes": i32(R), "roots": i32(R),
                            "ids": i32(R, 2), "laws": f32(R, V),
                            "workspace": room(workspace.draw_candidates(R, V, 2))},
        "accept_path": {"tokens": i32(R), **rows, **tree, **path},
        "rejection_sample": {**law, **rows, "roots": i32(B), **tree, "draft_laws": f32(2, 7),
                             "law_row": i32(B, N), "vocab_map": i32(7), "by_token": True, **path,
                             "workspace": room(workspace.rejection_sample(R, V, B, 2, 7))},
        "typical_sample": {**law, **rows, **tree, "threshold": 0.3, "alpha": 0.1, **path,
                           "workspace": room(workspace.typical_sample(R, V, B))},
    }  # fmt: skip


def refused(op: str, arguments: dict[str, object], match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        getattr(torch.ops.specfast, op)(*arguments.values())


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


def test_operands_are_the_schemas():
    for op, arguments in operands().items():
        schema = getattr(torch.ops.specfast, op).default._schema
        assert [a.name for a in schema.arguments] == list(arguments)


if not torch.cuda.is_available():  # else these values would be looked at

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("op", operands())
    def test_an_op_gets_to_its_launch_whatever_the_values(op, dtype):
        refused(op, moved(operands(dtype)[op]), f"^{op}: .*(CPU build|CUDA error)")


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
