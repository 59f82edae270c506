"""Verification other than matching, in float64: the rules with their coins as a parameter, so that
they can be enumerated, and the ops' twins, one sequence at a time.

A law is [V] float64 and sums to 1. Node -1 is the root; a node's law is that of the token after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import reference
from specfast import reference_sampling as sampling

ACCEPT, RESIDUAL, DRAFT = 1, 2, 3  # Philox purposes

# accept(node, h): whether the coin of `node` falls for what has probability h.
Accept = Callable[[int, float], bool]


@dataclass(frozen=True)
class DraftTree:
    """laws[i]: what node i was drawn from, before its earlier siblings' tokens were left out; None:
    a point mass.
    """

    tokens: Seqs[int]
    parents: Seqs[int]
    laws: Seqs[Tensor | None]

    def children(self, parent: int) -> list[int]:
        return [i for i, p in enumerate(self.parents) if p == parent]

    def drawn_from(self, node: int) -> Tensor | None:
        """A law that gives the node nothing can't be what it was drawn from: None too."""
        law = self.laws[node]
        if law is None:
            return None
        left = law.clone()
        left[[self.tokens[i] for i in self.children(self.parents[node]) if i < node]] = 0
        return left / left.sum() if left[self.tokens[node]] > 0 else None


@dataclass(frozen=True)
class Verdict:
    """path: accepted nodes; law: of the token after it, a residual if a child was rejected."""

    path: list[int]
    law: Tensor
    is_residual: bool


class _Open:
    """A node on the path whose children are being judged."""

    def __init__(self, tree: DraftTree, node: int, acc: float, target: Tensor) -> None:
        self.tree, self.node, self.acc, self.target = tree, node, acc, target
        self.law = target
        self.children = tree.children(node)
        self.is_residual = False

    def acc_of(self, child: int) -> float:
        token, law = self.tree.tokens[child], self.tree.drawn_from(child)
        p, q = self.acc * float(self.law[token]), 1.0 if law is None else float(law[token])
        return p / q if p < q else 1.0

    def reject(self, child: int) -> None:
        self.children.remove(child)
        self.is_residual = True
        law = self.tree.drawn_from(child)
        if law is None:
            law = torch.zeros_like(self.law)
            law[self.tree.tokens[child]] = 1.0
        rest = (self.acc * self.law - law).clamp_min(0)
        mass = float(rest.sum())
        if mass > 0:
            self.acc, self.law = mass / (mass + (1 - self.acc)), rest / mass
        else:
            self.acc, self.law, self.children = math.floor(self.acc), self.target, []


def verify(
    target: Seqs[Tensor], tree: DraftTree, accept: Accept, by_token: bool = False
) -> Verdict:
    """target[0]: the root's law; target[1 + i]: node i's. by_token: each node by itself, from the
    root on; else leaves first (block verification; on trees, traversal).
    """
    path = [_Open(tree, -1, 1.0, target[0])]
    while True:
        top = path[-1]
        if top.children:
            child = top.children[0]
            acc = top.acc_of(child)
            if by_token and not accept(child, acc):
                top.reject(child)
            else:
                path.append(_Open(tree, child, 1.0 if by_token else acc, target[1 + child]))
        elif by_token or len(path) == 1 or accept(top.node, top.acc):
            return Verdict([n.node for n in path[1:]], top.law, top.is_residual)
        else:
            path.pop()
            path[-1].reject(top.node)


@dataclass(frozen=True)
class RowSettings:
    """How each row of a sequence is drawn from."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def probs(self, logits: Tensor) -> Tensor:
        return sampling.sampling_probs(logits, self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def greedy(self) -> bool:
        return self.temperature < sampling.GREEDY_BELOW


def step_word(purpose: int, node: int) -> int:
    """Counter word 1 of a draw that belongs to one node of one step."""
    return purpose | node + 1 << 8


def coin(seed: int, position: int, node: int, root: int) -> float:
    """v, which a coin compares with its probability."""
    counter = torch.tensor([0, step_word(ACCEPT, node), position, root])
    return float(sampling.uniform(sampling.philox(seed, counter)[:1]))


def draw_candidates(
    logits: Tensor, settings: RowSettings, seed: int, position: int, node: int, root: int, m: int,
    d2t: Tensor | None = None,
) -> tuple[list[int], float]:  # fmt: skip
    """m target ids in the order drawn, fewer where the support ends; the least gap of the scores
    that decided it.
    """
    ids = torch.arange(len(logits)) if d2t is None else d2t.long()
    if settings.greedy:
        total = logits.double()
    else:
        word = step_word(DRAFT, node)
        total = settings.probs(logits).log() + sampling.noise(seed, position, ids, word, root)
    order = torch.sort(total, descending=True).indices
    order = order[total[order] > -math.inf][: m + 1]
    gaps = -total[order].diff()
    return ids[order][:m].tolist(), float(gaps.min()) if len(gaps) else math.inf


def rejection_sample(
    logits: Tensor, settings: RowSettings, tree: DraftTree, seed: int, root: int,
    by_token: bool = False,
) -> tuple[list[int], int, float]:  # fmt: skip
    """logits [1 + nodes, V] -> accepted nodes, the next token, and the margin of the nearest
    decision (how near float32 came to another).
    """
    if settings.greedy:
        return (*_match(logits, tree), math.inf)
    position = [root + d for d in _depths(tree)]
    margins = []

    def accept(node: int, h: float) -> bool:
        v = coin(seed, position[node] - 1, node, root)
        margins.append(abs(v - h))
        return v < h

    verdict = verify([settings.probs(x) for x in logits], tree, accept, by_token)
    last = verdict.path[-1] if verdict.path else -1
    word, step = (step_word(RESIDUAL, last), root) if verdict.is_residual else (0, 0)
    ids = torch.arange(logits.shape[1])
    total = verdict.law.log() + sampling.noise(seed, position[last], ids, word, step)
    best = torch.topk(total, 2).values
    margins.append(float(best[0] - best[1]))
    return verdict.path, int(total.argmax()), min(margins)


def typical_path(
    logits: Tensor, settings: RowSettings, tree: DraftTree, threshold: float, alpha: float
) -> tuple[list[int], float]:
    """logits [1 + nodes, V] -> the deepest path of typical nodes, of equals the one to the lowest
    node; and the margin of the nearest decision.
    """
    if settings.greedy:
        return _match(logits, tree)[0], math.inf
    laws = [settings.probs(x) for x in logits]
    paths: dict[int, list[int]] = {-1: []}
    margin = math.inf
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents)):
        if parent in paths:
            law = laws[1 + parent]
            entropy = float(torch.special.entr(law).sum())
            bar = min(threshold, alpha * math.exp(-entropy))
            margin = min(margin, abs(float(law[token]) - bar))
            if law[token] >= bar:
                paths[node] = [*paths[parent], node]
    return max(paths.values(), key=len), margin


def _match(logits: Tensor, tree: DraftTree) -> tuple[list[int], int]:
    decided = logits.argmax(-1).tolist()
    ok = [0] * len(decided)
    return reference.accept_path(decided, ok, 0, list(tree.tokens), list(tree.parents))[:2]


def _depths(tree: DraftTree) -> list[int]:
    """Of each node, and last of the root: tokens from the root's on, the node's own included."""
    depth: list[int] = []
    for parent in tree.parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return [*depth, 0]
