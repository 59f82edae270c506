"""Each planted sickness gives its own warning, once; a healthy engine gives none."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specfast.intervals import Interval
from specfast.proposers.base import Needs, Proposal
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SourceStats, SpecStats
from specfast.warning_signs import SIGNS, Evidence, WarningSigns
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer

STATS = SpecStats(
    num_steps=1000,
    num_drafts=900,
    num_draft_tokens=3600,
    num_draft_positions=3600,
    num_accepted_tokens=2100,
    num_refusals=600,
    step_seconds=10.0,
    propose_seconds=2.0,
)
LONG = SamplingParams(max_tokens=150, ignore_eos=True, **GREEDY)
FAST = Interval(1.6, 1.5, 1.7)
HEALTHY = Evidence(
    STATS,
    {"eagle": SourceStats(900, 3600, 3600, 2100), "suffix": SourceStats(1, 2000, 2000, 2000)},
    FAST,
    {1: Interval(2.0, 1.9, 2.1), 8: Interval(1.3, 1.2, 1.4)},
    8,
    0.05,
)


def stats(**values):
    return replace(HEALTHY, stats=replace(STATS, **values))


def speed(low, high):
    return Interval((low + high) / 2, low, high)


SICK = {
    "low_acceptance": stats(num_accepted_tokens=1400),
    "draft_time": replace(stats(propose_seconds=2.6), speedup=speed(1.12, 1.19)),
    "slow_at_batch_1": replace(HEALTHY, speedup_at={1: speed(1.0, 1.09), 8: FAST}),
    "slow_at_p50_batch_size": replace(HEALTHY, speedup_at={1: FAST, 8: speed(0.9, 0.99)}),
    "none_accepted": replace(HEALTHY, by_source={"suffix": SourceStats(900, 3600, 1000, 0)}),
    "all_accepted": stats(num_refusals=0),
    "miscalibrated": replace(HEALTHY, calibration_error=0.2),
}
# Too little, or only nearly.
UNCERTAIN = {
    "few drafts": stats(num_drafts=299, num_accepted_tokens=10),
    "few steps": replace(stats(propose_seconds=5.0, num_steps=299), speedup=speed(0.8, 0.9)),
    "drafting long, but for 1.2x": replace(stats(propose_seconds=5.0), speedup=speed(1.1, 1.21)),
    "drafting long, speed not measured": replace(stats(propose_seconds=5.0), speedup=None),
    "perhaps 1.1x alone": replace(HEALTHY, speedup_at={1: speed(0.9, 1.11), 8: FAST}),
    "no interval": replace(HEALTHY, speedup_at={1: Interval(0.5, float("nan"), float("nan"))}),
    "another size is slow": replace(HEALTHY, speedup_at={1: FAST, 16: speed(0.5, 0.6)}),
    "none of 999": replace(HEALTHY, by_source={"eagle": SourceStats(300, 999, 999, 0)}),
    "all of 999": replace(
        stats(num_refusals=0), by_source={"eagle": SourceStats(300, 999, 999, 999)}
    ),
    "all by retrieval": replace(
        stats(num_refusals=0),
        by_source={
            "ngram": SourceStats(900, 3600, 3600, 3600),
            "suffix": SourceStats(900, 3600, 3600, 3600),
            "recycle": SourceStats(900, 3600, 3600, 3600),
        },
    ),
    "not calibrated": replace(HEALTHY, calibration_error=None),
    "calibrated on little": replace(stats(num_draft_positions=999), calibration_error=0.9),
}


def test_the_healthy_give_none(caplog):
    signs = WarningSigns()
    signs.check(HEALTHY)
    signs.check(Evidence(SpecStats(), {}))
    assert signs.seen == [] and not caplog.records


@pytest.mark.parametrize("name", SICK)
def test_a_sickness_gives_its_own_sign_once(name, caplog):
    signs = WarningSigns()
    for _ in range(3):
        signs.check(SICK[name])
    assert signs.seen == [name]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().startswith(f"{name}: ")
    assert f"over {SICK[name].stats.num_drafts:,} verify steps" in record.getMessage()


def test_every_sign_is_planted_and_says_what_to_do():
    assert set(SICK) == {s.name for s in SIGNS}
    verbs = ("lower ", "take ", "try ", "set ", "Check ", "Run ")
    assert all(any(verb in s.advice for verb in verbs) for s in SIGNS)


@pytest.mark.parametrize("case", UNCERTAIN)
def test_little_evidence_gives_none(case):
    signs = WarningSigns()
    signs.check(UNCERTAIN[case])
    assert signs.seen == []


def test_looks_once_an_interval_and_when_work_ends():
    clock, looks = SimpleNamespace(now=0.0), []
    signs = WarningSigns(1.0, lambda: clock.now)

    def evidence(is_due):
        looks.append((clock.now, is_due))
        return HEALTHY

    for clock.now, is_idle in [(0.5, False), (0.6, True), (1.5, False), (1.7, False), (2.5, True)]:
        signs.tick(evidence, is_idle)
    assert looks == [(0.6, False), (1.5, True), (2.5, True)]


class Broken(TreeProposer):
    """Drafts four tokens, of which `wrong_from` and all after are wrong."""

    def __init__(self, streams, wrong_from) -> None:
        super().__init__(streams, wrong=0)
        self.wrong_from = wrong_from

    needs = Needs()

    def propose(self, batch):
        trees = [self._tree(s, *map(int, n)) for s, n in zip(batch.seqs, batch.draft_limits)]
        drafts = [[t for t, _ in tree] for tree in trees]
        return Proposal.chains(
            [[(t + (i >= self.wrong_from)) % self.vocab for i, t in enumerate(d)] for d in drafts]
        )


@pytest.fixture(scope="module")
def streams():
    return {tuple(p): target_stream(p, LONG, 150) for p in prompts_of(random.Random(7), 10)}


@pytest.mark.parametrize(
    "wrong_from, num_tokens, seen",
    [
        (0, 40, ["none_accepted"]),
        (1, 80, ["low_acceptance"]),
        (3, 150, []),
        (4, 150, ["all_accepted"]),
    ],
    ids=["never right", "seldom right", "often right", "always right"],
)
def test_an_engine_with_such_a_drafter(wrong_from, num_tokens, seen, streams, caplog):
    room = {"num_blocks": 600, "max_num_batched_tokens": 512}
    engine = make_engine(Broken(streams, wrong_from), k=4, **room)
    params = replace(LONG, max_tokens=num_tokens)
    run(engine, list(streams), params)
    assert engine.metrics.stats.num_draft_positions > 1000
    assert engine.warning_signs.seen == seen
    assert [r.getMessage().split(":")[0] for r in caplog.records] == seen
    run(engine, list(streams)[:1], params)
    assert len(caplog.records) == len(seen)


@pytest.mark.parametrize("error, seen", [(0.1, []), (0.9, ["miscalibrated"])])
def test_the_engine_shows_how_far_off_its_budget_is(error, seen, streams):
    engine = make_engine(Broken(streams, 3), k=4, num_blocks=600, max_num_batched_tokens=512)
    engine.metrics.calibration = SimpleNamespace(calibration_error=error)
    run(engine, list(streams), LONG)
    assert engine.warning_signs.seen == seen


def test_the_engine_shows_its_measured_speed(caplog):
    params = SamplingParams(max_tokens=10, ignore_eos=True, **GREEDY)
    prompts = prompts_of(random.Random(8), 4)
    known = {tuple(p): target_stream(p, params, 10) for p in prompts}
    engine = make_engine(TreeProposer(known, wrong=0, miss=0.2))

    def at(batch_size):
        return speed(0.8, 0.9) if batch_size == engine.metrics.p50_batch_size else FAST

    engine.metrics.speedups = SimpleNamespace(effective_speedup=FAST, speedup_at=at)
    seconds = itertools.count()
    engine.warning_signs = WarningSigns(1.0, lambda: float(next(seconds)))
    run(engine, prompts, params)
    assert engine.metrics.p50_batch_size > 1
    assert engine.warning_signs.seen == ["slow_at_p50_batch_size"]
    assert "1.60x plain decoding" in caplog.text
