"""Live A/B by hand: which steps and requests make the figures, and how sure they are."""

from types import SimpleNamespace

import numpy as np
import pytest

from specfast.ab_test import (
    MIN_REQUESTS,
    NUM_BUCKETS,
    PLAIN,
    SPECULATIVE,
    WINDOW,
    AbTest,
    compared,
)
from specfast.outputs import StepOutput
from specfast.sequence import Batch, Finish


def requests(count, **by_bucket):
    """Totals of requests that are all alike: b2=(seconds, tokens) at batch sizes of bucket 2."""
    totals = np.zeros((count, 2, NUM_BUCKETS))
    for name, pair in by_bucket.items():
        totals[:, :, int(name[1:])] = pair
    return totals


def spread_out(seed):
    totals = requests(60, b0=(1.0, 1.0))
    totals[:, 0, 0] = np.random.default_rng(seed).lognormal(0, 0.5, 60)
    return totals


def test_figures_by_hand():
    """Twice as fast alone, 4 / 3 at 3-4; over all, 10 seconds' worth in 7."""
    plain = requests(MIN_REQUESTS, b0=(2.0, 1.0), b2=(4.0, 1.0), b3=(1.0, 1.0))
    drafted = requests(MIN_REQUESTS, b0=(1.0, 1.0), b2=(6.0, 2.0), b4=(1.0, 1.0))
    found = compared(plain, drafted, 0.95)
    assert set(found.by_batch_size) == {"1", "3-4"}, "what one arm alone knows is left out"
    assert found.by_batch_size["1"].value == pytest.approx(2.0)
    assert found.by_batch_size["3-4"].value == pytest.approx(4 / 3)
    assert found.overall.value == pytest.approx(10 / 7)
    assert compared(plain[1:], drafted, 0.95) is None


def test_arms_are_resampled_each_by_itself():
    found = compared(spread_out(1), spread_out(1), 0.95).overall
    assert found.low < 0.95 < found.value == 1.0 < 1.05 < found.high


def test_the_level_asked_for_is_the_intervals():
    ab = AbTest(0.5, plan=None)
    ab._finished[PLAIN].extend(spread_out(1))
    ab._finished[SPECULATIVE].extend(spread_out(2))
    half, sure = ab.speedups(0.5).overall, ab.speedups(0.99).overall
    assert sure.low < half.low < half.value == sure.value < half.high < sure.high
    assert ab.effective_speedup == compared(spread_out(1), spread_out(2), 0.95).overall
    assert ab.speedup_at(1) == ab.speedups().by_batch_size["1"] and ab.speedup_at(2) is None


def test_a_batch_size_is_counted_with_those_of_its_name():
    ab = AbTest(0.5, plan=None)
    ab._finished[PLAIN].extend(requests(30, b2=(2.0, 1.0)))
    ab._finished[SPECULATIVE].extend(requests(30, b2=(1.0, 1.0)))
    assert ab.speedup_at(3) == ab.speedup_at(4) == ab.effective_speedup
    assert ab.speedup_at(5) is None


def observe(ab, seqs, num_tokens, emitting, seconds=1.0):
    tails = np.array(num_tokens, np.int32)
    batch = Batch(tuple(seqs), tails.copy(), tails, np.zeros((len(seqs), 2), np.int32))
    ab.observe(batch, [StepOutput(s, (1,), 0, 0, 0, Finish("length")) for s in emitting], seconds)


def test_one_prompt_in_the_batch_makes_it_nobodys_wait():
    ab = AbTest(0.5, plan=None)
    seq, other = (SimpleNamespace(seq_id=i) for i in range(2))
    ab.add(PLAIN, [seq])
    observe(ab, [seq, other], [1, 7], [seq])
    assert not ab._finished[PLAIN][0].any()


def test_the_batch_size_is_the_steps_and_not_of_those_who_emit():
    ab = AbTest(0.5, plan=None)
    seqs = [SimpleNamespace(seq_id=i) for i in range(3)]
    ab.add(PLAIN, seqs[:1])
    observe(ab, seqs, [1, 1, 1], seqs[:1])
    assert np.flatnonzero(ab._finished[PLAIN][0][0]).tolist() == [2]


def test_the_last_requests_are_remembered():
    ab = AbTest(0.5, plan=None)
    for i in range(WINDOW + 1):
        seq = SimpleNamespace(seq_id=i)
        ab.add(PLAIN, [seq])
        observe(ab, [seq], [1], [seq], seconds=float(i))
    assert len(ab._finished[PLAIN]) == WINDOW
    assert ab._finished[PLAIN][0][0, 0] == 1.0, "the oldest went"
