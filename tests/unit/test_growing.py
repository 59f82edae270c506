"""How wide trees grow, and which sequence's slots a draft forward takes first."""

from __future__ import annotations

import numpy as np
import pytest

from specfast.proposers.growing import rows_within, tree_shape
from specfast.speculative_config import MAX_NODES


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 33, 64])
def test_what_is_extended_fits_the_bits_of_a_tree(depth, draws):
    for nodes in (None, depth, min(2 * depth, MAX_NODES), MAX_NODES):
        width, children = tree_shape(depth, nodes, draws)
        assert 1 <= width <= children
        assert width * (depth - 1) <= MAX_NODES
        if nodes in (None, depth):
            assert (width, children) == (1, 1)


def test_the_shortest_gaps_come_first_within_the_rows():
    gaps = np.array([5, 2, 0, 4], np.int32)
    assert rows_within(gaps, 100).tolist() == [5, 2, 0, 4]
    assert rows_within(gaps, 7).tolist() == [1, 2, 0, 4]
    assert rows_within(gaps, 1).tolist() == [0, 1, 0, 0]
