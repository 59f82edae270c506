"""Few rows in which each two levels of two factors meet at least once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seqs
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

STARTS, CANDIDATES = 12, 40


def pairwise(
    factors: Mapping[str, Seqs[Any]], allowed: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """The shortest of several greedy covers, the same every time.

    allowed judges partial rows too; a pair that it forbids need not be covered.
    """
    required = {pair for pair in _every_pair(factors) if allowed(dict(pair))}
    covers = (_cover(factors, allowed, set(required), random.Random(s)) for s in range(STARTS))
    return min(covers, key=len)


def pairs_of(row: Row) -> set[Pair]:
    return set(combinations(row.items(), 2))


def _every_pair(factors: Mapping[str, Seqs[Any]]) -> set[Pair]:
    return {
        ((a, x), (b, y))
        for a, b in combinations(factors, 2)
        for x, y in product(factors[a], factors[b])
    }


def _cover(
    factors: Mapping[str, Seqs[Any]],
    allowed: Callable[[Row], bool],
    missing: set[Pair],
    rng: random.Random,
) -> list[Row]:
    rows = []
    while missing:
        starts = rng.choices(sorted(missing, key=repr), k=CANDIDATES)
        grown = [_grow(dict(s), factors, allowed, missing, rng) for s in starts]
        best = max(grown, key=lambda row: len(pairs_of(row) & missing))
        rows.append(best)
        missing -= pairs_of(best)
    return rows


def _grow(
    row: Row,
    factors: Mapping[str, Seqs[Any]],
    allowed: Callable[[Row], bool],
    missing: set[Pair],
    rng: random.Random,
) -> Row:
    """Adds factor after factor, each at the level that covers most of what is missing."""

    def covers(name: str, level: Any) -> tuple[int, float]:
        full = {
            k: v for k in factors for v in [level if k == name else row.get(k)] if v is not None
        }
        return len(pairs_of(full) & missing), rng.random()

    for name in rng.sample(list(factors), len(factors)):
        if name not in row:
            levels = [x for x in factors[name] if allowed({**row, name: x})]
            row[name] = max(levels, key=lambda level: covers(name, level))
    return {name: row[name] for name in factors}
