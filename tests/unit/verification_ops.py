"""What the tests of verifying ops share: trees of a batch, and the ops with few arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from specfast import ops
from tests.unit.sampling_ops import column


def i32(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


@dataclass
class Trees:
    """Draft trees of a batch: tokens, parents and law rows, one list a sequence."""

    tokens: list[list[int]]
    parents: list[list[int]]
    law_row: list[list[int]] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max(map(len, self.tokens), default=0)

    def padded(self, rows: list[list[int]]) -> Tensor:
        width = self.width
        return i32([[*row, *[-1] * (width - len(row))] for row in rows]).view(len(rows), width)

    @property
    def lengths(self) -> Tensor:
        return i32([len(t) for t in self.tokens])

    @property
    def row_base(self) -> Tensor:
        """Each root's row where all rows follow each other."""
        return i32([*accumulate((1 + len(t) for t in self.tokens), initial=0)][:-1])

    def positions(self, roots: list[int]) -> Tensor:
        """Of the token that each row decides."""
        out = []
        for root, parents in zip(roots, self.parents):
            depth: list[int] = []
            for parent in parents:
                depth.append(1 + (depth[parent] if parent >= 0 else 0))
            out += [root, *(root + d for d in depth)]
        return i32(out)


@dataclass(frozen=True)
class Verified:
    path: Tensor
    num_accepted: Tensor
    next_tokens: Tensor
    status: Tensor

    def of(self, b: int) -> tuple[list[int], int, int]:
        """Accepted nodes, next token and status of one sequence; checks the padding."""
        count = int(self.num_accepted[b])
        path = self.path[b].tolist()
        assert path[count:] == [-1] * (len(path) - count)
        return path[:count], int(self.next_tokens[b]), int(self.status[b])

    def bits(self) -> Tensor:
        return torch.cat((self.path.flatten(), self.num_accepted, self.next_tokens, self.status))


def outputs(trees: Trees) -> tuple[Tensor, ...]:
    """Full of junk."""
    b = len(trees.tokens)
    path = torch.full((b, trees.width), 77, dtype=torch.int32)
    return path, *torch.full((3, b), 77, dtype=torch.int32)


def rows_of(
    logits: Tensor, trees: Trees, roots, seeds, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
) -> tuple[Tensor, ...]:
    """logits and how its rows are drawn from; seeds [B]; settings: one for all rows, or [R]."""
    n, per_seq = len(logits), torch.tensor([1 + len(t) for t in trees.tokens], dtype=torch.int64)
    seeds = torch.as_tensor(seeds, dtype=torch.int64).repeat_interleave(per_seq)
    return (
        logits,
        column(temperature, n, torch.float32),
        column(top_k, n, torch.int32),
        column(top_p, n, torch.float32),
        column(min_p, n, torch.float32),
        seeds,
        trees.positions(list(roots)),
    )


def reject(
    logits: Tensor, trees: Trees, roots, seeds, by_token=False, laws=None, vocab_map=None,
    row_status=None, row_base=None, **settings,
) -> Verified:  # fmt: skip
    """`rejection_sample` over rows that follow each other."""
    out = outputs(trees)
    status = torch.zeros(len(logits), dtype=torch.int32) if row_status is None else row_status
    ops.rejection_sample(
        *rows_of(logits, trees, roots, seeds, **settings),
        status, trees.row_base if row_base is None else row_base, i32(roots),
        trees.padded(trees.tokens), trees.padded(trees.parents), trees.lengths, by_token, *out,
        laws, trees.padded(trees.law_row) if laws is not None else None, vocab_map,
    )  # fmt: skip
    return Verified(*out)


def typical(
    logits: Tensor, trees: Trees, roots, seeds, threshold=0.09, alpha=0.3, row_status=None,
    **settings,
) -> Verified:  # fmt: skip
    out = outputs(trees)
    status = torch.zeros(len(logits), dtype=torch.int32) if row_status is None else row_status
    ops.typical_sample(
        *rows_of(logits, trees, roots, seeds, **settings), status, trees.row_base,
        trees.padded(trees.tokens), trees.padded(trees.parents), trees.lengths,
        threshold, alpha, *out,
    )  # fmt: skip
    return Verified(*out)


def draw(
    logits: Tensor, m: int, seeds, positions, nodes, roots, d2t=None,
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`draw_candidates` -> ids [R, m], laws [R, Vd]."""
    n = len(logits)
    ids, laws = torch.full((n, m), 77, dtype=torch.int32), torch.zeros(n, logits.shape[1])
    ops.draw_candidates(
        logits,
        column(temperature, n, torch.float32),
        column(top_k, n, torch.int32),
        column(top_p, n, torch.float32),
        column(min_p, n, torch.float32),
        column(seeds, n, torch.int64),
        column(positions, n, torch.int32),
        column(nodes, n, torch.int32),
        column(roots, n, torch.int32),
        ids,
        laws,
        d2t,
    )
    return ids, laws
