"""What steps take is found from the steps, from a profile, or from both."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfast.control.cost_model import MAX_SURPRISE, CostModel, DraftCost, StepLoad
from specfast.control.cost_profile import CostProfile

STAIRS = CostProfile((1, 4, 5, 8, 64), (1.0, 1.0, 1.5, 1.6, 9.0), 2e-4, 1e-4)


def known_cost(fixed, row, once=0.0, each=0.0):
    model, rng = CostModel(), np.random.default_rng(0)
    for _ in range(200):
        for rows in (1, 2, 5, 9):
            context = int(rng.integers(1, 2000))
            load = StepLoad(rows, context, rows * context)
            model.observe(load, fixed + row * rows + context * (once + rows * each))
    return model


def of_rows(model, rows):
    return model.seconds(StepLoad(np.array(rows)))


@pytest.mark.parametrize(("fixed", "row"), [(1.0, 0.05), (1.0, 0.3), (1e-3, 1e-5), (4.0, 0.0)])
def test_the_cost_of_rows_is_found(fixed, row):
    found = of_rows(known_cost(fixed, row), [1, 4, 30])
    np.testing.assert_allclose(found, fixed + row * np.array([1, 4, 30]), rtol=0.1)


def test_the_cost_of_context_is_found_once_a_sequence_and_for_each_row():
    model = known_cost(1.0, 0.05, once=6e-4, each=2e-4)
    assert model.seconds(StepLoad(4, 1000, 4000)) == pytest.approx(1.2 + 0.6 + 0.8, rel=0.05)
    assert model.seconds(StepLoad(4, 1000, 1000)) == pytest.approx(1.2 + 0.6 + 0.2, rel=0.1)
    assert of_rows(model, 4) == pytest.approx(1.2, rel=0.1)


def test_one_kind_of_step_leaves_the_prior_on_the_rest():
    model = CostModel()
    for _ in range(50):
        model.observe(StepLoad(1), 2.0)
    one, five = of_rows(model, [1, 5])
    assert one == pytest.approx(2.0, rel=0.05) and 1.05 < five / one < 1.35


def test_a_profile_is_believed_at_once_and_scaled_by_what_steps_take():
    model = CostModel(STAIRS)
    assert model.is_known
    rows = np.array([1, 3, 4, 5, 8, 36, 64, 120])
    expected = [1.0, 1.0, 1.0, 1.5, 1.6, 5.3, 9.0, 9.0 + 56 * 7.4 / 56]
    np.testing.assert_allclose(of_rows(model, rows), expected)
    found = model.seconds(StepLoad(rows, 1000, 1000 * rows))
    np.testing.assert_allclose(found - expected, 0.2 + 0.1 * rows)
    for _ in range(50):
        model.observe(StepLoad(1), 2.0)  # the machine has become half as fast
    np.testing.assert_allclose(of_rows(model, rows), 2 * np.array(expected), rtol=0.1)


def test_each_stretch_of_a_wrong_profile_is_learnt_apart():
    """Nine rows were profiled at 1.6 steps of one row and take 2.3."""
    rows = (1, 2, 4, 8, 16)
    model = CostModel(CostProfile(rows, (1.0, 1.3, 1.3, 1.4, 3.0)))
    truth = {1: 2.0, 2: 2.2, 3: 2.4, 5: 3.2, 9: 4.7}
    for _ in range(60):
        for seen, seconds in truth.items():
            model.observe(StepLoad(seen), seconds)
    np.testing.assert_allclose(of_rows(model, list(truth)), list(truth.values()), rtol=0.03)


def test_an_unseen_stretch_keeps_its_ratio_to_one_row():
    model = CostModel(CostProfile((1, 8, 16), (1.0, 1.0, 3.0)))
    for seen in (1, 4, 8) * 30:
        model.observe(StepLoad(seen), 2.0 + 0.1 * (seen - 1))
    assert np.diff(of_rows(model, [8, 16]))[0] == pytest.approx(2 * 2.0, rel=0.1)


def test_what_was_profiled_out_of_order_is_pooled():
    profile = CostProfile((1, 2, 3, 4, 5), (9.0, 9.8, 8.0, 9.2, 12.0))
    np.testing.assert_allclose(
        profile.of_rows(np.arange(1, 6)), [8.93, 8.93, 8.93, 9.2, 12.0], 1e-3
    )


def test_a_stray_step_moves_little():
    model = known_cost(1.0, 0.05)
    before = float(of_rows(model, 5))
    model.observe(StepLoad(5, 1000, 5000), 1e3)
    assert of_rows(model, 5) < before * (1 + 0.1 * MAX_SURPRISE)


def test_more_rows_never_cost_less():
    model, rng = CostModel(), np.random.default_rng(1)
    for _ in range(300):
        model.observe(StepLoad(int(rng.integers(1, 60))), float(rng.exponential()))
        seconds = of_rows(model, np.arange(1, 100))
        assert (np.diff(seconds) >= 0).all() and (seconds > 0).all()


STEPS = st.tuples(st.integers(0, 600), st.integers(0, 10**6), st.floats(1e-6, 10.0))


@given(st.lists(STEPS, max_size=30), st.sampled_from([None, STAIRS]))
def test_any_steps_give_a_cost(steps, profile):
    model = CostModel(profile)
    for num_rows, context, seconds in steps:
        model.observe(StepLoad(num_rows, context, num_rows * context), seconds)
    assert model.is_known == (profile is not None or any(n > 0 for n, *_ in steps))
    if model.is_known:
        cost = model.seconds(StepLoad(np.arange(1, 300), 50, np.arange(1, 300) * 50))
        assert np.isfinite(cost).all() and (cost > 0).all()


def test_drafting_costs_by_depth_and_sequences():
    cost, rng = DraftCost(), np.random.default_rng(0)
    assert not cost.seconds(np.arange(5), 3).any(), "nothing was seen: it is to be tried"
    for _ in range(300):
        depth, seqs = int(rng.integers(1, 9)), int(rng.integers(1, 17))
        cost.observe(depth, seqs, 2e-4 + 1e-3 * depth + 1e-4 * depth * seqs)
    found = cost.seconds(np.array([1, 4, 8]), 10)
    np.testing.assert_allclose(found, [2.2e-3, 8.2e-3, 16.2e-3], rtol=0.15)


def test_one_kind_of_drafting_is_foretold_alike():
    cost = DraftCost()
    for _ in range(40):
        cost.observe(8, 1, 4e-3)
    deep, shallow = cost.seconds(np.array([8, 2]), 1)
    assert deep == pytest.approx(4e-3, rel=0.1) and 0.5e-3 < shallow < 2.5e-3


def test_the_ridge_point_is_where_rows_begin_to_cost():
    bound = CostProfile((1, 2, 4, 8, 16, 32, 64), (1, 1, 1, 1, 1.6, 3.2, 6.4), 0.0)
    assert bound.ridge_point == pytest.approx(10.0, rel=0.05)
    assert CostProfile((1,), (1.0,), 0.0).ridge_point == float("inf")
    assert CostProfile((1, 2, 3, 4), (1.0, 1.0, 1.0, 1.0), 0.0).ridge_point == float("inf")


def test_a_profile_goes_to_disk_and_back(tmp_path):
    path = tmp_path / "new" / "cost.json"
    STAIRS.save(path)
    assert CostProfile.load(path) == STAIRS


GOOD = {"rows": [1], "seconds": [1], "context_seconds": 0, "row_context_seconds": 0}


@pytest.mark.parametrize(
    "values",
    [{}, [], {**GOOD, "seconds": [0]}, {**GOOD, "rows": [2]}, {**GOOD, "seconds": [1, 2]},
     {**GOOD, "rows": [1, 1], "seconds": [1, 1]}, {**GOOD, "seconds": [float("nan")]},
     {**GOOD, "rows": 1}, {k: v for k, v in GOOD.items() if k != "row_context_seconds"},
     {**GOOD, "context_seconds": -1}, {**GOOD, "row_context_seconds": None}],
)  # fmt: skip
def test_a_file_that_holds_no_profile_is_a_value_error(values, tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(GOOD))
    assert CostProfile.load(path).rows == (1,)
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError):
        CostProfile.load(tmp_path / "cost.json")
