"""A tree over the candidates of heads that don't see each other: fixed, and best first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

Path = tuple[int, ...]  # the candidate taken by head 0, 1, ...


def best_paths(
    accuracies: np.ndarray, num_nodes: int, allowed: Collection[Path] | None = None
) -> list[Path]:
    """The nodes of the tree that is expected to be accepted furthest, best first: so each beginning
    of the list is the best tree of its size.

    accuracies [heads, candidates]: how often each is right. A node is worth the product along
    its path, which its parent is worth at least. allowed: the only nodes there may be.
    """
    paths: list[Path] = []
    heap: list[tuple[float, int, Path]] = []

    def push_children(path: Path, reach: float) -> None:
        if len(path) < len(accuracies):
            for rank, share in enumerate(accuracies[len(path)].tolist()):
                child = (*path, rank)
                if share > 0 and (allowed is None or child in allowed):
                    heappush(heap, (-reach * share, len(child), child))

    push_children((), 1.0)
    while heap and len(paths) < num_nodes:
        reach, _, path = heappop(heap)
        paths.append(path)
        push_children(path, -reach)
    return paths


@dataclass(frozen=True)
class CandidateTree:
    """Nodes [N]: heads and ranks say whose candidate each is; parents as in Proposal."""

    heads: np.ndarray
    ranks: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, paths: Sequence[Path]) -> CandidateTree:
        """Of paths each of which comes after its beginnings."""
        number = {path: node for node, path in enumerate(paths)}
        columns = (
            [len(path) - 1 for path in paths],
            [path[-1] for path in paths],
            [number.get(path[:-1], -1) for path in paths],
        )
        return cls(*np.array(columns, np.int32))

    def __len__(self) -> int:
        return len(self.heads)

    @cached_property
    def is_above(self) -> np.ndarray:
        """[N, N] bool: row is column, or an ancestor of it."""
        above = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                above[:, node] |= above[:, parent]
        return above

    def kept(self, is_there: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """[B, N] bool: the best nodes within limits [B, 2] (depth, nodes) that are there, with all
        above them.
        """
        is_there = is_there & (self.heads < limits[:, :1])
        keep = ~(~is_there @ self.is_above)
        return keep & (np.cumsum(keep, axis=1) <= limits[:, 1:])
