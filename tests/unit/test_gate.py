"""The gate closes where drafting loses, finds its way back, and does not thrash."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specfast.control.batch_gates import BatchGates, bucket_of
from specfast.control.gate import EVIDENCE, FIRST_REST, HEALTHY, MAX_REST, SETTLED, Gate, StepSpeed


def step(speedup, batch=4):
    """A step with drafts that decodes so much faster than plain decoding."""
    return StepSpeed(batch, 1.0, batch, speedup)


def drive(gate, speedups):
    """-> [n] bool: which steps drafted."""
    drafted = []
    for speedup in speedups:
        drafted.append(gate.lets_draft())
        if drafted[-1]:
            gate.saw(step(speedup))
    return np.array(drafted)


def test_what_pays_stays_open():
    gate = Gate(True)
    assert drive(gate, [1.3] * 1000).all() and gate.num_switches == 0
    assert gate.speedup == pytest.approx(1.3)


def test_bursts_of_one_sequence_keep_a_patient_gate_open():
    """Nothing is gained in 40 steps, then much in ten: drafting pays by 8 %."""
    bursts = ([0.98] * 40 + [1.5] * 10) * 20
    patient, hasty = Gate(True, 4), Gate(True)
    assert drive(patient, bursts).mean() > 0.9
    assert drive(patient, [0.9] * 400)[-100:].mean() < 0.5
    assert drive(hasty, [0.97] * EVIDENCE).all() and not hasty.is_open


def test_a_gate_is_settled_once_it_was_open_for_long():
    gate = Gate(True)
    drive(gate, [1.3] * (SETTLED - 1))
    assert not gate.is_settled
    drive(gate, [1.3])
    assert gate.is_settled
    drive(gate, [0.5] * 100)
    assert not gate.is_open and not gate.is_settled


def test_what_loses_is_closed_after_the_evidence_and_probed_ever_less():
    gate = Gate(True)
    drafted = drive(gate, [0.9] * 4000)
    assert drafted[:EVIDENCE].all() and not drafted[EVIDENCE : EVIDENCE + FIRST_REST].any()
    assert gate.num_switches == 1
    share = [drafted[i : i + 1000].mean() for i in (0, 1000, 3000)]
    assert share[0] < 0.1 and 0 < share[2] < 0.03, "probes are cheap, and go on"


def test_a_closed_gate_finds_its_way_back():
    gate = Gate(True)
    drive(gate, [0.9] * 3000)
    drafted = drive(gate, [1.3] * (MAX_REST + 100))
    assert gate.is_open and drafted[-50:].all()


def test_one_bad_step_closes_nothing():
    gate = Gate(True)
    drive(gate, [1.2] * 50)
    assert drive(gate, [0.5, *[1.2] * 20]).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_load_that_hovers_switches_seldom(seed):
    """Half of the time it pays by a hair, half it loses by one, in turns of any length."""
    rng, steps = np.random.default_rng(seed), 20000
    turns = np.repeat(rng.choice([0.97, 1.03], steps), rng.integers(1, 200, steps))[:steps]
    gate = Gate(True)
    drive(gate, turns * np.exp(rng.normal(0, 0.1, steps)))
    assert gate.num_switches <= 2 * (6 + steps / min(MAX_REST, HEALTHY))


def test_failures_are_forgotten_after_a_healthy_spell():
    gate = Gate(True)
    drive(gate, [0.9] * 3000)
    drive(gate, [1.3] * (MAX_REST + HEALTHY + 20))
    assert gate.is_open
    drafted = drive(gate, [0.5] * 200)
    first = int(np.flatnonzero(~drafted)[0])
    assert drafted[first : first + 2 * FIRST_REST].any(), "probed soon again"


def seqs(*ids):
    return [SimpleNamespace(seq_id=i) for i in ids]


def test_small_batches_start_open_and_large_ones_prove_themselves():
    gates = BatchGates(rows_a_sequence=5, max_rows=16.0)
    assert gates.let_draft(seqs(1)) and gates.let_draft(seqs(1, 2))
    assert not gates.let_draft(seqs(*range(5)))
    assert gates.states == {1: True, 2: True, 8: False}
    assert [bucket_of(n) for n in (0, 1, 2, 3, 4, 5, 8, 9, 128)] == [1, 1, 2, 4, 4, 8, 8, 16, 128]


def test_each_batch_size_has_its_own_gate():
    gates, many = BatchGates(5, 16.0), seqs(*range(64))
    for _ in range(3000):
        for batch, speedup in ((seqs(1), 1.4), (many, 0.8)):
            if gates.let_draft(batch):
                gates.saw(step(speedup, len(batch)))
    assert gates.states == {1: True, 64: False}


def test_new_requests_are_tried_soon():
    gates = BatchGates(5, 16.0)
    for _ in range(3000):
        if gates.let_draft(seqs(1)):
            gates.saw(step(0.8, 1))
    waits = [gates.let_draft(seqs(2)) for _ in range(MAX_REST // 8 + 1)]
    assert waits[-1] and not waits[0], "sooner than for the old one, the later the more has failed"
