"""Live A/B: who is in which arm, which steps count, and what the estimate sees and does not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from specfast import engine as engine_module
from specfast.ab_test import (
    MIN_REQUESTS,
    NUM_BUCKETS,
    PLAIN,
    SPECULATIVE,
    WITHHOLD_EVERY,
    AbTest,
    bucket_name,
    bucket_of,
    hashed,
)
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.outputs import StepOutput
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Finish
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_engine import run, tokens
from tests.unit.test_synthetic import Garbage
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer

PARAMS = SamplingParams()


def test_arms_are_sticky_and_of_the_share_asked_for():
    ab = AbTest(0.2, plan=None)
    ids = [f"req-{i}" for i in range(4000)]
    arms = [ab.assign(i, PARAMS)[0] for i in ids]
    assert abs(arms.count(PLAIN) - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5
    assert arms == [AbTest(0.2, plan=None).assign(i, PARAMS)[0] for i in ids]
    more = [AbTest(0.5, plan=None).assign(i, PARAMS)[0] for i in ids]
    assert all(b == PLAIN for a, b in zip(arms, more) if a == PLAIN), "a larger share keeps it"


def test_the_hash_is_the_same_in_every_process():
    assert hashed("req-0") == pytest.approx(0.2213454642, abs=1e-9)
    assert 0 <= hashed("\ud800") < 1


def test_only_the_plain_arm_loses_its_drafts():
    ab = AbTest(0.5, plan=None)
    served = dict(ab.assign(f"r{i}", PARAMS) for i in range(50))
    assert not served[PLAIN].speculation.enabled and served[SPECULATIVE] is PARAMS


@pytest.mark.parametrize("own", [True, False, {"num_speculative_tokens": 1}])
def test_a_requests_own_word_wins(own):
    params = SamplingParams(speculative=own)
    ab = AbTest(0.9, plan=None)
    assert [ab.assign(f"r{i}", params) for i in range(20)] == [(None, params)] * 20


def test_without_a_share_nothing_happens():
    ab = AbTest(0.0, plan=lambda seqs: np.ones((len(seqs), 2)))
    assert ab.assign("r", PARAMS) == (None, PARAMS)
    assert ab.plan([1, 2]).all() and ab.effective_speedup is None and not ab.num_requests


def test_buckets_double():
    names = [bucket_name(bucket_of(n)) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 128)]
    assert names == ["1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "9-16", "17-32", "65-128"]
    assert bucket_of(2**40) == NUM_BUCKETS - 1


class Server:
    """Requests at a batch size, without a model: what a step takes and emits is drawn.

    length: tokens that a step with drafts emits, on average and for a request of average ease;
    widening: a step in which anyone has drafts takes as many times as long, for all. Step times
    have a long tail and pauses that all in the batch share.
    """

    def __init__(self, seed, batch_size=1, fraction=0.5, length=1.0, widening=1.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.batch_size, self.length, self.widening = batch_size, length, widening
        self.ab = AbTest(fraction, self._plan)
        self.names = (f"{seed}-{i}" for i in itertools.count())
        self.ids = itertools.count()
        self.running: list = []
        self.num_steps = 0

    def _plan(self, seqs) -> np.ndarray:
        return np.array([[4, 4] if s.speculates else [0, 0] for s in seqs])

    def serve(self, num_requests: int) -> AbTest:
        started = 0
        while started < num_requests or self.running:
            while len(self.running) < self.batch_size and started < num_requests:
                self.running.append(self._request())
                started += 1
            self._step()
        return self.ab

    def _request(self):
        arm, params = self.ab.assign(next(self.names), PARAMS)
        seq = SimpleNamespace(
            seq_id=next(self.ids),
            speculates=params.speculation.enabled,
            left=4 + int(self.rng.geometric(1 / 40)),
            ease=self.rng.lognormal(-0.045, 0.3),  # mean 1
        )
        self.ab.add(arm, [seq])
        return seq

    def _step(self) -> None:
        limits = self.ab.plan(self.running)
        ones = np.ones(len(self.running), np.int32)
        batch = Batch(tuple(self.running), ones, ones.copy(), limits)
        seconds = 0.01 * self.rng.lognormal(0, 0.3) * (5 if self.rng.random() < 0.01 else 1)
        seconds *= self.widening if limits.any() else 1
        outputs = [self._output(s, bool(limit[0])) for s, limit in zip(self.running, limits)]
        self.running = [s for s in self.running if s.left > 0]
        self.ab.observe(batch, outputs, seconds)
        self.num_steps += 1

    def _output(self, seq, drafts: bool) -> StepOutput:
        extra = self.rng.poisson((self.length - 1) * seq.ease) if drafts and self.length > 1 else 0
        count = min(1 + int(extra), seq.left)
        seq.left -= count
        finish = Finish("length") if seq.left <= 0 else None
        return StepOutput(seq, (1,) * count, 0, 0, 0, finish)


SEEDS = range(20)


SIZES = pytest.mark.parametrize(("batch_size", "num_requests"), [(1, 200), (4, 900)])


@SIZES
def test_equal_arms_show_no_difference(batch_size, num_requests):
    """99 % intervals, in at least 19 of 20."""
    found = [Server(s, batch_size).serve(num_requests).speedups(0.99).overall for s in SEEDS]
    assert sum(i.low <= 1 <= i.high for i in found) >= 19, found


@SIZES
def test_a_planted_slowdown_is_seen(batch_size, num_requests):
    """By 10 %: the same tokens a step, and steps with drafts that take 1 / 0.9 as long."""
    servers = [Server(s, batch_size, widening=1 / 0.9) for s in SEEDS]
    found = [s.serve(num_requests).speedups(0.99).overall for s in servers]
    assert sum(i.high < 1 for i in found) >= 19, found
    assert np.mean([i.value for i in found]) == pytest.approx(0.9, abs=0.02)


def test_drafts_of_batch_mates_do_not_flatter():
    """Steps with drafts take 1.5 times as long and emit 1.8 tokens: 1.2, and not 1.8."""
    ab = Server(1, 4, fraction=0.2, length=1.8, widening=1.5).serve(2500)
    speedups = ab.speedups(0.99)
    assert speedups.overall.low < 1.8 / 1.5 < speedups.overall.high < 1.4
    assert list(speedups.by_batch_size) == ["3-4"], "those that wind down are too few"
    assert ab.num_requests.total() == 2500


def test_few_requests_give_no_figure():
    ab = Server(1).serve(MIN_REQUESTS)
    assert ab.effective_speedup is None and ab.speedups() is None


def step(ab, seqs, limits, seconds, num_tokens=1, counts=None, finish=None) -> None:
    tails = np.full(len(seqs), num_tokens, np.int32)
    batch = Batch(tuple(seqs), tails.copy(), tails, np.array(limits))
    counts = counts or [1] * len(seqs)
    ab.observe(
        batch, [StepOutput(s, (1,) * n, 0, 0, 0, finish) for s, n in zip(seqs, counts)], seconds
    )


def test_what_counts():
    """A prompt's step does not, nor, for plain requests, one with drafts; of two in one step, one
    does.
    """
    ab = AbTest(0.5, plan=None)
    plain, other, drafted = (SimpleNamespace(seq_id=i) for i in range(3))
    for seq, arm in ((plain, PLAIN), (other, PLAIN), (drafted, SPECULATIVE)):
        ab.add(arm, [seq])
    records = [ab._records[i] for i in range(3)]
    step(ab, [plain, drafted], [[0, 0], [4, 4]], 100.0, num_tokens=7)
    step(ab, [plain, drafted], [[0, 0], [4, 4]], 1.5, counts=[1, 3])
    step(ab, [plain, other, drafted], [[0, 0]] * 3, 1.0)
    step(ab, [plain], [[0, 0]], 0.5)
    found = [dict(zip("st", r.totals.sum(axis=1))) for r in records]
    assert found == [{"s": 1.5, "t": 2}, {"s": 0, "t": 0}, {"s": 2.5, "t": 4}]
    assert records[2].totals[:, [1, 2]].tolist() == [[1.5, 1.0], [3, 1]]


def test_choices_end_together_as_one_request():
    ab = AbTest(0.5, plan=None)
    seqs = [SimpleNamespace(seq_id=i) for i in range(2)]
    ab.add(PLAIN, seqs)
    for seq in seqs:
        assert not ab._finished[PLAIN]
        step(ab, [seq], [[0, 0]], 1.0, finish=Finish("length"))
    (totals,) = ab._finished[PLAIN]
    assert totals[:, 0].tolist() == [2.0, 2] and not ab._records


def test_withheld_steps_draft_nothing_and_are_no_speculation():
    ab = AbTest(0.5, plan=lambda seqs: np.full((len(seqs), 2), 4))
    seqs = [SimpleNamespace(seq_id=i) for i in range(2)]
    ab.add(PLAIN, seqs[:1])
    ab.add(SPECULATIVE, seqs[1:])
    record = ab._records[1]
    for number in range(1, 3 * WITHHOLD_EVERY + 1):
        limits = ab.plan(seqs)
        assert limits.any() == bool(number % WITHHOLD_EVERY)
        step(ab, seqs, limits, 1.0)
    assert record.totals[0, 1] == 3 * (WITHHOLD_EVERY - 1)
    assert ab._records[0].totals[0, 1] == 3
    assert all(ab.plan(seqs[1:]).all() for _ in range(30)), "without a plain one, never"


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def make_engine(clock, monkeypatch, delay, **config) -> Engine:
    """A step takes a second; drafting `delay`, and brings exactly five tokens."""

    class TimedModel(ToyModel):
        def forward(self, rows, kv_cache):
            clock.now += 1.0
            return super().forward(rows, kv_cache)

    class TimedGarbage(Garbage):
        def propose(self, batch):
            clock.now += delay
            return super().propose(batch)

    monkeypatch.setattr(engine_module, "time", clock)
    spec = SpeculativeConfig(
        "test", 4, policy="fixed", ab_fraction=0.5, synthetic_acceptance=[1.0] * 4
    )
    settings = EngineConfig("toy", num_blocks=200, speculative_config=spec, **config)
    model = TimedModel(ToyConfig(max_position_embeddings=64), order=2)
    return Engine(model, ToyTokenizer(), settings, TimedGarbage())


@pytest.mark.parametrize("delay", [0.25, 9.0])
def test_an_engine_by_a_clock_of_its_own(monkeypatch, delay):
    clock = Clock()
    engine = make_engine(clock, monkeypatch, delay, max_num_seqs=1)
    params = SamplingParams(max_tokens=15, ignore_eos=True, temperature=0.0)
    outputs = run(engine, [[1 + i % 30, 2] for i in range(60)], params)
    found = engine.ab.effective_speedup
    assert found.value == found.low == found.high == pytest.approx(5 / (1 + delay))
    arms = [o.metrics.arm for o in outputs]
    assert {a: arms.count(a) for a in (PLAIN, SPECULATIVE)} == dict(engine.ab.num_requests)
    assert [o.synthetic for o in outputs] == [a == SPECULATIVE for a in arms]
    assert all((o.metrics.num_drafts > 0) == (o.metrics.arm == SPECULATIVE) for o in outputs)
    assert list(engine.ab.speedups().by_batch_size) == ["1"]


def test_a_batch_is_compared_with_steps_that_nobody_widened(monkeypatch):
    """The drafting that a plain request sits through is not its own cost."""
    clock = Clock()
    engine = make_engine(clock, monkeypatch, 1.0, max_num_seqs=4, max_num_batched_tokens=64)
    params = SamplingParams(max_tokens=15, ignore_eos=True, temperature=0.0)
    run(engine, [[1 + i % 30] for i in range(220)], params)
    found = engine.ab.speedups().by_batch_size["3-4"]
    assert found.value == pytest.approx(5 / 2, rel=0.05)


def test_plain_requests_and_their_mates_say_what_they_would_without_a_test(monkeypatch):
    def answers(fraction):
        spec = SpeculativeConfig("test", 4, policy="fixed", ab_fraction=fraction)
        settings = EngineConfig("toy", num_blocks=64, block_size=4, speculative_config=spec)
        engine = Engine(ToyModel(), ToyTokenizer(), settings, Garbage())
        params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=1.0, seed=2)
        return tokens(run(engine, [[1 + i, 2] for i in range(8)], params))

    assert answers(0.5) == answers(0.0)
