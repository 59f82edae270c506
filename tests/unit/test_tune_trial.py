"""One batch size of tune, on answers and arms whose figures are known."""

import pytest

from specfast.measure import Comparison, Sample, Task
from specfast.tune.candidates import Candidate
from specfast.tune.prediction import Prediction
from specfast.tune.traces import StepTime, Trace
from specfast.tune.trial import AUTO, PLAIN, Halves, Trial, arm_name, best_of, fit, num_answers

TASKS = tuple(Task(f"t{i}", "prose", (1, 2, 3, 4)) for i in range(4))
FIXED, BY_AUTO = arm_name("ngram", 2), arm_name("ngram", AUTO)


def answers(seconds, tokens=(9,) * 20):
    """The same one to each task: a first token after a second, the others so far apart."""
    times = tuple(1.0 + seconds * i for i in range(len(tokens)))
    return ((Sample(tokens, times),),) * len(TASKS)


def prediction(k, survival, closed=1.0):
    return Prediction(k, closed, survival, 0.0, 0.0, 1.0)


def trial(**samples):
    given = {PLAIN: answers(0.2), FIXED: answers(0.1), BY_AUTO: answers(0.125), **samples}
    predicted = {"ngram": (prediction(1, 1.5), prediction(2, 2.2, 2.4), prediction(4, 1.9))}
    return Trial(1, {}, predicted, {"ngram": 2}, Comparison(TASKS, given))


def test_options_are_over_plain_and_auto_over_fixed():
    option = trial().option(Candidate("ngram", "ngram"))
    assert option.k == 2
    assert option.fixed.value == pytest.approx(2.0)
    assert option.auto.value == pytest.approx(1.6)
    assert option.auto_over_fixed.value == pytest.approx(0.8)


def test_errors_are_predicted_over_measured():
    found = trial()
    assert found.error("ngram") == pytest.approx(0.1)
    assert found.closed_error("ngram") == pytest.approx(0.2)
    assert found.measured("ngram", 4) is None


def test_the_best_is_the_smallest_of_the_fastest():
    nan = float("nan")
    assert best_of([prediction(1, 1.5), prediction(2, 1.8), prediction(4, 1.8)]).k == 2
    assert best_of([prediction(1, nan), prediction(2, 0.9)]).k == 2
    assert best_of([prediction(1, nan), prediction(2, nan)]).k == 1


def test_the_workload_by_hand():
    """A second passes before each first token; 16 of 20 nines could be looked up, 13 of 16."""
    copying = (1, 2, 3, 4) * 4
    repeats = (*answers(0.2)[:3], (Sample(copying, tuple(1.0 + 0.2 * i for i in range(16))),))
    found = trial(plain=repeats).workload
    assert found.prefill_share == pytest.approx(4 / (3 * 4.8 + 4.0))
    assert found.copied_share == pytest.approx((3 * 16 + 13) / 76), "weighed by length"


class FakeArm:
    """Steps that take `rest`, and a tenth for each draft; its first ones take longer each time."""

    def __init__(self, name, rest, log):
        self.name, self.rest, self.log = name, rest, log
        self.traces, self.times = [], []

    def record(self, tasks, k):
        self.log.append((self.name, k, [t.id for t in tasks]))
        late = StepTime(1, k, k, 0.1 * k, self.rest + 5.0 * len(self.log) * self.rest)
        self.times += [StepTime(1, k, k, 0.1 * k, self.rest)] * 3
        self.traces += [Trace(t, k, (), late) for t in tasks]

    def forget(self):
        self.traces.clear()
        self.times.clear()
        self.log.append("forgotten")


def test_a_fit_takes_turns_and_keeps_what_had_the_most_drafts():
    log: list = []
    plain, arm = FakeArm(PLAIN, 1.0, log), FakeArm("ngram", 1.2, log)
    seen: list = []
    found = fit(plain, [arm], TASKS[:2], (1, 2, 4), 1, lambda: seen.append(1))["ngram"]
    assert log[:4] == [(PLAIN, 0, ["t0"]), "forgotten", ("ngram", 4, ["t0"]), "forgotten"]
    assert [(name, k, ids[0]) for name, k, ids in log[4:]] == [
        *((PLAIN, 0, "t0"), ("ngram", 4, "t0"), ("ngram", 1, "t0"), (PLAIN, 0, "t0")),
        *((PLAIN, 0, "t1"), ("ngram", 4, "t1"), ("ngram", 2, "t1"), (PLAIN, 0, "t1")),
    ]
    assert [(t.task.id, t.k) for t in found.traces] == [("t0", 4), ("t1", 4)]
    assert found.cost.plain_seconds == pytest.approx(1.0)
    assert found.cost.drafting.each == pytest.approx(0.1)
    assert found.starts["t0"] == pytest.approx(36.0), "the first: the second is later still"
    assert len(seen) == 8 == num_answers(Halves(TASKS[:2], ()), 2, 9, 1, 1)


def test_answers_are_counted_for_both_halves():
    halves = Halves(TASKS[:2], TASKS[2:3])
    assert num_answers(halves, 3, 5, 1, 2) == 2 * 3 * 2 + 2 * 2 * 5 * 1
    assert num_answers(halves, 3, 5, 2, 2) == 2 * 3 * 1 + 2 * 2 * 5 * 1
