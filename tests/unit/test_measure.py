"""The A/B harness on arms whose answers and times are known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specfast.intervals import bootstrap
from specfast.machine import CpuTimes, Load, LoadWatch, cpu_name
from specfast.measure import Sample, Task, compare, in_groups
from specfast.spec_stats import SpecStats

TASKS = [Task(f"t{i}", "prose" if i % 2 else "code", (i,)) for i in range(6)]


class FakeArm:
    """Emits `step` tokens every `seconds`, after a first one at 0.5."""

    def __init__(self, name, seconds, step=1, num_tokens=21, log=None, token=1):
        self.name, self.seconds, self.step = name, seconds, step
        self.num_tokens, self.log, self.token = num_tokens, log, token
        self.answers = 0

    def answer(self, task):
        self.answers += 1
        if self.log is not None:
            self.log.append((self.name, task.id))
        steps = [-(-i // self.step) for i in range(self.num_tokens)]
        times = tuple(0.5 + self.seconds * s for s in steps)
        stats = SpecStats(
            num_drafts=2, num_draft_tokens=8, num_draft_positions=8, num_accepted_tokens=self.step
        )
        return Sample((self.token,) * self.num_tokens, times, stats)


def test_order_is_abba_after_a_warm_up():
    log = []
    compare([FakeArm("a", 0.1, log=log), FakeArm("b", 0.1, log=log)], TASKS[:2], cycles=2)
    assert [name for name, _ in log[:2]] == ["a", "b"]
    assert [name for name, task in log[2:] if task == "t0"] == list("abbaabba")
    assert [task for _, task in log[2:]] == ["t0"] * 8 + ["t1"] * 8


def test_groups_hold_one_category_and_every_task_once():
    groups = in_groups(TASKS, 2)
    assert sorted(t.id for g in groups for t in g) == sorted(t.id for t in TASKS)
    assert [len(g) for g in groups] == [2, 1, 2, 1]
    assert all(len({t.category for t in g}) == 1 for g in groups)


class FakeBatchArm(FakeArm):
    def answer_all(self, tasks):
        first, *others = [self.answer(t) for t in tasks]
        return [first, *(replace(s, stats=SpecStats()) for s in others)]


def test_a_batch_is_one_sample_a_task():
    log = []
    arms = [FakeBatchArm("a", 0.1, log=log), FakeBatchArm("b", 0.2, log=log)]
    c = compare(arms, TASKS, batch_size=2)
    assert [name for name, _ in log[4:12]] == list("aabbbbaa")
    assert [len(s) for s in c.samples["a"]] == [2] * len(TASKS)
    assert c.ratio("a", "b").value == pytest.approx(2.0)
    assert c.summary("a").acceptance_rate == pytest.approx(1 / 8)
    assert c.categories == ["code", "prose"]


def test_known_speeds_are_found():
    c = compare([FakeArm("plain", 0.1), FakeArm("spec", 0.15, step=4)], TASKS)
    plain, spec = c.summary("plain"), c.summary("spec")
    assert plain.decode_rate.value == pytest.approx(10.0)
    assert spec.decode_rate.value == pytest.approx(20 / 0.75)
    assert plain.time_to_first_token.value == pytest.approx(0.5)
    assert plain.total_rate.value == pytest.approx(21 / 2.5)
    assert spec.inter_token_latency_p50 == pytest.approx(0.15)
    assert (spec.num_tasks, spec.num_tokens) == (6, 126)
    assert spec.acceptance_rate == 0.5
    ratio = c.ratio("spec", "plain", ["prose"])
    assert ratio.value == ratio.low == ratio.high == pytest.approx(8 / 3)


def test_tokens_of_the_first_emission_are_not_decoding():
    sample = Sample((1,) * 12, (1.0,) * 3 + tuple(1.0 + 0.1 * i for i in range(1, 10)))
    assert sample.num_decoded == 9
    assert sample.decode_rate == pytest.approx(10.0)
    assert len(sample.gaps) == 9


def test_too_short_answers_are_left_out():
    c = compare([FakeArm("a", 0.1, num_tokens=5), FakeArm("b", 0.2, num_tokens=5)], TASKS)
    assert math.isnan(c.ratio("a", "b").value)
    assert math.isnan(c.summary("a").decode_rate.value)
    assert c.summary("a").num_tokens == 30


def test_differing_answers_are_named():
    class Wrong(FakeArm):
        def answer(self, task):
            sample = super().answer(task)
            last = 2 if task.id == "t3" and self.answers % 2 else 1
            return Sample((*sample.token_ids[:-1], last), sample.times)

    c = compare([FakeArm("a", 0.1), Wrong("b", 0.1)], TASKS)
    assert c.differing("a", "b") == ["t3"]
    assert c.differing("b") == ["t3"], "one repetition of an arm that differs must be seen"
    assert c.differing("a") == []


def test_interval_narrows_with_the_number_of_tasks_and_holds_the_truth():
    rng = np.random.default_rng(1)
    few, many = (bootstrap(rng.normal(3.0, 1.0, n), np.mean) for n in (10, 1000))
    assert many.high - many.low < few.high - few.low
    assert few.low < 3.0 < few.high and many.low < 3.0 < many.high
    assert few.low < few.value < few.high


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = [
        (lambda i: i.low <= 0.0 <= i.high)(bootstrap(rng.normal(size=40), np.mean))
        for _ in range(200)
    ]
    assert 0.88 <= np.mean(hits) <= 0.99


def test_geometric_mean_of_opposite_ratios_is_one():
    assert bootstrap(np.log([2.0, 0.5]), np.mean, np.exp).value == pytest.approx(1.0)


def test_no_values_give_nan():
    assert math.isnan(bootstrap([float("nan")], np.median).value)


def test_load_warns_of_others_and_of_steal(monkeypatch):
    ticks = iter([CpuTimes(0, 0, 0, 0), CpuTimes(1000, 400, 50, 300)])
    monkeypatch.setattr(CpuTimes, "now", classmethod(lambda cls: next(ticks)))
    load = LoadWatch().stop()
    assert load.others_share == pytest.approx(0.25)
    assert load.steal_share == pytest.approx(0.05)
    assert len(load.warnings) == 2
    assert Load(0.0, 0.01, 0.0).warnings == []
    assert Load(None, None, None).warnings == []


def test_machine_without_proc_is_unknown_not_quiet(monkeypatch):
    monkeypatch.setattr(CpuTimes, "now", classmethod(lambda cls: None))
    assert LoadWatch().stop().others_share is None


def test_cpu_has_a_name():
    assert cpu_name()
