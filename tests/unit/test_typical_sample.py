from __future__ import annotations

import math

import pytest
import torch

from specfast import ops
from specfast import reference_verification as reference
from specfast.reference_verification import RowSettings
from tests.unit.exact import raw, same_bytes
from tests.unit.sampling_ops import sample
from tests.unit.test_rejection_sample import SETTINGS, operands, random_case
from tests.unit.verification_ops import Trees, i32, reject, typical


def run(case, **changes):
    values = {**case.settings, **changes}
    return typical(case.logits, case.trees, case.roots, case.seeds, **values)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", [2, 17, 300])
def test_any_tree_agrees_with_the_reference(vocab, settings):
    case = random_case(60, vocab, SETTINGS[settings])
    got, clear = run(case), 0
    positions = case.trees.positions(case.roots)
    for b in range(60):
        path, margin = reference.typical_path(
            case.rows(b), RowSettings(**case.settings), case.tree(b), 0.09, 0.3
        )
        if margin < 1e-5:
            continue
        clear += 1
        last = path[-1] if path else -1
        row = int(case.trees.row_base[b]) + 1 + last
        token = sample(
            case.logits[row][None],
            seed=case.seeds[b],
            position=int(positions[row]),
            **case.settings,
        ).tokens
        assert got.of(b) == (path, int(token), 0)
    assert clear > 50
    assert vocab > 2 or got.num_accepted.max() > 1


def test_greedy_rows_match():
    case = random_case(60, 5, {})
    args = (case.logits, case.trees, case.roots, case.seeds)
    assert raw(typical(*args, temperature=0.0).bits()) == raw(reject(*args, temperature=0.0).bits())


def test_tiers_and_threads_give_the_same_bytes():
    for vocab in (2, 17, 8200):
        case = random_case(6, vocab, SETTINGS["filtered"], seed=3)
        same_bytes(lambda: run(case).bits())  # noqa: B023


def test_the_longest_path_wins_and_of_equals_the_lowest():
    flat = torch.zeros(6, 2)
    flat[2, 0] = -math.inf  # below node 1, token 0 is impossible
    trees = Trees([[0, 1, 0, 1, 0]], [[-1, -1, 0, 0, 1]])
    assert typical(flat, trees, [0], [0]).of(0)[0] == [0, 2]
    trees = Trees([[0, 1, 0, 1, 1]], [[-1, -1, 1, 1, 3]])
    assert typical(flat, trees, [0], [0]).of(0)[0] == [1, 3, 4]


def test_the_threshold_is_entropys_where_that_is_lower():
    """Ten equal tokens: p = 0.1, exp(-H) = 0.1."""
    trees, logits = Trees([[3]], [[-1]]), torch.zeros(2, 10)
    for threshold, alpha, accepted in (
        (0.09, 0.3, 1),
        (0.2, 0.3, 1),
        (0.2, 1.1, 0),
        (0.11, 9.0, 0),
    ):
        got = typical(logits, trees, [0], [0], threshold, alpha)
        assert int(got.num_accepted) == accepted


def test_statuses_count_on_the_path_alone():
    nan = math.nan
    logits = torch.tensor([[0.0, -math.inf], [nan, 0.0], [0.0, 0.0]])
    trees = Trees([[0, 0]], [[-1, 0]])
    assert typical(logits, trees, [0], [0]).of(0) == ([0], -1, ops.ROW_NAN)
    trees = Trees([[1, 0]], [[-1, 0]])
    assert typical(logits, trees, [0], [0]).of(0) == ([], 0, 0)
    got = typical(logits[[0, 2, 2]], trees, [0], [0], row_status=i32([1, 0, 0]))
    assert got.of(0) == ([], -1, 1)


def typical_operands() -> dict[str, object]:
    names = ("draft_laws", "law_row", "vocab_map", "by_token", "roots")
    shared = {k: v for k, v in operands().items() if k not in names}
    out = {k: shared.pop(k) for k in ("path", "num_accepted", "next_tokens", "status")}
    return {**shared, "threshold": 0.09, "alpha": 0.3, **out}


def test_opcheck():
    op = torch.ops.specfast.typical_sample.default
    torch.library.opcheck(op, tuple(typical_operands().values()))


WRONG = {
    "min_p: shape must be": {"min_p": torch.zeros(2)},
    r"parents\[0, 1\] must be": {"parents": i32([[-1, 1]])},
    "path: shape must be": {"path": i32([[0]])},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    with pytest.raises(RuntimeError, match=message):
        ops.typical_sample(**{**typical_operands(), **WRONG[message]})
