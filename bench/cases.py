"""Every op as something to time: ours, what torch does instead, and the bytes that it must move.

A case is called with a copy's index: copies have memory of their own, so many of them that what is
read comes from memory, as in a model of many layers. decoder_layers is a chain of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specfast import ops, workspace

F32, BF16 = torch.float32, torch.bfloat16
BLOCK_SIZE = 16
Call = Callable[[int], Any]


@dataclass(frozen=True)
class Place:
    """A device, a model's shape there, the dtypes of activations and of what is stored.

    cold: bytes that evict what was used before them.
    """

    device: str
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    ffn: int
    layers: int
    dtype: torch.dtype
    storage: torch.dtype = BF16
    cold: int = 96 << 20

    def copies(self, size: int) -> int:
        return max(1, min(64, -(-self.cold // max(size, 1))))

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.device).to(dtype or self.dtype)

    def ints(self, values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.as_tensor(values, device=self.device).to(dtype)

    def full(self, n: int, value: float, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full((n,), value, dtype=dtype, device=self.device)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def room(self, num_bytes: int) -> Tensor | None:
        """A workspace; on the CPU none is needed."""
        return None if self.device == "cpu" else self.empty(num_bytes, dtype=torch.uint8)

    def has(self, op: str) -> bool:
        key = "CPU" if self.device == "cpu" else "CUDA"
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"specfast::{op}", key)


SMOLLM2 = Place("cpu", 9, 3, 64, 576, 1536, 30, F32)
LLAMA3 = Place("cuda", 32, 8, 128, 4096, 14336, 32, BF16, cold=256 << 20)


@dataclass
class Case:
    """ours(i), theirs[name](i) for i < copies; size: bytes read and written once, at the least."""

    ours: Call
    theirs: dict[str, Call]
    size: int
    copies: int = 1
    flops: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


def width(dtype: torch.dtype) -> int:
    return dtype.itemsize


# --- attention and its cache ---


def tree_attention(place: Place, batch: int, rows: int, context: int, tree: bool = False) -> Case:
    """The last `rows` of `context` tokens of each sequence, plain rows or a tree with one root.

    torch gets K and V dense, without pages; of a tree it computes a chain, which is as much work.
    """
    token = place.kv_heads * place.dim
    size = batch * context * 2 * token * width(place.storage)
    copies, blocks = place.copies(size), -(-context // BLOCK_SIZE)
    cache = place.normal(copies, 2, batch * blocks, BLOCK_SIZE, place.kv_heads, place.dim)
    cache = cache.to(place.storage)
    tables = torch.randperm(batch * blocks, device=place.device).int().view(batch, blocks)
    base = context - rows if tree else context
    positions, bits = _rows_of_tree(rows, base) if tree else (range(base - rows, base), [0] * rows)
    q = place.normal(batch * rows, place.heads, place.dim)
    rest = (
        place.ints(range(0, (batch + 1) * rows, rows)),
        place.full(batch, base),
        place.full(batch, 0),
        place.ints([*positions] * batch),
        place.ints(bits * batch, torch.int64),
        torch.empty_like(q),
        place.dim**-0.5,
    )
    sizes = (batch * rows, place.heads, place.kv_heads, place.dim, batch, blocks * BLOCK_SIZE)
    room = place.room(workspace.tree_attention(*sizes))
    k, v = place.normal(2, copies, batch, place.kv_heads, context, place.dim)
    heads = q.view(batch, rows, place.heads, place.dim).transpose(1, 2)
    return Case(
        lambda i: ops.tree_attention(q, cache[i], tables, *rest, workspace=room),
        {"sdpa": _sdpa(place, heads, k, v)},
        size,
        copies,
        4 * batch * rows * context * place.heads * place.dim,
        {"heads": heads, "k": k, "v": v, "bits": bits, "base": base},
    )


def _rows_of_tree(nodes: int, base: int) -> tuple[list[int], list[int]]:
    """Positions and ancestor-or-self bits of a binary tree in breadth-first order."""
    bits = [1]
    for i in range(1, nodes):
        bits.append(bits[(i - 1) // 2] | 1 << i)
    positions = [base + b.bit_count() - 1 for b in bits]
    return positions, [b - (b >> 63 << 64) for b in bits]


def _sdpa(place: Place, q: Tensor, k: Tensor, v: Tensor) -> Call:
    rows, context = q.shape[2], k.shape[3]
    if rows == 1:
        mask = None
    elif place.device == "cpu":
        mask = torch.ones(rows, context).tril(context - rows).bool()
    else:
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(rows, context)
    call = partial(F.scaled_dot_product_attention, q, attn_mask=mask, enable_gqa=True)
    return lambda i: call(k[i], v[i])


def _pages(place: Place, slots: int) -> tuple[Tensor, int]:
    blocks = -(-slots // BLOCK_SIZE)
    shape = (2, blocks, BLOCK_SIZE, place.kv_heads, place.dim)
    copies = place.copies(4 * slots * place.kv_heads * place.dim)
    return torch.zeros(copies, *shape, dtype=place.storage, device=place.device), copies


def rope_kv_append(place: Place, rows: int) -> Case:
    heads, kv, dim = place.heads, place.kv_heads, place.dim
    cache, copies = _pages(place, rows)
    qkv = place.normal(copies, rows, (heads + 2 * kv) * dim)
    angles, positions = place.normal(max(2048, rows), dim, dtype=F32), place.ints(range(rows))
    slots, status = torch.randperm(rows, device=place.device), place.full(rows, 0)
    q = place.empty(rows, heads, dim)

    def in_torch(i: int) -> None:
        x = qkv[i].view(rows, -1, dim)
        cos, sin = (t.repeat(1, 2)[:, None] for t in angles[positions].chunk(2, 1))
        a, b = x[:, : heads + kv].chunk(2, -1)
        turned = torch.cat((a, b), -1) * cos + torch.cat((-b, a), -1) * sin
        cache[i].flatten(1, 2)[0, slots] = turned[:, heads:].to(place.storage)
        cache[i].flatten(1, 2)[1, slots] = x[:, heads + kv :].to(place.storage)

    def ours(i: int) -> None:
        ops.rope_kv_append(qkv[i], angles, positions, slots, q, cache[i], status)

    size = (2 * heads + 2 * kv) * width(place.dtype) + 2 * kv * width(place.storage)
    return Case(ours, {"torch": in_torch}, rows * dim * size, copies)


def kv_append(place: Place, rows: int) -> Case:
    cache, copies = _pages(place, rows)
    k, v = place.normal(2, copies, rows, place.kv_heads, place.dim)
    slots, status = torch.randperm(rows, device=place.device), place.full(rows, 0)

    def index_copy(i: int) -> None:
        for plane, values in zip(cache[i].flatten(1, 2), (k[i], v[i])):
            plane.index_copy_(0, slots, values.to(place.storage))

    size = 2 * k[0].numel() * (width(place.dtype) + width(place.storage))
    ours = lambda i: ops.kv_append(k[i], v[i], slots, cache[i], status)  # noqa: E731
    return Case(ours, {"index_copy": index_copy}, size, copies)


def kv_compact(place: Place, batch: int, accepted: int) -> Case:
    """One call moves all layers; every second node was accepted."""
    blocks = batch * 2 * -(-2 * accepted // BLOCK_SIZE)
    shape = (place.layers, 2, blocks, BLOCK_SIZE, place.kv_heads, place.dim)
    cache = torch.zeros(shape, dtype=place.storage, device=place.device)
    tables = torch.randperm(blocks, device=place.device).int().view(batch, -1)
    path = 2 * torch.arange(accepted, device=place.device).int() + 1
    args = (cache, tables, place.full(batch, 3), path.repeat(batch, 1), place.full(batch, accepted))
    slots = tables.long()[:, :, None] * BLOCK_SIZE + place.ints(range(BLOCK_SIZE), torch.int64)
    slots, flat = slots.flatten(1), cache.flatten(2, 3)
    target, source = slots[:, 3 : 3 + accepted].flatten(), slots[:, 3 + path.long()].flatten()

    def indexed(i: int) -> None:
        flat[:, :, target] = flat[:, :, source]

    size = 4 * batch * accepted * place.layers * place.kv_heads * place.dim * width(place.storage)
    return Case(lambda i: ops.kv_compact(*args), {"indexing": indexed}, size)


# --- linears, norms and activations ---


def linear(place: Place, rows: int) -> Case:
    size = place.ffn * place.hidden * width(place.storage)
    weights = place.normal(place.copies(size), place.ffn, place.hidden).to(place.storage)
    packed, x = [ops.pack_linear(w) for w in weights], place.normal(rows, place.hidden)
    out, x_torch = place.empty(rows, place.ffn), x.to(place.storage)
    return Case(
        lambda i: ops.linear(x, packed[i], out),
        {"F.linear": lambda i: F.linear(x_torch, weights[i])},
        size + 4 * (x.numel() + out.numel()),
        len(weights),
        2 * rows * place.ffn * place.hidden,
    )


def rms_norm(place: Place, rows: int) -> Case:
    size = 2 * rows * place.hidden * width(place.dtype)
    x, out = place.normal(place.copies(size), rows, place.hidden), place.empty(rows, place.hidden)
    weight = torch.ones(place.hidden, device=place.device)
    theirs = partial(
        F.rms_norm, normalized_shape=(place.hidden,), weight=weight.to(place.dtype), eps=1e-5
    )
    ours = lambda i: ops.rms_norm(x[i], weight, 1e-5, out)  # noqa: E731
    return Case(ours, {"F.rms_norm": lambda i: theirs(x[i])}, size, len(x))


def silu_mul(place: Place, rows: int) -> Case:
    size = 3 * rows * place.ffn * width(place.dtype)
    x, out = place.normal(place.copies(size), rows, 2 * place.ffn), place.empty(rows, place.ffn)
    halves = x.chunk(2, -1)
    return Case(
        lambda i: ops.silu_mul(x[i], out),
        {"F.silu": lambda i: F.silu(halves[0][i]) * halves[1][i]},
        size,
        len(x),
    )
