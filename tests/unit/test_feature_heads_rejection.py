"""EAGLE heads and MTP blocks under rejection: what they draw leaves the target's law as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.proposers import growing, mtp
from specfast.proposers.eagle import EagleProposer
from specfast.proposers.mtp import MtpProposer
from specfast.proposers.target import Target
from specfast.request import Request
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.eagle_heads import ToyHead
from tests.unit.test_draft_model_rejection import CONFIG, noisy
from tests.unit.test_generation_law import V, joint_law, p_value, transition_law
from tests.unit.toy_model import NoisyToy, ToyModel, ToyTokenizer

LENGTH, SAMPLES = 5, 3000  # the first token comes without drafts, the last one stands behind three


class LastToken(ToyHead):
    """The toy's law looks one token back, and so does its head."""

    def forward(self, hidden, rows, kv_cache):
        digests = [self.model._digest([token + 1]) for token in rows.token_ids.tolist()]
        state = torch.tensor(digests, dtype=torch.float64)[:, None]
        return state, state


class Some(LastToken):
    """Knows three tokens of the target."""

    d2t = torch.tensor([0, 2, 3], dtype=torch.int32)

    def logits(self, hidden):
        return super().logits(hidden)[:, self.d2t.long()].contiguous()


def eagle(spec, target):
    return EagleProposer(spec, target, LastToken(noisy()))


def reduced(spec, target):
    return EagleProposer(spec, target, Some(noisy()))


def blocks(spec, target):
    return MtpProposer(
        spec, target, (LastToken(noisy()), LastToken(NoisyToy(1.5, CONFIG, order=1)))
    )


KINDS = {
    "chain": (eagle, 2, None), "tree": (eagle, 2, 6), "deep tree": (eagle, 3, 6),
    "reduced vocabulary": (reduced, 2, 6), "two blocks": (blocks, 2, None),
}  # fmt: skip


def engine_of(kind: str, rule: str) -> Engine:
    make, k, nodes = KINDS[kind]
    spec = SpeculativeConfig(
        "eagle", k, "rejection", rejection_rule=rule, max_tree_nodes=nodes, policy="fixed"
    )
    config = EngineConfig(
        "toy", num_blocks=1024, block_size=4, max_num_seqs=64, speculative_config=spec
    )
    target = Target(ToyModel(CONFIG, order=1), ToyTokenizer(), config)
    engine = Engine(target.model, target.tokenizer, config, make(spec, target))
    engine._guard = engine.proposer  # whatever it raises is to be seen
    return engine


def run_all(engine: Engine, count: int) -> list[Request]:
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True)
    requests = [engine.add_request([2], replace(params, seed=seed)) for seed in range(count)]
    while engine.has_unfinished:
        engine.step()
    return requests


def counts_of(engine: Engine) -> np.ndarray:
    """[V] * 4: of the tokens that had drafts before them or were drafts."""
    requests = run_all(engine, SAMPLES)
    counts = np.zeros((V,) * LENGTH)
    for request in requests:
        counts[tuple(request.output().outputs[0].token_ids)] += 1
    stats = engine.metrics.stats
    assert len(stats.num_accepted_per_pos) > 1 and stats.num_accepted_per_pos[1]
    return counts.sum(0)


def law_of(temperature: float) -> np.ndarray:
    return joint_law(transition_law(temperature, 0), 2, LENGTH).sum(0)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_generations_follow_the_targets_law(kind, rule):
    counts = counts_of(engine_of(kind, rule))
    assert p_value(counts, law_of(1.0)) > 1e-3
    assert p_value(counts, law_of(1.2)) < 1e-6, "a wrong temperature went unnoticed"


def test_a_law_that_was_not_drawn_from_is_noticed(monkeypatch):
    """The control: block 1's drafts are said to come from block 0's law."""
    engine = engine_of("two blocks", "token")
    draft = engine.proposer.draft

    def wrong(*args):
        proposal = draft(*args)
        if proposal.law_row is not None and proposal.law_row.shape[1] > 1:
            proposal.draft_laws[proposal.law_row[:, 1]] = proposal.draft_laws[
                proposal.law_row[:, 0]
            ]
        return proposal

    monkeypatch.setattr(engine.proposer, "draft", wrong)
    assert p_value(counts_of(engine), law_of(1.0)) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_submitted_however_unlikely(kind, monkeypatch):
    """To leave out a draw for what it is would bend the law."""
    tokens = []
    for floor in (0.0, 2.0):
        for module in (growing, mtp):
            monkeypatch.setattr(module, "MIN_SURVIVAL", floor)
        engine = engine_of(kind, "token")
        requests = run_all(engine, 60)
        tokens.append([r.seqs[0].token_ids for r in requests])
        assert engine.metrics.stats.num_draft_tokens > 100
    assert tokens[0] == tokens[1]
