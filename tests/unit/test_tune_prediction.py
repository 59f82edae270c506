"""What tune predicts: formulas by hand, records re-cut, costs fitted, simulated acceptance."""

from __future__ import annotations

import numpy as np
import pytest

from specfast.measure import Task
from specfast.tune.acceptance import Acceptance, alpha_of, recut
from specfast.tune.costs import Curve, DrafterCost, Line, drafter_cost, fit_curve, fit_line, typical
from specfast.tune.prediction import closed_speedup, expected_tokens, predict
from specfast.tune.traces import SequenceStep, StepTime, Trace

FREE = DrafterCost(0.01, Line(0.0, 0.0), 0.0, Curve((0.0,), (1.0,)))
COST = DrafterCost(0.01, Line(0.0, 0.05), 0.01, Curve((0.0, 8.0), (1.02, 1.26)))


def chain(depth, accepted, emitted=None):
    return SequenceStep(depth, depth, accepted, accepted + 1 if emitted is None else emitted)


def trace(steps, category="prose", name="t", k=8):
    return Trace(Task(name, category, (1,)), k, tuple(steps))


def decode(right, k):
    """The steps of a drafter that foretells token i if right[i], wherever it starts."""
    steps, start = [], 0
    while start < len(right):
        run = 0
        while run < k and start + run < len(right) and right[start + run]:
            run += 1
        emitted = min(run + 1, len(right) - start)
        steps.append(SequenceStep(k, k, run, emitted))
        start += emitted
    return steps


def sticky(share, stay, num_tokens, seed):
    """Whether a draft is right, in runs: it stays as it is with probability `stay`."""
    rng = np.random.default_rng(seed)
    right = [True]
    for _ in range(num_tokens - 1):
        right.append(right[-1] if rng.random() < stay else bool(rng.random() < share))
    return right


@pytest.mark.parametrize(
    ("alpha", "depth", "tokens"),
    [(0.0, 5, 1.0), (0.5, 0, 1.0), (0.5, 1, 1.5), (0.5, 2, 1.75), (0.8, 4, 3.3616), (1.0, 3, 4.0)],
)
def test_expected_tokens_by_hand(alpha, depth, tokens):
    assert expected_tokens(alpha, depth) == pytest.approx(tokens)


def test_closed_speedup_by_hand():
    assert closed_speedup(0.8, 4, c=0.05, v=0.02) == pytest.approx(3.3616 / 1.28)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_both_formulas_foretell_independent_acceptance(k):
    """Drafts accepted with 0.7 on their own: fitted at 8, predicted at k, decoded anew with k."""
    rng = np.random.default_rng(3)
    fitted, held = rng.random((2, 30_000)) < 0.7
    record = decode(fitted, 8)
    assert alpha_of(record) == pytest.approx(0.7, abs=0.01)
    found = predict([trace(record)], COST, k, ["prose"], {})
    tokens = len(held) / len(decode(held, k))
    truth = tokens / (1.02 + 0.05 * k + 0.03 * k)
    assert found.closed == pytest.approx(truth, rel=0.02)
    assert found.closed == pytest.approx(closed_speedup(0.7, k, found.c, found.v), rel=0.02)
    assert found.survival == pytest.approx(truth, rel=0.02)
    assert found.tokens_per_step == pytest.approx(tokens, rel=0.02)
    assert (found.c, found.v) == pytest.approx((0.05, (0.02 + 0.03 * k) / k))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_survival_curve_foretells_runs(k):
    """Texts copied in runs: fitted at 8 drafts, predicted at fewer, decoded anew with as many."""
    record = decode(sticky(0.5, 0.9, 30_000, seed=1), 8)
    held = sticky(0.5, 0.9, 30_000, seed=2)
    truth = len(held) / len(decode(held, k))
    assert predict([trace(record)], FREE, k, ["prose"], {}).survival == pytest.approx(truth, 0.03)


def test_one_rate_misses_a_mixture():
    rng = np.random.default_rng(5)
    text = [*(rng.random(9_000) < 0.95), *(rng.random(9_000) < 0.2)]
    record = decode(text, 8)
    found = predict([trace(record)], FREE, 8, ["prose"], {})
    assert found.survival == pytest.approx(len(text) / len(record)), (
        "at its own k the record itself"
    )
    assert found.closed > 1.04 * found.survival


