"""Acceptance by decree: the rates that were asked for, whatever is drafted, and nothing hidden."""

from __future__ import annotations

import logging

import pytest

from specfast.certify import Certifier
from specfast.certify_settings import settings
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.metrics import SpecStats
from specfast.proposers.base import Needs, Proposal
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.synthetic import SyntheticAcceptance
from specfast.verifier import draw
from tests.unit.test_engine import run, tokens
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer
from tests.unit.toy_proposers import as_proposal

RATES = (0.8, 0.6, 0.6, 0.15)
PROMPTS = [[1 + i, *range(2, 4 + i)] for i in range(6)]


class Garbage:
    """The same token as often as it may, whatever the text: never what the target says."""

    needs = Needs()

    def __init__(self, token: int = 39, wide: bool = False) -> None:
        self.token, self.wide = token, wide

    def propose(self, batch) -> Proposal:
        return as_proposal([self._tree(depth) for depth, _ in batch.draft_limits.tolist()])

    def _tree(self, depth: int) -> list[tuple[int, int]]:
        """A chain; wide: a sibling after each of its nodes."""
        if not self.wide:
            return [(self.token, node - 1) for node in range(depth)]
        parents = [max(-1, 2 * level - 2) for level in range(depth)]
        return [(self.token - i, parent) for parent in parents for i in (0, 1)]

    def observe(self, batch, proposal, forward, result) -> None:
        pass

    def release(self, seq) -> None:
        pass


class Nothing(Garbage):
    def propose(self, batch) -> Proposal:
        return Proposal.empty(len(batch))


def make_engine(proposer, acceptance=RATES, policy="fixed", **config) -> Engine:
    spec = SpeculativeConfig(
        "test", 4, max_tree_nodes=8, policy=policy, synthetic_acceptance=acceptance
    )
    values = {"num_blocks": 400, "block_size": 4, "max_num_batched_tokens": 256, **config}
    model = ToyModel(ToyConfig(max_position_embeddings=600), order=2)
    settings = EngineConfig("toy", speculative_config=spec, **values)
    return Engine(model, ToyTokenizer(), settings, proposer)


def generate(engine, length=60, prompts=PROMPTS, **params):
    values = {"max_tokens": length, "ignore_eos": True, "temperature": 0.0, "seed": 3, **params}
    return run(engine, prompts, SamplingParams(**values))


def measured(engine) -> SpecStats:
    """Of many steps, each request with draws of its own; blocks are no limit to drafts."""
    params = [
        SamplingParams(max_tokens=300, ignore_eos=True, temperature=0.0, seed=i) for i in range(10)
    ]
    run(engine, [[1 + i, 2, 3] for i in range(10)], params)
    return engine.metrics.stats


def agrees(num_accepted: int, num_drafts: int, rate: float) -> bool:
    """Within four standard deviations of the binomial law."""
    deviation = (num_drafts * rate * (1 - rate)) ** 0.5
    return abs(num_accepted - num_drafts * rate) <= 4 * deviation


@pytest.mark.parametrize("wide", [False, True], ids=["chains", "trees"])
def test_acceptance_is_what_was_asked_for(wide):
    stats = measured(make_engine(Garbage(wide=wide), num_blocks=1000))
    assert stats.num_drafts > 900
    counts = stats.num_accepted_per_pos
    assert all(agrees(n, stats.num_drafts, rate) for n, rate in zip(counts, RATES)), counts
    assert not agrees(counts[0], stats.num_drafts, 0.7), "the bound sees a tenth"
    assert not agrees(counts[2], stats.num_drafts, 0.6 * 0.6), "these are no conditional rates"


def test_a_length_is_what_a_step_emits():
    stats = measured(make_engine(Garbage(), acceptance=2.5, num_blocks=1000))
    assert stats.acceptance_length == pytest.approx(2.5, abs=4 * 1.5 / stats.num_drafts**0.5)


@pytest.mark.parametrize("acceptance", [[0.0], [1.0, 1.0, 1.0, 1.0]])
def test_never_and_always(acceptance):
    engine = make_engine(Garbage(), acceptance=acceptance)
    generate(engine, 60)
    stats = engine.metrics.stats
    assert stats.acceptance_rate == (pytest.approx(acceptance[0], abs=0.03))
    assert stats.num_draft_tokens > 100


def test_rates_are_unconditional_and_what_is_left_out_is_never_accepted():
    assert SyntheticAcceptance((0.8, 0.4, 0.4, 0.0, 0.0)).conditional == (0.8, 0.5, 1.0, 0.0, 0.0)
    engine = make_engine(Garbage(), acceptance=[1.0])
    generate(engine, 60)
    assert engine.metrics.stats.num_accepted_per_pos == (engine.metrics.stats.num_drafts,)


