"""Trees over independent heads: optimal at every size, and cut to limits as such."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from specfast.proposers.candidate_tree import CandidateTree, best_paths


def reach(accuracies, path) -> float:
    return math.prod(float(accuracies[j][rank]) for j, rank in enumerate(path))


def expected_length(accuracies, paths) -> float:
    return sum(reach(accuracies, path) for path in paths)


def every_tree(num_heads, num_ranks, size):
    """All sets of so many nodes that hold the parent of each."""
    nodes = [
        path
        for depth in range(1, num_heads + 1)
        for path in itertools.product(range(num_ranks), repeat=depth)
    ]
    for chosen in itertools.combinations(nodes, size):
        held = {(), *chosen}
        if all(path[:-1] in held for path in chosen):
            yield chosen


def random_accuracies(seed, num_heads, num_ranks):
    """Not sorted by rank: what is measured need not be."""
    rng = np.random.default_rng(seed)
    return (rng.random((num_heads, num_ranks)) / 1.2).astype(np.float32)


@pytest.mark.parametrize("num_heads, num_ranks, size", [(3, 2, 4), (2, 3, 5), (3, 2, 6), (4, 1, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_no_tree_of_its_size_is_expected_to_be_accepted_further(seed, num_heads, num_ranks, size):
    accuracies = random_accuracies(seed, num_heads, num_ranks)
    paths = best_paths(accuracies, size)
    best = max(expected_length(accuracies, t) for t in every_tree(num_heads, num_ranks, size))
    assert len(set(paths)) == size
    assert expected_length(accuracies, paths) == pytest.approx(best, abs=1e-12)


def test_each_beginning_is_the_best_tree_of_its_size():
    accuracies = random_accuracies(7, 4, 8)
    whole = best_paths(accuracies, 64)
    assert len(whole) == 64
    for size in range(64):
        assert best_paths(accuracies, size) == whole[:size]
    reaches = [reach(accuracies, path) for path in whole]
    assert reaches == sorted(reaches, reverse=True)


def test_what_is_never_right_and_what_is_not_allowed_is_left_out():
    accuracies = np.array([[0.5, 0.0], [0.4, 0.3]], np.float32)
    assert best_paths(accuracies, 9) == [(0,), (0, 0), (0, 1)]
    assert best_paths(accuracies, 9, {(0,), (0, 1), (1,)}) == [(0,), (0, 1)]
    assert len(CandidateTree.of(best_paths(np.zeros((2, 2)), 9))) == 0


def test_a_tree_is_cut_to_the_best_one_within_its_limits():
    accuracies = random_accuracies(3, 4, 6)
    paths = best_paths(accuracies, 64)
    tree = CandidateTree.of(paths)
    assert [paths[p] if p >= 0 else () for p in tree.parents] == [path[:-1] for path in paths]
    limits = np.array([[depth, nodes] for depth in range(5) for nodes in (0, 1, 3, 8, 20)])
    keep = tree.kept(np.ones((len(limits), 64), bool), limits)
    for (depth, nodes), row in zip(limits.tolist(), keep):
        kept = [path for path, is_kept in zip(paths, row) if is_kept]
        assert kept == best_paths(accuracies[:depth], nodes)[: len(kept)]
        assert len(kept) == nodes or depth < 4


def test_what_is_missing_takes_along_what_hangs_on_it():
    tree = CandidateTree.of([(0,), (0, 0), (1,), (0, 0, 2), (1, 0), (0, 1)])
    is_there = np.ones((2, 6), bool)
    is_there[0, 1] = is_there[1, 0] = False
    keep = tree.kept(is_there, np.array([[3, 6], [3, 6]]))
    assert keep.tolist() == [
        [True, False, True, False, True, True],
        [False, False, True, False, True, False],
    ]
    keep = tree.kept(is_there, np.array([[2, 3], [1, 6]]))
    assert keep.sum(1).tolist() == [3, 1]
