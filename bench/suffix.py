"""Time of an append and of a draft: pytest bench/suffix.py --benchmark-columns=min,median

Texts of 8000 tokens: Zipf's law, a copy of itself, a loop; the pool has 200 answers of 500. Targets
are those that arctic-inference states: below 5 us a token appended and 16 us a draft.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from specfast._host import SuffixDrafter, SuffixTree
from specfast.proposers.base import MIN_SURVIVAL
from specfast.proposers.suffix import pool_doubt, text_doubt

SIZE, APPENDED = 8000, 100
LENGTHS = [1, *range(1, 24)]


def zipf(size: int, seed: int = 0) -> list[int]:
    return np.minimum(np.random.default_rng(seed).zipf(1.3, size), 40000).tolist()


TEXTS = {
    "zipf": zipf(SIZE),
    "copy": zipf(SIZE // 2) * 2,
    "loop": list(range(7)) * (SIZE // 7),
}


def tree_of(text: list[int]) -> SuffixTree:
    tree = SuffixTree(24, 2**26)
    tree.append(text)
    return tree


@pytest.fixture(scope="module")
def pool() -> SuffixTree:
    pool = SuffixTree(24, 2**28)
    for seed in range(200):
        pool.append(zipf(500, seed))
        pool.end_document()
    return pool


@pytest.mark.parametrize("text", TEXTS)
def test_append_of_100_tokens(benchmark, text: str) -> None:
    """One by one, as decoding appends; the tree goes on growing."""
    tree, tokens = tree_of(TEXTS[text][: SIZE // 2]), cycle(TEXTS[text][SIZE // 2 :])

    def append() -> None:
        for _ in range(APPENDED):
            tree.append([next(tokens)])

    benchmark.pedantic(append, rounds=SIZE // 2 // APPENDED)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pooled", [False, True], ids=["alone", "pool"])
@pytest.mark.parametrize("text", TEXTS)
def test_draft(benchmark, pool: SuffixTree, text: str, pooled: bool, temperature: float) -> None:
    """At different ends of the text, so that it is not always the same."""
    trees = cycle([tree_of(TEXTS[text][:end]) for end in range(SIZE - 200, SIZE, 13)])
    doubts = ([f(n) for n in LENGTHS] for f in (text_doubt, pool_doubt))
    drafter = SuffixDrafter(*doubts, MIN_SURVIVAL)
    shared = pool if pooled else None
    benchmark(lambda: drafter.draft(next(trees), shared, 8, 8, temperature, 1))