def test_the_record_at_its_own_k():
    steps = [chain(4, 2), chain(4, 4), chain(0, 0), chain(3, 3), chain(4, 0), chain(4, 3, 3)]
    assert recut(steps, 4) == steps


@pytest.mark.parametrize(("k", "accepted"), [(1, [1, 1]), (2, [2, 0]), (3, [3])])
def test_recut_by_hand(k, accepted):
    """Three drafts right and the fourth wrong: four tokens."""
    cut = recut([chain(4, 3)], k)
    assert [s.accepted for s in cut] == accepted
    assert sum(s.emitted for s in cut) == 4


def test_recut_keeps_what_was_never_drafted():
    steps = [chain(0, 0), chain(2, 0), chain(0, 0)]
    assert [s.depth for s in recut(steps, 1)] == [0, 1, 0]


def test_an_open_token_is_right_where_the_run_goes_on():
    """Behind two accepted drafts of two comes a token that no draft said."""
    on = recut([chain(2, 2), chain(2, 2)], 1)
    assert [s.accepted for s in on] == [1, 1, 1], "the open token starts no step, or is accepted"
    off = recut([chain(2, 2), chain(2, 0)], 1)
    assert [s.accepted for s in off] == [1, 0, 0]


def test_a_tree_is_cut_with_its_width():
    (cut,) = recut([SequenceStep(4, 8, 0, 1)], 2)
    assert (cut.depth, cut.nodes) == (2, 4)


def test_acceptance_counts_steps_without_a_proposal():
    found = Acceptance.of([chain(2, 2), chain(2, 0), chain(1, 1), chain(0, 0)])
    assert found.survival == (0.5, 0.25)
    assert found.conditional == (2 / 3, 1.0)
    assert found.alpha == 3 / 4, "three accepted, one refused"
    assert found.proposing == 0.75
    assert (found.num_steps, found.num_tokens) == (4, 7)


def test_a_drafter_that_never_drafts_is_predicted_at_its_bookkeeping():
    steps = [chain(0, 0)] * 20
    found = predict([trace(steps)], COST, 4, ["prose"], {})
    assert found.closed == found.survival == pytest.approx(1 / 1.03), "its search, its bookkeeping"


def test_tasks_weigh_as_their_categories_will():
    fast, slow = [chain(1, 1)] * 10, [chain(1, 0)] * 20
    traces = [trace(fast, "copy", "a"), trace(fast, "copy", "b"), trace(slow, "prose", "c")]

    def speedup(*categories):
        return predict(traces, FREE, 1, categories, {}).survival

    assert speedup("copy") == pytest.approx(2.0)
    assert speedup("prose") == pytest.approx(1.0)
    assert speedup("copy", "prose") == pytest.approx(2**0.5), "geometric, each category once"
    assert np.isnan(speedup("code")), "nothing is known of it"


def test_short_answers_say_nothing():
    assert np.isnan(predict([trace([chain(1, 1)] * 3)], FREE, 1, ["prose"], {}).survival)
    assert predict([trace([chain(1, 1)] * 4)], FREE, 1, ["prose"], {}).survival == 2.0


def test_a_tree_pays_for_its_nodes_and_not_for_its_depth():
    """Four deep, eight nodes, none accepted; cut to two, four nodes are verified."""
    found = predict([trace([SequenceStep(4, 8, 0, 1)] * 10)], COST, 2, ["prose"], {})
    step = 1.02 + 0.05 * 2 + 0.03 * 4
    assert found.v == pytest.approx((0.02 + 0.03 * 4) / 2)
    assert found.closed == found.survival == pytest.approx(1 / step)


def test_a_first_step_that_takes_in_the_prompt_counts_once():
    found = predict([trace([chain(1, 1)] * 10)], FREE, 1, ["prose"], {"t": 5.0})
    assert found.survival == found.closed == pytest.approx(20 / 15)
    assert found.c == pytest.approx(0.5)


