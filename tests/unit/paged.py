"""What the attention tests share: sequences laid out in pages, and rows that look at them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specfast import ops
from specfast import reference_attention as reference

NAN = float("nan")


MAP_NORESERVE = 0x4000


def untouched(*shape: int) -> Tensor:
    """A bf16 tensor of any size: it takes memory only where it is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    pages = mmap.mmap(-1, 2 * math.prod(shape), flags=flags)
    return torch.frombuffer(pages, dtype=torch.bfloat16).view(shape)


@dataclass(frozen=True)
class Pool:
    """A cache that holds the sequences' K and V; every other slot is NaN."""

    data: Tensor  # [2, blocks, block_size, Hkv, D]
    tables: Tensor  # [B, W] int32; -1 past a sequence's blocks

    @property
    def block_size(self) -> int:
        return self.data.shape[2]

    def slots(self, b: int = 0) -> Tensor:
        """The slot of each logical position of sequence b."""
        offsets = torch.arange(self.block_size)
        return (self.tables[b].long()[:, None] * self.block_size + offsets).flatten()

    def poisoned(self, positions: Sequence[int], b: int = 0) -> Pool:
        data = self.data.clone()
        data.flatten(1, 2)[:, self.slots(b)[list(positions)]] = NAN
        return replace(self, data=data)


def pool(sequences: Sequence[Tensor], block_size: int, rng: torch.Generator) -> Pool:
    """sequences: [2, n, Hkv, D] each, in logical order; their blocks are scattered."""
    widths = [-(-s.shape[1] // block_size) for s in sequences]
    blocks = torch.randperm(sum(widths) + 2, generator=rng).int()
    tables = torch.full((len(sequences), max(widths)), -1, dtype=torch.int32)
    shape = (2, len(blocks), block_size, *sequences[0].shape[2:])
    made = Pool(torch.full(shape, NAN, dtype=sequences[0].dtype), tables)
    for b, (kv, own) in enumerate(zip(sequences, blocks.split([*widths, 2]))):
        tables[b, : len(own)] = own
        made.data.flatten(1, 2)[:, made.slots(b)[: kv.shape[1]]] = kv
    return made


@dataclass(frozen=True)
class Rows:
    """Rows of one sequence: q [m, H, D], positions [m]; nodes from logical slot base on."""

    q: Tensor
    positions: Tensor
    bits: Tensor
    base: int
    start: int = 0

    def __getitem__(self, rows: slice) -> Rows:
        return replace(self, q=self.q[rows], positions=self.positions[rows], bits=self.bits[rows])

    def __len__(self) -> int:
        return len(self.q)


def plain(q: Tensor, first: int) -> Rows:
    """Consecutive tokens from logical position `first` on."""
    positions = torch.arange(first, first + len(q), dtype=torch.int32)
    return Rows(q, positions, torch.zeros(len(q), dtype=torch.int64), first + len(q))


def paths(parents: Sequence[int]) -> list[list[int]]:
    """Each node's ancestors and itself, the shallowest first."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def nodes(q: Tensor, base: int, parents: Sequence[int]) -> Rows:
    """One row a draft node; node i lies at logical slot base + i."""
    found = paths(parents)
    masks = [sum(1 << n for n in path) for path in found]
    bits = torch.tensor([m - (m >> 63 << 64) for m in masks], dtype=torch.int64)
    depths = torch.tensor([base + len(path) - 1 for path in found], dtype=torch.int32)
    return Rows(q, depths, bits, base)


def random_tree(n: int, rng: torch.Generator) -> list[int]:
    return [int(torch.randint(-1, max(i, 1), (), generator=rng)) if i else -1 for i in range(n)]


@dataclass(frozen=True)
class Law:
    window: int = 0
    soft_cap: float = 0.0
    start: int = 0


LAWS = {
    "plain": Law(),
    "window": Law(window=70),
    "soft cap": Law(soft_cap=3.0),
    "kv_start": Law(start=61),
    "all": Law(window=200, soft_cap=20.0, start=130),
}


def _inputs(made: Pool, sequences: Sequence[Rows], law: Law) -> tuple[Tensor, ...]:
    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    lengths = torch.tensor([0, *map(len, sequences)])
    return (
        torch.cat([s.q for s in sequences]),
        made.data,
        made.tables[: len(sequences)],
        lengths.cumsum(0).int(),
        ints([s.base for s in sequences]),
        ints([max(s.start, law.start) for s in sequences]),
        torch.cat([s.positions for s in sequences]),
        torch.cat([s.bits for s in sequences]),
    )


def attend(made: Pool, *sequences: Rows, law: Law = LAWS["plain"]) -> Tensor:
    """[M, H, D] of tree_attention; sequence b's rows use the pool's table b."""
    inputs = _inputs(made, sequences, law)
    out = torch.full_like(inputs[0], NAN, memory_format=torch.contiguous_format)
    scale = inputs[0].shape[-1] ** -0.5
    ops.tree_attention(*inputs, out, scale, law.window, law.soft_cap)
    return out


def expected(made: Pool, *sequences: Rows, law: Law = LAWS["plain"]) -> Tensor:
    """The same in float64."""
    inputs = _inputs(made, sequences, law)
    scale = inputs[0].shape[-1] ** -0.5
    return reference.tree_attention(*inputs, scale, law.window, law.soft_cap)
