"""What tune recommends from speeds that were measured at several batch sizes."""

from __future__ import annotations

import pytest

from specfast.config import EngineConfig
from specfast.control.cost_profile import CostProfile
from specfast.machine import Load
from specfast.measure import Comparison, Sample, Task
from specfast.sampling_params import SamplingParams
from specfast.tune.candidates import Candidate, TreeShape
from specfast.tune.trial import Trial
from specfast.tune.tuning import TuneReport, TuneSettings

NAME = "recycle tree=12"
TASKS = tuple(Task(str(i), "prose", (1, 2)) for i in range(8))


def answers(rate):
    """One a task: 21 tokens at this many a second, give or take 1 %."""
    rates = [rate * (1.01 if i % 2 else 0.99) for i in range(len(TASKS))]
    return tuple((Sample(tuple(range(21)), tuple((1 + i) / r for i in range(21))),) for r in rates)


def trial(size, fixed, auto):
    speeds = {"plain": 1.0, f"{NAME} k=4": fixed, f"{NAME} auto": auto}
    compared = Comparison(TASKS, {arm: answers(rate) for arm, rate in speeds.items()})
    return Trial(size, {}, {}, {NAME: 4}, compared)


def report(by_size):
    """Of one candidate with k = 4 of at most 8; by_size: (fixed, auto) over plain ones."""
    trials = tuple(trial(size, *pair) for size, pair in by_size.items())
    drafter = Candidate(NAME, "recycle", tree=TreeShape(12, 8))
    config, sizes = EngineConfig("tiny"), tuple(by_size)
    settings = TuneSettings(config, SamplingParams(), (drafter,), (4, 8), sizes)
    return TuneReport(settings, trials, {}, CostProfile((1,), (0.01,)), Load(None, None, None), 1)


@pytest.mark.parametrize(
    ("by_size", "policy", "gate"),
    [
        ({1: (2.0, 2.0)}, "auto", "auto"),
        ({1: (2.0, 2.0), 8: (0.5, 1.1)}, "auto", "auto"),  # fixed would lose, auto doesn't
        ({1: (2.0, 2.0), 8: (1.5, 0.9)}, "auto", {"max_batch_size": 1}),
        ({1: (2.0, 1.5), 4: (1.2, 1.2), 8: (0.8, 1.1)}, "fixed", {"max_batch_size": 4}),
        ({1: (2.0, 1.5), 4: (1.2, 0.8)}, "fixed", "auto"),  # auto's speed is not what will run
    ],
)
def test_the_gate_is_that_of_the_policy_recommended(by_size, policy, gate):
    found = report(by_size)
    assert found.recommended == {
        "method": "recycle",
        "num_speculative_tokens": 4 if policy == "fixed" else 8,
        "max_tree_nodes": 6 if policy == "fixed" else 12,
        "policy": policy,
        "gate": gate,
    }
    assert found.reasons[-1].startswith("Gate auto:" if gate == "auto" else "Gate: no drafts above")
    assert found.reasons[:-1] == found.decision.reasons


def test_no_drafter_no_gate():
    found = report({1: (0.9, 0.9), 8: (2.0, 2.0)})
    assert found.recommended is None and found.reasons == found.decision.reasons
