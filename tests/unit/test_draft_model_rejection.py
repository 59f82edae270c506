"""Draft models under rejection: another draw than the target's own, from the same law."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.proposers import growing
from specfast.proposers.candidates import Drawing
from specfast.proposers.draft_model import DraftModelProposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_draft_model import ROOMY, Reduced, depth_of, make_engine, params_of
from tests.unit.test_engine import GREEDY, prompts_of, run, target_stream, tokens
from tests.unit.test_generation_law import V, joint_law, p_value, transition_law
from tests.unit.toy_model import NoisyToy, ToyConfig, ToyModel, ToyTokenizer

CONFIG = ToyConfig(vocab_size=V)
LENGTH, SAMPLES = 3, 4000
SHAPES = {"chain": (2, None), "tree": (2, 6), "deep tree": (3, 6)}


def law_engine(rule: str, k: int, nodes: int | None, draft) -> Engine:
    spec = SpeculativeConfig(
        "draft_model",
        num_speculative_tokens=k,
        max_tree_nodes=nodes,
        verification="rejection",
        rejection_rule=rule,
        policy="fixed",
    )
    config = EngineConfig(
        "toy", num_blocks=1024, block_size=4, max_num_seqs=64, speculative_config=spec
    )
    target = Target(ToyModel(CONFIG, order=1), ToyTokenizer(), config)
    proposer = DraftModelProposer(spec, target, draft)
    return Engine(target.model, target.tokenizer, config, proposer)


def counts_of(engine: Engine, temperature: float = 1.0, top_k: int = 0) -> np.ndarray:
    params = SamplingParams(
        temperature=temperature, top_k=top_k, max_tokens=LENGTH, ignore_eos=True
    )
    requests = [engine.add_request([2], replace(params, seed=seed)) for seed in range(SAMPLES)]
    while engine.has_unfinished:
        engine.step()
    counts = np.zeros((V,) * LENGTH)
    for request in requests:
        counts[tuple(request.output().outputs[0].token_ids)] += 1
    stats = engine.metrics.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    return counts


def noisy() -> NoisyToy:
    return NoisyToy(0.7, CONFIG, order=1)


@pytest.mark.parametrize("temperature, top_k", [(1.0, 0), (0.7, 3)])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_generations_follow_the_targets_law(shape, rule, temperature, top_k):
    engine = law_engine(rule, *SHAPES[shape], noisy())
    counts = counts_of(engine, temperature, top_k)
    assert p_value(counts, joint_law(transition_law(temperature, top_k), 2)) > 1e-3
    control = transition_law(temperature * 1.2, top_k)
    assert p_value(counts, joint_law(control, 2)) < 1e-6, "a wrong temperature went unnoticed"


def test_a_reduced_vocabulary_keeps_the_law():
    class Some(NoisyToy):
        def logits(self, hidden, index):
            return super().logits(hidden, index)[:, self.weights.d2t.long()].contiguous()

    draft = Some(0.7, CONFIG, order=1)
    draft.weights.d2t = torch.tensor([0, 2, 3], dtype=torch.int32)
    counts = counts_of(law_engine("block", 2, 6, draft))
    assert p_value(counts, joint_law(transition_law(1.0, 0), 2)) > 1e-3


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_leaving_out_what_was_drawn_is_noticed(shape, monkeypatch):
    """The control: nodes that turn out unlikely are not submitted."""
    growth = growing.TreeGrowth

    def probability(self, laws, ids):
        return laws.softmax(1).gather(1, ids.long()).numpy()

    monkeypatch.setattr(Drawing, "_confidence", probability)
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.35)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)
    monkeypatch.setattr(growing, "TreeGrowth", lambda *args: growth(*args[:-1], False))
    counts = counts_of(law_engine("token", *SHAPES[shape], noisy()))
    assert p_value(counts, joint_law(transition_law(1.0, 0), 2)) < 1e-6


@pytest.mark.parametrize("nodes", [None, 12])
def test_greedy_requests_get_the_targets_own_stream(nodes):
    prompts, params = prompts_of(random.Random(1), 5), params_of(GREEDY)
    engine = make_engine(NoisyToy(0.7), nodes=nodes, verification="rejection", num_blocks=200)
    outputs = run(engine, prompts, params)
    for prompt, output in zip(prompts, outputs):
        assert prompt + output.outputs[0].token_ids == target_stream(prompt, params, 24)
    assert engine.metrics.stats.num_accepted_tokens


@pytest.mark.parametrize("nodes, drawn", [(None, 4), (5, 5), (12, 12), (16, 14), (64, 52)])
def test_trees_hold_all_that_was_drawn_within_their_limits(nodes, drawn, monkeypatch):
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)
    engine = make_engine(NoisyToy(0.7), nodes=nodes, verification="rejection", **ROOMY)
    proposer, seen = engine.proposer, []
    propose = proposer.propose

    def recording(batch):
        proposal = propose(batch)
        law_rows = proposal.parents if proposal.law_row is None else proposal.law_row
        for limit, n, parents, rows in zip(
            batch.draft_limits, proposal.lengths.tolist(), proposal.parents, law_rows
        ):
            if n:
                assert n <= limit[1] and depth_of(parents[:n].tolist()) == limit[0]
                assert (rows[:n] >= 0).all()
                seen.append(n)
        return proposal

    proposer.propose = recording
    params = params_of({"temperature": 1.0, "seed": 3}, 40)
    run(engine, prompts_of(random.Random(2), 4), params)
    assert not engine.budget._switched_off and max(seen) == drawn


def test_the_same_seed_gives_the_same_answer():
    params = params_of({"temperature": 1.0, "seed": 3}, 30)
    runs = []
    for batch in (1, 4):
        prompts = [[7, 8, 9], [4, 5], [3], [9, 9, 9]][:batch]
        engine = make_engine(NoisyToy(0.7), nodes=12, verification="rejection", num_blocks=400)
        runs.append(tokens(run(engine, prompts, params))[0])
    assert runs[0] == runs[1]


def test_a_draft_that_is_the_target_is_accepted_whole():
    params = params_of({"temperature": 1.0, "seed": 3}, 60)
    engine = make_engine(ToyModel(), verification="rejection")
    run(engine, [[3, 1, 4]], params)
    stats = engine.metrics.stats
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 20


def test_a_reduced_draft_proposes_what_it_knows():
    draft = Reduced()
    engine = make_engine(draft, verification="rejection", nodes=12)
    params = params_of({"temperature": 1.0, "seed": 3}, 30)
    run(engine, [[3, 1, 4]], params)
    assert not engine.budget._switched_off and engine.metrics.stats.num_draft_tokens