def test_it_repeats_whatever_the_batch_and_the_blocks():
    alone = [
        generate(make_engine(Garbage(), max_num_seqs=1), 60, [p])[0].outputs[0] for p in PROMPTS
    ]
    together = generate(make_engine(Garbage(), block_size=7, num_blocks=80), 60)
    assert [o.outputs[0].token_ids for o in together] == [c.token_ids for c in alone]
    assert [o.outputs[0].accepted for o in together] == [c.accepted for c in alone]
    other = generate(make_engine(Garbage()), 60, seed=4)
    assert tokens(other) != tokens(together)


def test_the_token_after_the_drafts_is_the_targets_own_there():
    """A law of the last two tokens: after drafts that are all alike, always the same token."""
    (output,) = generate(make_engine(Garbage(), acceptance=[1.0] * 4), 60, prompts=[[5, 6]])
    (choice,) = output.outputs
    own = [t for t, accepted in zip(choice.token_ids, choice.accepted) if not accepted]
    assert len(own) >= 12 and len(set(own[1:])) == 1


def test_draws_are_uniform_and_independent_of_one_another():
    draws = [[draw(seed, position) for position in range(50)] for seed in range(40)]
    flat = [v for row in draws for v in row]
    assert abs(sum(flat) / len(flat) - 0.5) < 4 * (1 / 12 / len(flat)) ** 0.5
    assert len(set(flat)) == len(flat) and min(flat) >= 0 and max(flat) < 1


def test_policy_auto_sees_the_decree_and_acts_on_it():
    good, bad = (
        make_engine(Garbage(), policy="auto", acceptance=[rate] * 4) for rate in (1.0, 0.0)
    )
    for engine in (good, bad):
        generate(engine, 300)
    assert good.metrics.stats.acceptance_length > 2
    assert bad.metrics.stats.num_accepted_tokens == 0


def test_an_end_among_the_drafts_ends_it():
    (output,) = generate(make_engine(Garbage(token=0), [1.0] * 4), prompts=[[5]], ignore_eos=False)
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].token_ids[-1] == 0
    assert output.outputs[0].token_ids.count(0) == 1
    (output,) = generate(make_engine(Garbage(token=0), [1.0] * 4), 30, prompts=[[5]])
    assert len(output.outputs[0].token_ids) == 30
    (output,) = generate(
        make_engine(Garbage(token=7), [1.0] * 4), prompts=[[5]], stop_token_ids=[7]
    )
    assert output.outputs[0].token_ids.count(7) == 1


def test_without_drafts_the_text_is_the_targets_own():
    plain = Engine(
        ToyModel(ToyConfig(max_position_embeddings=600), order=2),
        ToyTokenizer(),
        EngineConfig("toy", num_blocks=400, block_size=4),
        None,
    )
    expected = tokens(generate(plain, 40))
    assert tokens(generate(make_engine(Nothing()), 40)) == expected
    outputs = generate(make_engine(Garbage()), 40, speculative=False)
    assert tokens(outputs) == expected
    assert not any(o.synthetic for o in outputs) and all(o.lossless for o in outputs)


def test_it_is_marked_and_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "specfast"):
        engine = make_engine(Garbage())
    assert "invalid text" in caplog.text
    outputs = generate(engine, 20)
    assert all(o.synthetic and not o.lossless for o in outputs), "greedy too"
    texts = [o.outputs[0].text for o in outputs]
    assert all(
        "".join(f"<{t}>" for t in o.outputs[0].token_ids) == x for o, x in zip(outputs, texts)
    )


def test_a_model_that_fails_is_said():
    class Failing(ToyModel):
        def logits(self, hidden, index):
            logits = super().logits(hidden, index)
            logits[0] = float("nan")  # the first request's
            return logits

    engine = make_engine(Garbage())
    engine.runner.model = Failing(engine.runner.model.config, 2)
    outputs = generate(engine, 20)
    reasons = {o.outputs[0].finish_reason for o in outputs}
    assert reasons == {"error"} and "not a number" in str(outputs[0].outputs[0].stop_reason)


def test_certify_refuses_it():
    drafter = SpeculativeConfig("ngram", synthetic_acceptance=[0.5])
    certifier = Certifier(ToyModel(), ToyTokenizer(), EngineConfig("toy"), [[1, 2]], 8)
    with pytest.raises(ValueError, match="synthetic_acceptance makes invalid text"):
        certifier.certify(settings(2, [drafter]), print)
