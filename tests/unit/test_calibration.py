"""Confidence becomes a probability by what came of its like."""

from __future__ import annotations

import numpy as np
import pytest

from specfast._host import Calibration, Offset

TOP = np.zeros(4, np.int32)


def sigmoid(log_odds):
    return 1 / (1 + np.exp(-np.asarray(log_odds)))


def probability(calibration, confidence, depth=0):
    return sigmoid([calibration.log_odds(float(c), depth) for c in confidence])


def test_the_share_accepted_is_found():
    rng, calibration = np.random.default_rng(0), Calibration()
    confidence = np.array([0.02, 0.3, 0.7, 0.97])
    truth = np.array([0.1, 0.25, 0.45, 0.6])  # far from sure of itself
    for _ in range(2000):
        calibration.observe(confidence, TOP, rng.random(4) < truth)
    np.testing.assert_allclose(probability(calibration, confidence), truth, atol=0.08)
    assert calibration.error < 0.1


def test_depth_counts_beside_confidence():
    rng, calibration = np.random.default_rng(0), Calibration()
    depth = np.array([0, 1, 3, 7], np.int32)
    truth = np.array([0.8, 0.65, 0.5, 0.35])
    for _ in range(2000):
        calibration.observe(np.full(4, 0.7), depth, rng.random(4) < truth)
    found = [probability(calibration, [0.7], d)[0] for d in depth]
    np.testing.assert_allclose(found, truth, atol=0.08)


def test_uncalibrated_confidence_is_believed_and_garbage_is_not():
    confidence = np.array([0.0, 0.25, 1.0, np.nan, np.inf, -3.0])
    found = probability(Calibration(), confidence)
    np.testing.assert_allclose(found, [0.001, 0.25, 0.999, 0.001, 0.999, 0.001], atol=1e-9)
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(np.full(4, np.nan), TOP, np.ones(4, bool))
    assert np.isfinite(probability(calibration, confidence)).all()


def test_what_is_no_longer_tested_is_believed_again():
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(np.array([0.5]), TOP[:1], np.array([False]))
    assert probability(calibration, [0.5])[0] < 0.1
    for _ in range(3000):
        calibration.fade()
    assert probability(calibration, [0.5])[0] > 0.4, "so that it is probed"


@pytest.mark.parametrize("confidence, accepted", [(1.0, False), (0.0, True)])
def test_one_surprise_does_not_turn_everything_round(confidence, accepted):
    calibration, others = Calibration(), np.array([0.2, 0.5, 0.8])
    calibration.observe(np.array([confidence]), TOP[:1], np.array([accepted]))
    np.testing.assert_allclose(probability(calibration, others), others, atol=0.15)
    found = probability(calibration, [confidence])[0]
    assert 0.01 < abs(found - confidence) < 0.7, "it is learnt from all the same"


@pytest.mark.parametrize("truth", (0.0, 1.0))
def test_certainties_stay_finite(truth):
    calibration = Calibration()
    for _ in range(5000):
        calibration.observe(np.array([0.0, 0.5, 1.0, 0.9]), TOP, np.full(4, bool(truth)))
    found = probability(calibration, [0.0, 0.5, 1.0])
    assert np.isfinite(found).all() and abs(found[1] - truth) < 0.05


def test_the_error_is_the_gap_between_foretold_and_come():
    calibration, rng = Calibration(), np.random.default_rng(0)
    assert calibration.error is None
    calibration.observe(np.full(300, 0.85), np.zeros(300, np.int32), rng.random(300) < 0.5)
    assert calibration.error == pytest.approx(0.35, abs=0.06), "foretold before it was seen"
    for _ in range(3000):
        calibration.observe(np.full(4, 0.85), TOP, rng.random(4) < 0.5)
    assert calibration.error < 0.06


def test_a_request_has_its_own_luck_which_is_shrunk():
    lucky, rng = Offset(), np.random.default_rng(0)
    lucky.observe(0.0, True)  # as likely as not, foretold
    assert 0.5 < sigmoid(np.array(lucky.value)) < 0.6, "one draft says little"
    for _ in range(1000):
        lucky.fade()
        lucky.observe(0.0, bool(rng.random() < 0.9))
    assert sigmoid(np.array(lucky.value)) == pytest.approx(0.9, abs=0.06)
    assert Offset().value == 0.0
