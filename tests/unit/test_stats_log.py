"""The line that people grep for."""

import itertools
import logging
import random

import pytest

from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.stats_log import StatsLog
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer

DRAFTED = SpecStats(
    num_drafts=10,
    num_draft_tokens=40,
    num_draft_positions=40,
    num_accepted_tokens=15,
    num_accepted_per_pos=(9, 5, 1),
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "specfast.stats_log")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "specfast.stats_log"]


def test_a_window_in_vllms_words(logged):
    clock = Clock()
    log = StatsLog(10, clock)
    for second in range(11):
        clock.now = float(second)
        log.tick(lambda: DRAFTED)
    assert logged() == [
        "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1.50 tokens/s, "
        "Drafted throughput: 4.00 tokens/s, Accepted: 15 tokens, Drafted: 40 tokens, "
        "Per-position acceptance rate: 0.900, 0.500, 0.100, Avg Draft acceptance rate: 37.5%"
    ]
    clock.now = 20.0
    log.tick(lambda: DRAFTED + DRAFTED)
    assert len(logged()) == 2 and logged()[1] == logged()[0]  # what is new, not the sum


def test_nothing_drafted_is_nothing_said(logged):
    clock = Clock()
    log = StatsLog(10, clock)
    for clock.now in (10.0, 20.0):
        log.tick(lambda: SpecStats(num_plain_steps=int(clock.now), num_emitted_tokens=7))
    assert logged() == []


def test_an_idle_hour_slows_no_throughput(logged):
    clock = Clock()
    log = StatsLog(10, clock)
    for clock.now in (5.0, 3605.0, 3610.0):
        log.tick(lambda: DRAFTED)
    assert "Accepted throughput: 1.50 tokens/s" in logged()[0] and len(logged()) == 1


def test_counters_that_began_anew_are_not_logged_as_less_than_nothing(logged):
    clock = Clock()
    log = StatsLog(10, clock)
    for clock.now, stats in ((10.0, DRAFTED), (20.0, SpecStats()), (30.0, DRAFTED)):
        log.tick(lambda: stats)  # noqa: B023
    assert len(logged()) == 2 and logged()[0] == logged()[1]


def test_stats_are_asked_for_only_when_due():
    clock, asked = Clock(), []
    log = StatsLog(10, clock)
    for clock.now in (1.0, 2.0, 9.9):
        log.tick(lambda: asked.append(1))
    assert not asked


@pytest.mark.parametrize("speculates", [True, False])
def test_an_engine_logs_if_it_speculates(logged, speculates):
    params = SamplingParams(max_tokens=12, ignore_eos=True, **GREEDY)
    prompts = prompts_of(random.Random(3), 2)
    streams = {tuple(p): target_stream(p, params, 12) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong=0) if speculates else None)
    seconds = itertools.count()
    engine.stats_log = StatsLog(1.0, lambda: float(next(seconds)))
    run(engine, prompts, params)
    assert bool(logged()) == speculates
    accepted = sum(int(line.split("Accepted: ")[1].split()[0]) for line in logged())
    assert accepted == engine.metrics.stats.num_accepted_tokens
