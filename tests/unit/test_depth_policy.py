"""How deep is drafted, by policy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specfast.control.depth_policy import FixedDepth, MeasuredDepth, SimpleDepth
from specfast.proposers.base import Proposal

K = 6


def seqs(*ids):
    return [SimpleNamespace(seq_id=i) for i in ids]


def observe(policy, ids, planned, accepted, proposed=None):
    """A step in which `ids` planned so deep, and proposed that, and so much was accepted."""
    depths = planned if proposed is None else proposed
    limits = np.stack([planned, planned], axis=1).astype(np.int32)
    batch = SimpleNamespace(seqs=seqs(*ids), draft_limits=limits)
    result = SimpleNamespace(num_accepted=torch.tensor(accepted))
    policy.observe(batch, Proposal.chains([[1] * d for d in depths]), result)


def asked(n=1):
    return np.full(n, K, np.int32)


def climb(policy, accepted, seq_id=0):
    """-> k before each step, and after the last."""
    ks = [int(policy.depths(seqs(seq_id), asked(), None)[0])]
    for a in accepted:
        observe(policy, [seq_id], [ks[-1]], [min(a, ks[-1])])
        ks.append(int(policy.depths(seqs(seq_id), asked(), None)[0]))
    return ks


@pytest.mark.parametrize(
    "accepted, ks",
    [([0] * 7, [6, 5, 4, 3, 2, 1, 1, 1]),
     ([1] * 7, [6, 5, 4, 3, 2, 1, 1, 1]),  # min(2, k): at k = 1 one is enough
     ([2] * 5, [6] * 6),
     ([0, 0, 3, 3, 3, 4, 4, 4, 5], [6, 5, 4, 4, 4, 5, 5, 5, 6, 6]),
     ([0, 0, 0, 2, 2, 1, 2, 2, 2], [6, 5, 4, 3, 3, 3, 2, 2, 2, 3]),
     ([6] * 4, [6] * 5)],
)  # fmt: skip
def test_simple_goes_down_after_one_and_up_after_three(accepted, ks):
    assert climb(SimpleDepth(K), accepted) == ks


def test_simple_is_per_request_and_counts_proposals_only():
    policy = SimpleDepth(K)
    observe(policy, [1, 2], [6, 6], [0, 6])
    assert policy.depths(seqs(1, 2, 3), asked(3), None).tolist() == [5, 6, 6]
    observe(policy, [1], [5], [0], proposed=[0])
    assert policy.depths(seqs(1), asked(), None).tolist() == [5], "nothing was proposed"
    assert policy.depths(seqs(1), np.array([2]), None).tolist() == [2]
    policy.release(seqs(1)[0])
    policy.release(seqs(99)[0])
    assert policy.depths(seqs(1), asked(), None).tolist() == [6]


def test_fixed_is_what_is_asked():
    assert FixedDepth().depths(seqs(1, 2), np.array([3, 0]), None).tolist() == [3, 0]


def taught(rates, n=400, per_request=None):
    """A policy that saw drafts accepted at these rates by position, given the one before."""
    policy, rng = MeasuredDepth(K), np.random.default_rng(0)
    for _ in range(n):
        for seq_id, own in (per_request or {0: rates}).items():
            accepted = int(np.cumprod(rng.random(K) < own).sum())
            observe(policy, [seq_id], [K], [accepted])
    return policy


def cost(row, forward=0.0, once=0.0):
    return lambda depths, rows: 1.0 + row * rows + once + forward * depths


@pytest.mark.parametrize(
    "row, forward, rate, best",
    [(0.0, 0.0, 0.5, 6), (0.02, 0.02, 0.9, 6), (0.1, 0.1, 0.6, 2), (0.3, 0.0, 0.5, 1),
     (0.02, 0.4, 0.6, 1)],
)  # fmt: skip
def test_the_depth_emits_most_tokens_a_second(row, forward, rate, best):
    reach = rate ** np.arange(1, K + 1)
    emitted = 1 + np.append(0, np.cumsum(reach))
    rates = emitted / (1.0 + (row + forward) * np.arange(K + 1))
    expected = int(rates[1:].argmax()) + 1
    assert abs(expected - best) <= 1, "the table above, by the formula"
    policy = taught([rate] * K)
    found = [int(policy.depths(seqs(0), asked(), cost(row, forward))[0]) for _ in range(15)]
    chosen = [rates[d] for d in found]
    assert min(chosen) > 0.98 * rates[1:].max()


def test_every_so_often_all_depths_are_looked_at():
    policy = taught([0.2] * K)
    found = [int(policy.depths(seqs(0), asked(), cost(0.3))[0]) for _ in range(160)]
    assert found.count(K) == 10 and set(found) == {1, K}


def test_a_lucky_request_goes_deeper_than_an_unlucky_one():
    policy = taught(None, per_request={1: [0.9] * K, 2: [0.2] * K})
    depths = policy.depths(seqs(1, 2), asked(2), cost(0.1))
    assert depths[0] > depths[1] >= 1
    assert policy.depths(seqs(1, 2), np.array([2, 0]), cost(0.1)).tolist() == [2, 0]


def test_without_costs_nothing_is_limited():
    assert taught([0.1] * K).depths(seqs(0), asked(), None).tolist() == [K]
