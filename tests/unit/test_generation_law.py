"""Generations follow the target's law at T > 0: chi-square against float64, and controls."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.proposers.base import Needs
from specfast.sampler import Sampler
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer
from tests.unit.toy_proposers import as_proposal

V, LENGTH, SAMPLES = 5, 3, 3000


class GuessingProposer:
    """Drafts what a seedless guess gives: full trees of depth 2, whatever the target thinks."""

    needs = Needs()

    def propose(self, batch):
        trees = []
        for seq, (depth, nodes) in zip(batch.seqs, batch.draft_limits.tolist()):
            first = (seq.seq_id + len(seq.token_ids)) % V
            tree = [(first, -1), ((first + 1) % V, -1), ((first + 2) % V, 1), (first, 1)]
            trees.append(tree[: min(nodes, 2 if depth == 1 else 4)] if depth else [])
        return as_proposal(trees)

    def observe(self, batch, proposal, forward, result):
        pass

    def release(self, seq):
        pass

    def reset(self):
        pass


def transition_law(temperature: float, top_k: int) -> np.ndarray:
    """[V, V] float64: the law of the next token given the last one."""
    model = ToyModel(ToyConfig(vocab_size=V), order=1)
    digests = torch.tensor([[float(model._digest([t + 1]))] for t in range(V)], dtype=torch.float64)
    logits = model.logits(digests, torch.arange(V)).double().numpy() / temperature
    if top_k:
        cut = np.sort(logits, axis=1)[:, [-top_k]]
        logits = np.where(logits >= cut, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def joint_law(transition: np.ndarray, first: int, length: int = LENGTH) -> np.ndarray:
    """[V] * length: the law of the first tokens after `first`."""
    law = transition[first]
    for _ in range(length - 1):
        law = law[..., None] * transition
    return law


def generate(speculate: bool, temperature: float, top_k: int) -> np.ndarray:
    """SAMPLES generations with seeds of their own -> counts [V] * LENGTH."""
    spec = SpeculativeConfig("test", 2, max_tree_nodes=4, policy="fixed")
    config = EngineConfig(
        "toy",
        num_blocks=256,
        block_size=4,
        max_num_seqs=64,
        speculative_config=spec if speculate else None,
    )
    model = ToyModel(ToyConfig(vocab_size=V), order=1)
    tokenizer = ToyTokenizer()
    engine = Engine(model, tokenizer, config, GuessingProposer() if speculate else None)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, max_tokens=LENGTH, ignore_eos=True
    )
    requests = [engine.add_request([2], replace(params, seed=seed)) for seed in range(SAMPLES)]
    while engine.has_unfinished:
        engine.step()
    counts = np.zeros((V,) * LENGTH)
    for request in requests:
        counts[tuple(request.output().outputs[0].token_ids)] += 1
    if speculate:
        assert 0 < engine.metrics.stats.num_accepted_tokens < engine.metrics.stats.num_draft_tokens
    return counts


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square over cells that expect 5 or more, the rest pooled; 0 for what the law forbids."""
    expected = law * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    big = expected >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    keep = wanted > 0
    statistic = ((observed - wanted)[keep] ** 2 / wanted[keep]).sum()
    return float(chi2.sf(statistic, keep.sum() - 1))


@pytest.mark.parametrize("temperature, top_k", [(1.0, 0), (0.7, 3)])
@pytest.mark.parametrize("speculate", [False, True], ids=["plain", "speculative"])
def test_generations_follow_the_law(speculate, temperature, top_k):
    counts = generate(speculate, temperature, top_k)
    assert p_value(counts, joint_law(transition_law(temperature, top_k), 2)) > 1e-3
    control = transition_law(temperature * 1.2, top_k)
    assert p_value(counts, joint_law(control, 2)) < 1e-6, "a wrong temperature went unnoticed"


def test_noise_that_does_not_belong_to_the_position_is_noticed(monkeypatch):
    original = Sampler.sample
    monkeypatch.setattr(
        Sampler,
        "sample",
        lambda self, batch, forward: original(
            self,
            batch,
            replace(forward, decided_positions=torch.zeros_like(forward.decided_positions)),
        ),
    )
    counts = generate(True, 1.0, 0)
    assert p_value(counts, joint_law(transition_law(1.0, 0), 2)) < 1e-6
