"""Every op against torch doing the same, in the shapes of SmolLM2-135M: pytest bench/kernels.py

A call is LAYERS layers' worth, each with memory of its own, so that what a step streams comes from
memory here too. A group pairs ours with torch's: compare the ratio, times drift with the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specfast import ops

LAYERS, HEADS, KV_HEADS, DIM, HIDDEN, FFN = 30, 9, 3, 64, 576, 1536
BLOCK_SIZE = 16
F32, BF16 = torch.float32, torch.bfloat16

Layer = Callable[[int], Any]
Pair = tuple[Layer, Layer]  # ours, torch's


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tree_attention(rows: int, context: int, dtype: torch.dtype) -> Pair:
    """The last `rows` of `context` tokens; torch has its K and V in fp32, dense, without pages."""
    blocks = -(-context // BLOCK_SIZE)
    cache = torch.randn(LAYERS, 2, blocks, BLOCK_SIZE, KV_HEADS, DIM).to(dtype)
    table, ends = torch.randperm(blocks).int()[None], ints(context)
    q, positions = torch.randn(rows, HEADS, DIM), torch.arange(context - rows, context).int()
    out, bits = torch.empty_like(q), torch.zeros(rows, dtype=torch.int64)
    rest = (table, ints(0, rows), ends, ints(0), positions, bits, out, DIM**-0.5)
    k, v = torch.randn(2, LAYERS, 1, KV_HEADS, context, DIM)
    q_heads = q.transpose(0, 1)[None].contiguous()
    mask = torch.ones(rows, context).tril(context - rows).bool() if rows > 1 else None
    sdpa = partial(F.scaled_dot_product_attention, q_heads, attn_mask=mask, enable_gqa=True)
    return lambda i: ops.tree_attention(q, cache[i], *rest), lambda i: sdpa(k[i], v[i])


def rope_kv_append(rows: int) -> Pair:
    cache = torch.zeros(LAYERS, 2, 64, BLOCK_SIZE, KV_HEADS, DIM, dtype=BF16)
    qkv, angles = torch.randn(rows, (HEADS + 2 * KV_HEADS) * DIM), torch.randn(2048, DIM)
    positions, slots = torch.arange(rows).int(), torch.randperm(1024)[:rows]
    q, status = torch.empty(rows, HEADS, DIM), torch.zeros(rows, dtype=torch.int32)

    def in_torch(i: int) -> None:
        x = qkv.view(rows, -1, DIM)
        cos, sin = (t.repeat(1, 2)[:, None] for t in angles[positions].chunk(2, 1))
        a, b = x[:, : HEADS + KV_HEADS].chunk(2, -1)
        turned = torch.cat((a, b), -1) * cos + torch.cat((-b, a), -1) * sin
        cache[i].flatten(1, 2)[0, slots] = turned[:, HEADS:].bfloat16()
        cache[i].flatten(1, 2)[1, slots] = x[:, HEADS + KV_HEADS :].bfloat16()

    ours = partial(ops.rope_kv_append, qkv, angles, positions, slots, q)
    return lambda i: ours(cache[i], status), in_torch


def kv_append(rows: int) -> Pair:
    cache = torch.zeros(LAYERS, 2, 64, BLOCK_SIZE, KV_HEADS, DIM, dtype=BF16)
    k, v = torch.randn(2, rows, KV_HEADS, DIM)
    slots, status = torch.randperm(1024)[:rows], torch.zeros(rows, dtype=torch.int32)

    def in_torch(i: int) -> None:
        for plane, values in zip(cache[i].flatten(1, 2), (k, v)):
            plane.index_copy_(0, slots, values.bfloat16())

    return lambda i: ops.kv_append(k, v, slots, cache[i], status), in_torch


def kv_compact(accepted: int) -> Pair:
    """One call moves all layers, so layer 0 does everything."""
    cache = torch.zeros(LAYERS, 2, 64, BLOCK_SIZE, KV_HEADS, DIM, dtype=BF16)
    table, path = torch.randperm(64).int()[None], 2 * torch.arange(accepted).int()[None] + 1
    slots = (table[0, :, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten().long()
    target, source = slots[100 : 100 + accepted], slots[100 + path[0].long()]
    flat, args = cache.flatten(2, 3), (cache, table, ints(100), path, ints(accepted))

    def in_torch(i: int) -> None:
        if i == 0:
            flat[:, :, target] = flat[:, :, source]

    return lambda i: i or ops.kv_compact(*args), in_torch


def linear(rows: int, dtype: torch.dtype) -> Pair:
    weights = torch.randn(LAYERS, FFN, HIDDEN).to(dtype)
    packed, x = [ops.pack_linear(w) for w in weights], torch.randn(rows, HIDDEN)
    out, x_torch = torch.empty(rows, FFN), x.to(dtype)
    return lambda i: ops.linear(x, packed[i], out), lambda i: F.linear(x_torch, weights[i])


def rms_norm(rows: int) -> Pair:
    x, weight, out = (
        torch.randn(LAYERS, rows, HIDDEN),
        torch.ones(HIDDEN),
        torch.empty(rows, HIDDEN),
    )
    theirs = partial(F.rms_norm, normalized_shape=(HIDDEN,), weight=weight, eps=1e-5)
    return lambda i: ops.rms_norm(x[i], weight, 1e-5, out), lambda i: theirs(x[i])


def silu_mul(rows: int) -> Pair:
    x, out = torch.randn(LAYERS, rows, 2 * FFN), torch.empty(rows, FFN)
    return lambda i: ops.silu_mul(x[i], out), lambda i: F.silu(x[i, :, :FFN]) * x[i, :, FFN:]


ROWS = (1, 5, 8, 512)
CONTEXTS = ((1, 128), (5, 128), (8, 128), (1, 1024), (5, 1024), (8, 1024), (512, 2048))
CASES: list[tuple[Callable[..., Pair], tuple]] = [
    *((tree_attention, (*shape, dtype)) for shape in CONTEXTS for dtype in (F32, BF16)),
    *((linear, (rows, dtype)) for rows in ROWS for dtype in (F32, BF16)),
    *((op, (rows,)) for op in (rope_kv_append, kv_append, rms_norm, silu_mul) for rows in ROWS),
    (kv_compact, (5,)),
]


def case_name(case: tuple[Callable[..., Pair], tuple]) -> str:
    op, arguments = case
    return " ".join([op.__name__, *(str(a).removeprefix("torch.") for a in arguments)])


@pytest.mark.parametrize("who", ("specfast", "torch"))
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_kernel(case: tuple[Callable[..., Pair], tuple], who: str, benchmark: Any) -> None:
    torch.manual_seed(0)
    op, arguments = case
    layer = op(*arguments)[who == "torch"]
    benchmark.group = case_name(case)
    benchmark(lambda: [layer(i) for i in range(LAYERS)])