def test_lines():
    assert fit_line([(1, 3.0), (3, 7.0), (2, 5.0)], 0.0) == Line(
        pytest.approx(1.0), pytest.approx(2.0)
    )
    assert fit_line([(4, 2.0)] * 3, at_zero=0.0) == Line(0.0, 0.5)
    assert fit_line([(4, 2.0)] * 3, at_zero=1.0) == Line(1.0, 0.25)
    assert fit_line([(1, 3.0), (3, 1.0)], 0.0) == Line(2.0, 0.0), "more never costs less"
    assert fit_line([(1, 1.0), (3, 5.0)], 0.0) == Line(0.0, 1.5), "nothing costs less than nothing"
    assert fit_line([], at_zero=1.0) == Line(1.0, 0.0)
    often = fit_line([(1, 1.0)] * 50 + [(2, 3.0)] + [(3, 3.0)] * 50, 0.0)
    assert (often.fixed, often.each) == (pytest.approx(0.0, abs=0.05), pytest.approx(1.0, abs=0.01))


def test_curves():
    """A step's first rows are all but free here: no line says so."""
    points = [(n, y) for n, y in ((0, 1.0), (1, 1.0), (2, 1.1), (8, 2.4)) for _ in range(3)]
    found = fit_curve(points, at_zero=1.0)
    assert found == Curve((0.0, 1.0, 2.0, 8.0), pytest.approx((1.0, 1.0, 1.1, 2.4)))
    assert found.at(np.array([0, 2, 5, 9])) == pytest.approx([1.0, 1.1, 1.75, 2.4])
    assert fit_line(points, 1.0).fixed < 0.95
    assert fit_curve([(4, 2.0)], at_zero=1.0).at(np.array([2])) == pytest.approx(1.5)
    assert fit_curve([], at_zero=1.0).at(np.array([3])) == 1.0


def test_a_curve_never_descends():
    points = [(0, 1.0), (1, 1.4), (2, 1.1), (2, 1.1), (3, 1.0), (4, 2.0)]
    pooled = (1.4 + 2.2 + 1.0) / 4
    assert fit_curve(points, 1.0).y == pytest.approx((1.0, pooled, pooled, pooled, 2.0))


def test_the_average_of_a_batch_varies_less():
    """Of four sequences half as much: where rows cost more the more there are, that is cheaper."""
    bent = Curve((0.0, 4.0, 8.0), (1.0, 1.0, 3.0))
    one, four = (DrafterCost(0.01, Line(0.0, 0.0), 0.0, bent, n) for n in (1, 4))
    nodes = np.array([0, 8])
    assert one.verify_share(nodes) == pytest.approx((1.0 + 3.0) / 2 - 1)
    assert four.verify_share(nodes) == pytest.approx((1.0 + 2.0) / 2 - 1)


def test_what_something_else_did_is_no_cost():
    assert typical([1.0] * 9 + [100.0]) == 1.0
    assert typical([1.0, 1.5, 1.1]) == pytest.approx(1.2)


def test_costs_are_in_plain_steps_of_whole_batches():
    plain = [StepTime(2, 0, 0, 0.0, 0.02)] * 5 + [StepTime(1, 0, 0, 0.0, 0.5)]
    times = [StepTime(2, 4, 4, 0.008, 0.03), StepTime(2, 2, 2, 0.004, 0.026)]
    times += [StepTime(2, 0, 0, 0.001, 0.022), StepTime(1, 4, 4, 9.0, 9.0)]
    cost = drafter_cost(times, plain)
    assert cost.plain_seconds == pytest.approx(0.02)
    assert cost.drafting == Line(pytest.approx(0.0), pytest.approx(0.1))
    assert cost.searching == pytest.approx(0.05)
    assert cost.verifying == Curve((0.0, 2.0, 4.0), pytest.approx((1.1, 1.3, 1.5)))
    assert cost.draft_share(np.array([0, 2])) == pytest.approx(0.125)
    assert cost.verify_share(np.array([0, 2])) == pytest.approx(0.2)
    assert cost.num_seqs == 2
    first = StepTime(2, 2, 2, 0.104, 0.026)
    assert cost.surprise(first) == pytest.approx(5.0), "the prompt, taken in"
    assert cost.surprise(times[1]) == pytest.approx(0.0)
