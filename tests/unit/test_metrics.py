"""Counters and what is derived from them, against hand-counted steps."""

import pytest

from specfast.metrics import RequestMetrics, SpecMetrics, SpecStats
from specfast.outputs import StepOutput


def output(num_tokens, num_draft_tokens, num_accepted, depth=None):
    depth = num_draft_tokens if depth is None else depth
    return StepOutput(None, tuple(range(num_tokens)), num_draft_tokens, depth, num_accepted, None)


STEPS = [
    [output(1, 0, 0)],  # prefill
    [output(3, 4, 2), output(1, 4, 0)],
    [output(5, 4, 4), output(2, 2, 2)],  # the second is cut: no bonus token
    [output(1, 0, 0)],
]


@pytest.fixture
def metrics():
    m = SpecMetrics()
    for step in STEPS:
        m.observe(step)
    return m


def test_counts_and_derived_figures(metrics):
    s = metrics.stats
    assert (s.num_emitted_tokens, s.num_plain_steps, s.num_drafts) == (13, 2, 4)
    assert (s.num_draft_tokens, s.num_accepted_tokens) == (14, 8)
    assert s.num_accepted_per_pos == (3, 3, 1, 1)
    assert s.acceptance_rate == 8 / 14
    assert s.acceptance_length == 11 / 4
    assert s.acceptance_per_pos == (0.75, 0.75, 0.25, 0.25)
    assert s.tokens_per_iteration == 13 / 6


def test_per_position_counts_sum_to_the_accepted(metrics):
    assert sum(metrics.stats.num_accepted_per_pos) == metrics.stats.num_accepted_tokens


def test_a_trees_rate_is_by_its_depth(metrics):
    metrics.observe([output(4, 20, 3, depth=6)])
    assert metrics.stats.num_draft_tokens == 34
    assert metrics.stats.acceptance_rate == (8 + 3) / (14 + 6)


def test_differences_and_sums(metrics):
    before = metrics.stats
    assert (before - before).acceptance_per_pos == (0.0,) * 4
    metrics.observe([output(6, 5, 5)])
    new = metrics.stats - before
    assert (new.num_drafts, new.num_accepted_per_pos) == (1, (1, 1, 1, 1, 1))
    assert before + new == metrics.stats == new + before
    assert SpecStats() + new == new
    metrics.reset()
    assert metrics.stats == SpecStats()


def test_nothing_drafted_is_zero_not_an_error():
    s = SpecStats()
    assert s.acceptance_rate == s.acceptance_length == s.draft_time_fraction == 0.0
    assert s.tokens_per_iteration == 0.0


def test_times_are_counted_for_steps_and_proposals():
    m = SpecMetrics()
    with m.timing_step(), m.timing_proposal():
        sum(range(1000))
    assert 0 < m.stats.propose_seconds < m.stats.step_seconds
    assert 0 < m.stats.draft_time_fraction < 1
    assert m.stats.num_steps == 1


def test_a_request_is_timed_by_its_tokens():
    record = RequestMetrics()
    assert record.first_token_time is None
    for now, step in zip([1.0, 2.0, 3.0], [output(1, 0, 0), output(3, 4, 2), output(1, 4, 0)]):
        record.observe(step, now)
    assert record.token_times == [1.0, 2.0, 2.0, 2.0, 3.0]
    assert record.first_token_time == 1.0
    assert (record.num_drafts, record.num_draft_tokens, record.num_accepted_tokens) == (2, 8, 2)
