"""Covering rows: all pairs, few rows, forbidden pairs kept out."""

from itertools import combinations, product

from specfast.pairwise import pairwise

FACTORS = {"a": [1, 2, 3], "b": [0, 1, 2], "c": [False, True], "d": ["x", "y"], "e": [4, 5]}


def met(rows, a, x, b, y):
    return any(row[a] == x and row[b] == y for row in rows)


def test_each_two_levels_meet():
    rows = pairwise(FACTORS)
    for a, b in combinations(FACTORS, 2):
        assert all(met(rows, a, x, b, y) for x, y in product(FACTORS[a], FACTORS[b]))
    assert 9 <= len(rows) <= 10, "3 x 3 needs 9 rows"
    assert all(list(row) == list(FACTORS) for row in rows)


def test_forbidden_pairs_stay_out_and_the_others_meet():
    def allowed(row):
        return not (row.get("a") == 1 and row.get("c"))

    rows = pairwise(FACTORS, allowed)
    assert not met(rows, "a", 1, "c", True)
    assert met(rows, "a", 1, "c", False) and met(rows, "a", 2, "c", True)


def test_the_same_rows_every_time():
    assert pairwise(FACTORS) == pairwise(FACTORS)
