"""What the verification tests share: trees with their laws, all outcomes of a rule, joint laws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from specfast.reference_verification import DraftTree, Verdict

Path = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A fixed tree shape. sampled[i]: node i is drawn from the draft's law less its earlier
    siblings; else it is guess[i], whatever came before it.
    """

    parents: tuple[int, ...]
    sampled: tuple[bool, ...]
    guess: tuple[int, ...]

    def path_to(self, node: int, tokens: Path) -> Path:
        """The tokens from the root to a node, its own included; none for the root."""
        if node < 0:
            return ()
        return (*self.path_to(self.parents[node], tokens), tokens[node])


def chain(k: int, sampled: bool = True) -> Shape:
    return Shape(tuple(range(-1, k - 1)), (sampled,) * k, tuple(i % 2 for i in range(k)))


class Tables:
    """Random laws of the next token given those since the root: the target's, and a draft's over
    the tokens `drafted` (the rest have none).
    """

    def __init__(self, vocab: int, depth: int, seed: int, drafted: tuple[int, ...] | None = None):
        rng = np.random.default_rng(seed)
        self.vocab, self.depth = vocab, depth
        self.p, self.q = {}, {}
        for length in range(depth + 1):
            for context in product(range(vocab), repeat=length):
                self.p[context] = torch.from_numpy(rng.dirichlet(np.full(vocab, 0.7)))
                law = 0.5 * self.p[context] + torch.from_numpy(rng.dirichlet(np.full(vocab, 0.7)))
                if drafted is not None:
                    law[[t for t in range(vocab) if t not in drafted]] = 0
                self.q[context] = law / law.sum()

    def joint(self, emitted: dict[Path, float] | None = None) -> Tensor:
        """[vocab] * (depth + 1): the law of what follows the root, if the target continues what was
        emitted with these probabilities.
        """
        out = torch.zeros((self.vocab,) * (self.depth + 1), dtype=torch.float64)
        for prefix, weight in (emitted or {(): 1.0}).items():
            self._spread(prefix, weight, out)
        return out

    def _spread(self, prefix: Path, weight: float, out: Tensor) -> None:
        """Adds `weight` over all continuations of prefix, by the target's law."""
        if len(prefix) > self.depth:
            out[prefix[: self.depth + 1]] += weight
            return
        for token, p in enumerate(self.p[prefix].tolist()):
            if p > 0:
                self._spread((*prefix, token), weight * p, out)


def drawn_trees(shape: Shape, tables: Tables) -> Iterator[tuple[float, DraftTree]]:
    """Every tree of this shape that can be drawn, with its probability."""

    def grow(tokens: Path, laws: list, weight: float) -> Iterator[tuple[float, DraftTree]]:
        node = len(tokens)
        if node == len(shape.parents):
            yield weight, DraftTree(tokens, shape.parents, laws)
            return
        parent = shape.parents[node]
        if not shape.sampled[node]:
            yield from grow((*tokens, shape.guess[node]), [*laws, None], weight)
            return
        law = tables.q[shape.path_to(parent, tokens)]
        left = law.clone()
        left[[tokens[i] for i in range(node) if shape.parents[i] == parent]] = 0
        left /= left.sum()
        for token, q in enumerate(left.tolist()):
            if q > 0:
                yield from grow((*tokens, token), [*laws, law], weight * q)

    return grow((), [], 1.0)


class Coins:
    """Fall as a script says, then for what is possible; `open` collects scripts not taken."""

    def __init__(self, script: tuple[bool, ...], open: list[tuple[bool, ...]]) -> None:
        self.script, self.open = script, open
        self.fallen: tuple[bool, ...] = ()
        self.weight = 1.0

    def __call__(self, node: int, h: float) -> bool:
        at = len(self.fallen)
        falls = self.script[at] if at < len(self.script) else h > 0
        if at >= len(self.script) and 0 < h < 1:
            self.open.append((*self.fallen, False))
        self.weight *= h if falls else 1 - h
        self.fallen += (falls,)
        return falls


def outcomes(run: Callable[[Coins], Verdict]) -> Iterator[tuple[float, Verdict]]:
    """(probability, run(accept)) for every way in which the coins of a rule can fall."""
    scripts: list[tuple[bool, ...]] = [()]
    while scripts:
        coins = Coins(scripts.pop(), scripts)
        verdict = run(coins)
        yield coins.weight, verdict


Rule = Callable[[list[Tensor], DraftTree, Coins], Verdict]


def emitted_law(shape: Shape, tables: Tables, rule: Rule, edit: Callable = lambda t: t) -> Tensor:
    """[vocab] * (depth + 1): the law of what a step emits, continued by the target itself.

    rule(target laws, tree, accept) gives a Verdict; `edit` falsifies what the rule is told.
    """
    emitted: dict[Path, float] = defaultdict(float)
    for chance, tree in drawn_trees(shape, tables):
        told = edit(tree)
        target = [tables.p[shape.path_to(i, tree.tokens)] for i in range(-1, len(tree.tokens))]
        for weight, verdict in outcomes(lambda accept: rule(target, told, accept)):  # noqa: B023
            path = tuple(told.tokens[i] for i in verdict.path)
            for token, p in enumerate(verdict.law.tolist()):
                emitted[(*path, token)] += chance * weight * p
    return tables.joint(emitted)


def distance(a: Tensor, b: Tensor) -> float:
    """Total variation."""
    return float((a - b).abs().sum()) / 2


def without(tree: DraftTree, dropped: set[int]) -> DraftTree:
    """The tree less some nodes and all below them."""
    kept: list[int] = []
    for node, parent in enumerate(tree.parents):
        if node not in dropped and (parent < 0 or parent in kept):
            kept.append(node)
    return replace(
        tree,
        tokens=[tree.tokens[i] for i in kept],
        parents=[-1 if tree.parents[i] < 0 else kept.index(tree.parents[i]) for i in kept],
        laws=[tree.laws[i] for i in kept],
    )
