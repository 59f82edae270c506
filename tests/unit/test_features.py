"""The stretch of hidden states that a drafter has yet to take in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specfast.proposers import features
from specfast.proposers.features import FeatureLog


@pytest.fixture
def log(monkeypatch):
    """-> a log, and a way to feed it tokens [first, end) of a sequence, each its own position."""

    def committed(batch, forward, result):
        yield batch.seq, batch.first, np.arange(batch.first, batch.end)

    monkeypatch.setattr(features, "committed_rows", committed)
    own, positions = FeatureLog(), torch.arange(200.0)[:, None]

    def feed(seq, first, end):
        batch = SimpleNamespace(seq=seq, first=first, end=end)
        own.observe(batch, SimpleNamespace(features=positions), None)

    return own, feed


def seq(epoch=0):
    return SimpleNamespace(seq_id=1, kv_epoch=epoch)


def test_what_follows_on_is_one_stretch_and_a_gap_begins_another(log):
    own, feed = log
    feed(seq(), 0, 5)
    feed(seq(), 5, 9)
    assert own.stretch(seq()) == (0, 9)
    assert own.take(seq(), 6, num_kept=2).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert own.stretch(seq()) == (4, 9)
    feed(seq(), 12, 14)
    assert own.stretch(seq()) == (12, 14)


def test_another_epoch_begins_anew_even_where_the_last_one_ended(log):
    """A prefix hit may end just where the old stretch did."""
    own, feed = log
    feed(seq(), 0, 5)
    assert own.stretch(seq(1)) == (0, 0)
    feed(seq(1), 5, 8)
    assert own.stretch(seq(1)) == (5, 8)
    assert own.take(seq(1), 3).ravel().tolist() == [5, 6, 7]


def test_a_long_stretch_keeps_its_newest_rows(log, monkeypatch):
    own, feed = log
    monkeypatch.setattr(features, "MAX_ROWS", 10)
    for first in range(0, 40, 4):
        feed(seq(), first, first + 4)
    first, end = own.stretch(seq())
    assert end == 40 and 10 <= end - first < 10 + 4
    assert own.take(seq(), end - first).ravel().tolist() == list(range(first, 40))


def test_what_is_released_or_reset_is_gone(log):
    own, feed = log
    feed(seq(), 0, 5)
    own.release(seq())
    assert own.stretch(seq()) == (0, 0)
    feed(seq(), 0, 5)
    own.reset()
    assert own.stretch(seq()) == (0, 0)
