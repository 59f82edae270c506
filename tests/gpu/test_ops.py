"""The ops on a GPU against the same ops on the CPU: pytest tests/gpu, or bench/gpu/run.sh check."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specfast import ops
from tests.gpu.calls import BF16, BOUNDED, CALLS, CPU_ONLY, EXACT, F32, ONE_AN_OP, Call, Random
from tests.unit.exact import raw

DEVICES = [f"cuda:{i}" for i in range(min(2, torch.cuda.device_count()))]
DTYPES = pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
EACH_OP = pytest.mark.parametrize("name", ONE_AN_OP)
ENOUGH_MEMORY = torch.cuda.get_device_properties(0).total_memory > 30 << 30


def assert_bytes(got: list[Tensor], want: list[Tensor], names: list[str]) -> None:
    for name, g, w in zip(names, got, want):
        if raw(g) != raw(w):
            apart = (g.flatten() != w.flatten()).nonzero().flatten()
            where = apart[:5].tolist()
            pytest.fail(
                f"{name} differs in {len(apart)} of {g.numel()}, at {where}: "
                f"{g.flatten()[where].tolist()}, the CPU has {w.flatten()[where].tolist()}"
            )


def assert_near(call: Call, got: Tensor) -> None:
    """Weights are rounded to bf16: each is off by 2^-9 at the most, independently of the others."""
    want, got = call.activations(F32).to("cpu").run()[0].double(), got.double()
    rounding = 2**-9 * want.abs() if call.arguments["out"].dtype == BF16 else 0
    most = 2**-8 * 1.01 * call.arguments["kv_cache"][1].abs().max() + rounding
    assert ((got - want).abs() <= most).all()
    assert (got - want).norm() <= 4e-3 * want.norm()


def check(call: Call, got: list[Tensor]) -> None:
    if call.op == "tree_attention":
        assert_near(call, got[0])
    else:
        assert_bytes(got, call.on_cpu(), call.outputs)


@pytest.mark.parametrize("op", sorted({*ops._OUT_VARIANTS} - CPU_ONLY))
def test_op_has_a_kernel(op):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specfast::{op}", "CUDA")


@DTYPES
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EXACT)
def test_bytes_are_those_of_the_cpu(name, dtype, seed):
    call = EXACT[name](Random(seed)).activations(dtype)
    check(call, call.to("cuda").run())


@DTYPES
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BOUNDED)
def test_attention_is_near_that_of_the_cpu(name, dtype, seed):
    call = BOUNDED[name](Random(seed)).activations(dtype)
    check(call, call.to("cuda").run())


@pytest.mark.parametrize("name", BOUNDED)
def test_a_row_does_not_depend_on_its_neighbours(name):
    whole = BOUNDED[name](Random(5)).to("cuda")
    (expected,) = whole.run()
    ends, positions = whole.arguments["qo_indptr"].tolist(), whole.arguments["positions"]
    for row in (0, 1, 2, 30, 41, 42, 100, 131, 132):
        b = sum(row >= end for end in ends[1:])
        one = {n: whole.arguments[n][row : row + 1] for n in ("q", "positions", "node_bits", "out")}
        of = ("block_tables", "node_base", "kv_start")
        own = {n: whole.arguments[n][b : b + 1] for n in of}
        indptr = torch.tensor([0, 1], dtype=torch.int32, device=positions.device)
        (alone,) = whole.changed(**one, **own, qo_indptr=indptr).run()
        assert raw(alone) == raw(expected[row : row + 1]), f"row {row}"


@EACH_OP
def test_two_runs_give_the_same_bytes(name):
    call = CALLS[name](Random(6))
    first, second = call.to("cuda").run(), call.to("cuda").run()
    assert_bytes(second, first, call.outputs)


@EACH_OP
def test_a_graph_follows_its_inputs(name):
    """Captured with one problem, replayed with another of the same shape."""
    one, other = (CALLS[name](Random(seed)).activations(BF16) for seed in (7, 8))
    static, fresh = one.to("cuda"), other.to("cuda")
    static.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        getattr(torch.ops.specfast, static.op)(**static.arguments)
    for argument, t in static.tensors.items():
        t.copy_(fresh.tensors[argument])
    graph.replay()
    check(other, [static.arguments[n].cpu() for n in static.outputs])


@EACH_OP
def test_the_current_stream_is_taken(name):
    """Inputs arrive late on a stream of our own: whoever runs elsewhere reads what was there."""
    call, stream = CALLS[name](Random(9)).activations(BF16), torch.cuda.Stream()
    call.to("cuda").run()  # loads the kernels, which may wait for everybody
    late = call.to("cuda").with_tensors(lambda _, t: torch.zeros_like(t))
    arguments = call.to("cuda").tensors
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for argument, t in late.tensors.items():
            t.copy_(arguments[argument])
        getattr(torch.ops.specfast, call.op)(**late.arguments)
    stream.synchronize()
    check(call, [late.arguments[n].cpu() for n in late.outputs])


@pytest.mark.parametrize("device", DEVICES)
@EACH_OP
def test_each_device_is_taken_whichever_is_current(name, device):
    call = CALLS[name](Random(10))
    with torch.cuda.device(DEVICES[0]):
        check(call, call.to(device).run())


@EACH_OP
def test_a_tensor_elsewhere_is_named(name):
    call = CALLS[name](Random(11)).to("cuda")
    for argument, t in call.tensors.items():
        with pytest.raises(RuntimeError, match=rf"\b{argument}(: is on| on) cpu"):
            call.changed(**{argument: t.cpu()}).run()


@EACH_OP
def test_a_tensor_of_another_dtype_is_named(name):
    call = CALLS[name](Random(12)).to("cuda")
    for argument, t in call.tensors.items():
        with pytest.raises(RuntimeError, match=rf"\b{argument}: dtype must be"):
            call.changed(**{argument: t.to(torch.float16)}).run()


if ENOUGH_MEMORY:

    @pytest.mark.parametrize("name", ["kv_append bfloat16", "rope_kv_append bfloat16"])
    def test_slots_past_32_bits(name):
        """A cache of 2^32 elements a plane; the rows go to its last slots."""
        call = CALLS[name](Random(13)).to("cuda")
        small = call.arguments["kv_cache"]
        blocks = 2**32 // small[0, 0].numel() + 5
        large = torch.empty(2, blocks, *small.shape[2:], dtype=BF16, device="cuda")
        slots, last = call.arguments["slots"], (blocks - 4) * 16
        large[:, -4:] = 0
        small[:, :] = 0
        call.run()
        shifted = torch.where(slots < 0, slots, slots + last)
        call.changed(kv_cache=large, slots=shifted).run()
        assert raw(large[:, -4:].cpu()) == raw(small.cpu())

    @pytest.mark.parametrize("name", ["sample_rows tokens alone", "rank_candidates"])
    def test_rows_past_32_bits(name):
        """Three rows that lie 2^31 elements and more apart."""
        call = CALLS[name](Random(14)).activations(BF16)
        rows = {n: t[:3].contiguous() for n, t in call.tensors.items() if n != "d2t"}
        call = call.changed(**rows).to("cuda")
        near, stride = call.arguments["logits"], 2**31 + 104
        memory = torch.empty(2 * stride + near.shape[1], dtype=BF16, device="cuda")
        far = memory.as_strided(near.shape, (stride, 1))
        far.copy_(near)
        assert_bytes(call.changed(logits=far).run(), call.run(), call.outputs)
