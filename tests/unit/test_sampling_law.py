"""Draws against their float64 law by chi-square; every test has a control that must fail."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specfast import _host
from specfast import reference_sampling as reference
from tests.unit.sampling_ops import fit, rank, sample

DRAWS = 40_000
PASSES, FAILS = 1e-3, 1e-9
LOGITS = torch.tensor([2.0, 1.5, 1.5, 1.0, 0.5, 0.25, 0.0, -0.5, -1.0, -1.0, -2.0, -4.0, -math.inf])
LAWS = {
    "plain": ({"temperature": 1.0}, {"temperature": 1.1}),
    "cool": ({"temperature": 0.4}, {"temperature": 0.44}),
    "hot": ({"temperature": 3.0}, {"temperature": 2.5}),
    "top_k": ({"temperature": 1.0, "top_k": 5}, {"temperature": 1.0, "top_k": 4}),
    "top_k in a tie": ({"temperature": 1.0, "top_k": 2}, {"temperature": 1.0, "top_k": 3}),
    "top_p": ({"temperature": 1.0, "top_p": 0.8}, {"temperature": 1.0, "top_p": 0.7}),
    "min_p": ({"temperature": 1.0, "min_p": 0.2}, {"temperature": 1.0, "min_p": 0.23}),
    "all": (
        {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 0.7, "top_k": 6, "top_p": 0.8, "min_p": 0.05},
    ),
    # top-p is over what top-k leaves, not over all
    "order": (
        {"temperature": 1.0, "top_k": 4, "top_p": 0.7},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.7},
    ),
}


def draws(logits: Tensor, seed: Tensor | int, position: Tensor | int, **settings) -> Tensor:
    """Counts [V] over DRAWS rows."""
    tokens = sample(logits.repeat(DRAWS, 1), seed=seed, position=position, **settings).tokens
    return tokens.bincount(minlength=len(logits))


@pytest.mark.parametrize("law", LAWS)
def test_tokens_follow_the_law(law):
    right, wrong = LAWS[law]
    for seed, position in ((torch.arange(DRAWS), 11), (12, torch.arange(DRAWS))):
        counts = draws(LOGITS, seed, position, **right)
        assert fit(counts, reference.sampling_probs(LOGITS, **right)) > PASSES
        assert fit(counts, reference.sampling_probs(LOGITS, **wrong)) < FAILS


def test_a_large_vocabulary_follows_the_law(rng):
    """Several slices, tokens of very different probability."""
    logits = 2.5 * torch.randn(20_000, generator=rng)
    for settings in ({"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.7, "top_k": 3000}):
        tokens = torch.cat(
            [
                sample(logits.repeat(500, 1), seed=7, position=torch.arange(500) + i, **settings)
                .tokens
                for i in range(0, 10_000, 500)
            ]
        )  # fmt: skip
        counts = tokens.bincount(minlength=20_000)
        assert fit(counts, reference.sampling_probs(logits, **settings)) > PASSES
        assert fit(counts, reference.sampling_probs(logits, 1.2)) < FAILS


def test_positions_are_independent():
    """Two tokens of one seed follow the product law; two of one position do not."""
    seeds = torch.arange(DRAWS)
    rows = LOGITS[:6].repeat(DRAWS, 1)
    first = sample(rows, seed=seeds, position=5).tokens
    probs = reference.sampling_probs(LOGITS[:6], 1.0)
    product = torch.outer(probs, probs).flatten()
    for other_seeds, position in ((seeds, 6), (seeds + DRAWS, 5), (seeds + (1 << 40), 5)):
        second = sample(rows, seed=other_seeds, position=position).tokens
        assert fit((first * 6 + second).bincount(minlength=36), product) > PASSES
    assert fit((first * 7).bincount(minlength=36), product) < FAILS


def test_wrong_noise_is_found():
    """The test has the power to tell Gumbel noise from its neighbours."""
    rows = DRAWS
    ids = torch.arange(len(LOGITS) - 1).repeat(rows)
    v = torch.rand(rows * (len(LOGITS) - 1), generator=torch.Generator().manual_seed(1))
    z = LOGITS[:-1].double()
    probs = reference.sampling_probs(LOGITS[:-1], 1.0)

    def p_value(noise: Tensor) -> float:
        tokens = (z + noise.view(rows, -1)).argmax(-1)
        return fit(tokens.bincount(minlength=len(z)), probs)

    gumbel = reference.gumbel(reference.uniform((v.double() * 2**32).long()))
    assert p_value(gumbel) > PASSES
    assert p_value(-torch.log(v.double())) < FAILS  # one logarithm forgotten
    assert p_value(-gumbel) < FAILS
    assert p_value(gumbel + 0.2 * (ids == 0)) < FAILS  # one token favoured by a fifth of a nat


def test_plackett_luce_order_of_candidates():
    """The best m without replacement: the second candidate follows the law less the first."""
    logits = LOGITS[:6]
    ids, _ = rank(logits.repeat(DRAWS, 1), 2, 1.0, torch.arange(DRAWS), 3)
    p = reference.sampling_probs(logits, 1.0)
    pairs = p[:, None] * p[None, :] / (1 - p[:, None])
    pairs.fill_diagonal_(0)
    counts = (ids[:, 0] * 6 + ids[:, 1]).bincount(minlength=36)
    assert fit(counts, pairs.flatten()) > PASSES
    assert fit(counts, torch.outer(p, p).flatten()) < FAILS


# Known answers of Random123: counter, key, output.
PHILOX = (
    ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        0x299F31D0A4093822,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_philox_known_answers(counter, key, words):
    assert _host.philox(key, counter) == words
    assert reference.philox(key, torch.tensor(counter)).tolist() == words
    assert _host.philox(key ^ 1, counter) != words


def test_noise_of_the_extreme_words():
    """Finite at both ends: words near 2^32 round to 1 and are held below it."""
    v = reference.uniform(torch.tensor([0, 2**32 - 129, 2**32 - 1]))
    assert v.tolist() == [2.0**-33, 1 - 2.0**-24, 1 - 2.0**-24]
    g = reference.gumbel(v)
    assert 22.87 < g[0] < 22.88
    assert -2.82 < g[1] == g[2] < -2.81
