"""The attention and KV cache ops in plain torch, float64 where they round: their oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.reference import rms_norm


def _stored(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a cache of this dtype keeps of values [M, Hkv, D], and which rows had to be changed."""
    kept = values.to(torch.float32).to(dtype)
    finite = kept.isfinite()
    return kept.where(finite, 0), ~finite.flatten(1).all(1)


def kv_append(k: Tensor, v: Tensor, slots: Tensor, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """-> (the cache after the append, status [M] int32)."""
    cache, kept = kv_cache.clone(), slots >= 0
    status = torch.zeros(len(slots), dtype=torch.int32)
    for plane, values in zip(cache.flatten(1, 2), (k, v)):
        stored, changed = _stored(values, cache.dtype)
        plane[slots[kept]] = stored[kept]
        status[changed & kept] = 1
    return cache, status


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x [M, heads, D], angles [M, R]: pairs (d, d + R / 2) of the first R dimensions turn."""
    half = angles.shape[1] // 2
    cos, sin = angles.double()[:, None].tensor_split(2, -1)
    a, b, rest = x.tensor_split((half, 2 * half), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def rope_kv_append(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> (q [M, H, D] float64, the cache after the append, status [M] int32)."""
    kv_heads, dim = kv_cache.shape[3:]
    heads = qkv.double().unflatten(1, (-1, dim))
    q, k, v = heads.tensor_split((-2 * kv_heads, -kv_heads), 1)
    q = q if q_norm is None else rms_norm(q, None, q_norm, eps)[0]
    k = k if k_norm is None else rms_norm(k, None, k_norm, eps)[0]
    real = positions >= 0
    angles = cos_sin[positions.clamp(min=0).long()] if cos_sin.shape[1] else cos_sin.new_zeros(1, 0)
    q = _rotated(q, angles).where(real[:, None, None], 0)
    return q, *kv_append(_rotated(k, angles), v, slots, kv_cache)


def kv_compact(
    cache: Tensor, block_tables: Tensor, node_base: Tensor, path: Tensor, num_accepted: Tensor
) -> Tensor:
    """-> the cache after the moves."""
    moved, size = cache.clone(), cache.shape[3]
    old, new = cache.flatten(2, 3), moved.flatten(2, 3)
    for table, base, nodes, count in zip(block_tables, node_base, path, num_accepted):
        slots = (table.long()[:, None] * size + torch.arange(size)).flatten()
        target = slots[base : base + count]
        new[:, :, target] = old[:, :, slots[base + nodes[:count]]]
    return moved


def visible_slots(
    position: int, bits: int, table: Tensor, block_size: int, base: int, start: int, window: int
) -> Tensor:
    """The slots that a row of tree_attention sees, in the order of their logical positions."""
    begin = max(start, position + 1 - window) if window else start
    nodes = [base + i for i in range(64) if bits >> i & 1]
    logical = [*range(min(base, position + 1)), *nodes][begin:]
    places = torch.tensor(logical, dtype=torch.int64)
    return table.long()[places // block_size] * block_size + places % block_size


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, soft_cap: float) -> Tensor:
    """One row: q [H, D], k and v [n, Hkv, D] -> [H, D] float64; 0 where it sees nothing."""
    if len(k) == 0:
        return torch.zeros(q.shape, dtype=torch.float64)
    k, v = (t.double().repeat_interleave(len(q) // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("hd,nhd->hn", q.double(), k) * scale
    scores = soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v)


def tree_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    qo_indptr: Tensor,
    node_base: Tensor,
    kv_start: Tensor,
    positions: Tensor,
    node_bits: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """-> [M, H, D] float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    k, v = kv_cache.flatten(1, 2)
    for b, table in enumerate(block_tables):
        base, start = int(node_base[b]), int(kv_start[b])
        for row in range(int(qo_indptr[b]), int(qo_indptr[b + 1])):
            bits = int(node_bits[row]) & (1 << 64) - 1
            slots = visible_slots(
                int(positions[row]), bits, table, kv_cache.shape[2], base, start, window
            )
            out[row] = attend(q[row], k[slots], v[slots], scale, soft_cap)
    return out
