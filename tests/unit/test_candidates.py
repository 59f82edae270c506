"""Ranking a draft's logits: the ids that the noise favours, and how far each is believed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specfast.proposers.candidates import NUM_RANKED, TAU, ParentRows, Ranking

V = 50


def ranked(logits, temperature, d2t=None):
    rows = len(logits)
    seqs = [
        SimpleNamespace(params=SimpleNamespace(temperature=t), seed=s)
        for s, t in enumerate(temperature)
    ]
    every = ParentRows(np.arange(rows), np.full(rows, -1), torch.arange(rows).int() + 9)
    return Ranking(seqs, d2t).children(logits, every)


def test_greedy_confidence_is_the_drafts_probability():
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1)) * 3
    ids, confidence = ranked(logits, [0.0] * 6)
    expected = logits.double().softmax(1).sort(dim=1, descending=True)
    np.testing.assert_array_equal(ids, expected.indices[:, :NUM_RANKED].int())
    np.testing.assert_allclose(confidence, expected.values[:, :NUM_RANKED], rtol=1e-5)


def test_with_noise_it_is_the_share_by_perturbed_scores():
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1)) * 3
    ids, confidence = ranked(logits, [0.7] * 6)
    np.testing.assert_allclose(confidence.sum(1), 1, rtol=1e-6)
    greedy, _ = ranked(logits, [0.0] * 6)
    assert (ids != greedy).any() and (np.diff(confidence, axis=1) <= 0).all()


def test_shares_foretell_what_a_noisy_target_decides():
    """A target that is the draft with an error takes the first candidate about as often as the
    shares say; the draft's own probability says far less.
    """
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(20000, V, generator=generator) * 2
    target = logits + 1.0 * torch.randn(20000, V, generator=generator)
    (ids, confidence), (decided, _) = ranked(logits, [1.0] * 20000), ranked(target, [1.0] * 20000)
    taken = ids[:, 0] == decided[:, 0]
    assert abs(taken.mean() - confidence[:, 0].mean()) < 0.05
    sure = confidence[:, 0] > 0.8
    assert taken[sure].mean() > 0.75 > 0.6 > taken[~sure].mean()
    probability = logits.softmax(1).numpy()[np.arange(20000), ids[:, 0]]
    assert probability.mean() < taken.mean() - 0.2


def test_rows_of_both_kinds_keep_to_their_own():
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(3))
    mixed = ranked(logits, [0.0, 1.0, 0.0, 1.0])
    for rows, temperature in (([0, 2], 0.0), ([1, 3], 1.0)):
        alone = ranked(logits, [temperature] * 4)
        for got, expected in zip(mixed, alone):
            np.testing.assert_array_equal(got[rows], expected[rows])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_few_tokens_no_numbers_and_infinities(temperature):
    few = ranked(torch.zeros(1, 3), [temperature])
    assert few[0].shape == (1, 3)
    ids, confidence = ranked(torch.full((1, V), float("nan")), [temperature])
    assert (ids == -1).all() and np.isnan(confidence).all()
    one = torch.full((1, V), -float("inf"))
    one[0, 7] = 1.0
    ids, confidence = ranked(one, [temperature])
    assert ids[0, 0] == 7 and confidence[0, 0] == 1.0 and (ids[0, 1:] == -1).all()


def test_the_noise_is_keyed_by_the_targets_ids():
    """A draft of every second token finds of the target's ranking just those."""
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(4))
    d2t = torch.arange(0, V, 2, dtype=torch.int32)
    whole, _ = ranked(logits, [1.0] * 5)
    half, _ = ranked(logits[:, ::2].contiguous(), [1.0] * 5, d2t)
    for all_ids, ids in zip(whole, half):
        even = [i for i in all_ids if i % 2 == 0]
        assert ids[: len(even)].tolist() == even and TAU < 1
