from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specfast import ops, reference
from tests.unit.exact import THREADS

NAN = ops.ROW_NAN


def i32(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def arguments(tokens, status, row_base, drafts, parents, lengths) -> dict[str, Tensor]:
    """The op's inputs, and outputs full of junk."""
    b, n = len(row_base), len(drafts[0])
    return {
        "tokens": i32(tokens),
        "row_status": i32(status),
        "row_base": i32(row_base),
        "draft_tokens": i32(drafts).reshape(b, n),
        "parents": i32(parents).reshape(b, n),
        "lengths": i32(lengths),
        "path": torch.full((b, n), 77, dtype=torch.int32),
        **{name: i32([77] * b) for name in ("num_accepted", "next_tokens", "status")},
    }


def accept(*args) -> list[tuple[list[int], int, int]]:
    """(accepted nodes, next token, status) a sequence; checks the padding of path."""
    a = arguments(*args)
    ops.accept_path(**a)
    out = []
    for b, count in enumerate(a["num_accepted"].tolist()):
        path = a["path"][b].tolist()
        assert path[count:] == [-1] * (len(path) - count)
        out.append((path[:count], int(a["next_tokens"][b]), int(a["status"][b])))
    return out


def accept_one(tokens, drafts, parents, status=None) -> tuple[list[int], int, int]:
    status = status or [0] * len(tokens)
    (result,) = accept(tokens, status, [0], [drafts], [parents], [len(drafts)])
    return result


def test_a_chain_stops_at_its_first_mismatch():
    assert accept_one([5, 6, 7, 8], [5, 6, 7], [-1, 0, 1]) == ([0, 1, 2], 8, 0)
    assert accept_one([5, 6, 7, 8], [5, 9, 7], [-1, 0, 1]) == ([0], 6, 0)
    assert accept_one([5, 6, 7, 8], [4, 6, 7], [-1, 0, 1]) == ([], 5, 0)


def test_the_right_branch_of_a_tree():
    #   0 and 1 hang on the root, 2 and 3 on 1, 4 on 3
    parents, drafts = [-1, -1, 1, 1, 3], [10, 11, 20, 21, 30]
    assert accept_one([11, 0, 21, 0, 30, 9], drafts, parents) == ([1, 3, 4], 9, 0)
    assert accept_one([10, 21, 21, 0, 30, 9], drafts, parents) == ([0], 21, 0)


def test_among_duplicate_siblings_the_lowest_node_wins():
    assert accept_one([5, 1, 2, 3], [5, 5, 2], [-1, -1, 1]) == ([0], 1, 0)


def test_only_statuses_on_the_path_count():
    drafts, parents = [5, 6, 7], [-1, -1, 0]
    assert accept_one([5, 7, 0, 3], drafts, parents, [0, 0, NAN, 0]) == ([0, 2], 3, 0)
    assert accept_one([5, 7, 0, 3], drafts, parents, [0, 0, 0, 4]) == ([0, 2], 3, 4)
    assert accept_one([5, 7, 0, 3], drafts, parents, [1, 4, 0, 0]) == ([0, 2], 3, 5)


def test_an_undecided_row_ends_the_path_and_matches_no_padding():
    assert accept_one([-1, 1, 1], [-1, 6], [-1, 0], [NAN, 0, 0]) == ([], -1, NAN)
    assert accept_one([5, -1, 1], [5, -1], [-1, 0], [0, NAN, 0]) == ([0], -1, NAN)


def test_padding_sequences_and_no_nodes():
    got = accept([3, 4], [0, 2], [-1, 1, 0], [[4], [4], [3]], [[-1]] * 3, [1, 0, 1])
    assert got == [([], -1, 0), ([], 4, 2), ([0], 4, 2)]
    assert accept([3, 4], [0, 0], [1, 0], [[], []], [[], []], [0, 0]) == [([], 4, 0), ([], 3, 0)]


@st.composite
def trees(draw) -> tuple:
    b, n = draw(st.integers(1, 5)), draw(st.integers(0, 9))
    token = st.integers(-1, 2)
    drafts = draw(st.lists(st.lists(token, min_size=n, max_size=n), min_size=b, max_size=b))
    parents = [[draw(st.integers(-1, i - 1)) for i in range(n)] for _ in range(b)]
    lengths = draw(st.lists(st.integers(0, n), min_size=b, max_size=b))
    rows, row_base = 0, []
    for length in lengths:
        row_base.append(draw(st.sampled_from((-1, rows))))
        rows += length + 1
    tokens = draw(st.lists(token, min_size=rows, max_size=rows))
    status = draw(st.lists(st.sampled_from((0, 1, 2, 4)), min_size=rows, max_size=rows))
    return tokens, status, row_base, drafts, parents, lengths


@given(trees())
def test_any_tree_agrees_with_the_reference(case):
    tokens, status, row_base, drafts, parents, lengths = case
    expected = [
        reference.accept_path(tokens, status, base, draft[:length], parent[:length])
        for base, draft, parent, length in zip(row_base, drafts, parents, lengths)
    ]
    assert accept(*case) == expected


def test_threads_give_the_same_paths(rng):
    b, n = 300, 16
    drafts = torch.randint(0, 3, (b, n), generator=rng).tolist()
    tokens = torch.randint(0, 3, (b * (n + 1),), generator=rng).tolist()
    case = (tokens, [0] * len(tokens), [i * (n + 1) for i in range(b)], drafts)
    case = (*case, [list(range(-1, n - 1))] * b, [n] * b)
    expected = accept(*case)
    for threads in THREADS:
        torch.set_num_threads(threads)
        assert accept(*case) == expected


def test_opcheck():
    a = arguments([5, 6, 7], [0, 0, 0], [0], [[5, 6]], [[-1, 0]], [2])
    torch.library.opcheck(torch.ops.specfast.accept_path.default, tuple(a.values()))


WRONG = {
    "tokens: dtype must be": {"tokens": torch.zeros(3, dtype=torch.int64)},
    "row_status: shape must be": {"row_status": i32([0, 0])},
    r"parents: shape must be \[1, 2\]": {"parents": i32([[-1]])},
    "path: must be contiguous": {"path": torch.zeros(1, 4, dtype=torch.int32)[:, ::2]},
    r"lengths\[0\] must be in \[0, N = 2\], got 3": {"lengths": i32([3])},
    r"row_base\[0\] = 1 and lengths\[0\] = 2 reach past the 3 rows": {"row_base": i32([1])},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    right = arguments([5, 6, 7], [0, 0, 0], [0], [[5, 6]], [[-1, 0]], [2])
    with pytest.raises(RuntimeError, match=message):
        ops.accept_path(**{**right, **WRONG[message]})


def test_the_largest_row_base_is_refused_too():
    right = arguments([5, 6, 7], [0, 0, 0], [0], [[5, 6]], [[-1, 0]], [2])
    with pytest.raises(RuntimeError, match="reach past"):
        ops.accept_path(**{**right, "row_base": torch.tensor([2**31 - 1], dtype=torch.int32)})
