"""Verification in the engine: laws over many generations, what matches, is refused and is said."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from specfast._host import gumbel_noise
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.medusa import MedusaConfig
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.medusa import MedusaProposer
from specfast.proposers.ngram import NgramProposer
from specfast.proposers.recycle import RecycleProposer
from specfast.proposers.suffix import SuffixProposer
from specfast.proposers.target import Target
from specfast.reference_verification import RowSettings
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.verifier import MatchVerifier, RejectionVerifier, make_verifier
from tests.unit.test_engine import GREEDY, SAMPLED, prompts_of, run, target_stream, tokens
from tests.unit.test_generation_law import joint_law, p_value
from tests.unit.test_rejection_law import DRAFT_LAWS, START, TARGET_LAWS
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer
from tests.unit.toy_proposers import SampledProposer, TreeProposer, as_proposal

V, LENGTH, SAMPLES = 4, 4, 3000  # the last token is START, which never comes again
RULES = {
    "token": {"verification": "rejection", "rejection_rule": "token"},
    "block": {"verification": "rejection"},
    "match": {},
}
LOSSY = {"verification": "typical"}


def make_engine(proposer, model=None, k=3, nodes=8, rule="block", **config) -> Engine:
    spec = SpeculativeConfig(
        "test", k, max_tree_nodes=nodes, policy="fixed", **RULES.get(rule, LOSSY)
    )
    values = {"num_blocks": 512, "block_size": 4, "max_num_seqs": 64, **config}
    settings = EngineConfig("toy", speculative_config=spec, **values)
    return Engine(model or ToyModel(), ToyTokenizer(), settings, proposer)


def table(laws: list[list[float]]) -> torch.Tensor:
    """[V, V]: logits by the last token."""
    return torch.tensor([[*row, 0.0] for row in laws]).log()


class TableModel(ToyModel):
    """The target of test_rejection_law."""

    def __init__(self):
        super().__init__(ToyConfig(vocab_size=V), order=1)

    def _digest(self, tokens):
        return tokens[-1] - 1

    def logits(self, hidden, index):
        return table(TARGET_LAWS)[hidden[index, 0].long()]


def law_of(temperature: float = 1.0, top_k: int = 0) -> np.ndarray:
    """[V] * LENGTH."""
    settings = RowSettings(temperature, top_k)
    rows = torch.stack([settings.probs(row) for row in table(TARGET_LAWS)])
    return joint_law(rows.numpy(), START, LENGTH)


class Guesses:
    """Point masses: a tree of the same tokens whatever the text, and of varying size."""

    needs = Needs()

    def propose(self, batch):
        trees = []
        for seq, (depth, nodes) in zip(batch.seqs, batch.draft_limits.tolist()):
            first = (seq.seq_id + len(seq.token_ids)) % V
            tree = [(first, -1), ((first + 1) % V, -1), ((first + 2) % V, 1), (first, 1), (0, 3)]
            trees.append(tree[: min(nodes, (0, 2, 4, 5)[min(depth, 3)])])
        return as_proposal(trees)

    def observe(self, batch, proposal, forward, result):
        pass

    def release(self, seq):
        pass

    def reset(self):
        pass


DRAFT = table(DRAFT_LAWS)


def recycle() -> RecycleProposer:
    """Point masses in trees that grow by what the target said before."""
    spec = SpeculativeConfig("recycle", 3, verification="rejection", max_tree_nodes=6)
    config = EngineConfig("toy", speculative_config=spec)
    return RecycleProposer(spec, Target(TableModel(), ToyTokenizer(), config))


def suffix() -> SuffixProposer:
    """Point masses by what was said before, by this request and by others."""
    spec = SpeculativeConfig(
        "suffix", 3, verification="rejection", suffix_decoding_max_cached_requests=40
    )
    config = EngineConfig("toy", speculative_config=spec)
    return SuffixProposer(spec, Target(TableModel(), ToyTokenizer(), config))


class TableHeads:
    """Says what the drafter's table does, one step and two steps on."""

    num_heads, d2t = 2, None

    def logits(self, features, num_heads):
        first = DRAFT[features[:, 0].long()]
        return torch.stack([first, torch.logsumexp(first[:, :, None] + DRAFT, 1)])[:num_heads]


def medusa() -> MedusaProposer:
    """Point masses in a tree of fixed shape, by the hidden state of the row before."""
    spec = SpeculativeConfig("medusa", 2, verification="rejection", max_tree_nodes=5)
    config = EngineConfig("toy", speculative_config=spec)
    target = Target(TableModel(), ToyTokenizer(), config)
    return MedusaProposer(spec, target, (MedusaConfig(2, 1), TableHeads()))


REDUCED = torch.tensor([2, 0], dtype=torch.int32)
PROPOSERS = {
    "chain": lambda: SampledProposer(DRAFT, (1, 1, 1)),
    "tree": lambda: SampledProposer(DRAFT, (2, 1, 1)),
    "reduced vocabulary": lambda: SampledProposer(
        DRAFT[:, REDUCED.long()].contiguous(), (2, 1), REDUCED
    ),
    "point masses": Guesses,
    "recycle": recycle,
    "suffix": suffix,
    "medusa": medusa,
}


def generate(proposer, rule: str, temperature: float = 1.0, top_k: int = 0) -> np.ndarray:
    """SAMPLES generations with seeds of their own -> counts [V] * LENGTH."""
    engine = make_engine(proposer, TableModel(), rule=rule)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, max_tokens=LENGTH, ignore_eos=True
    )
    requests = [engine.add_request([START], replace(params, seed=seed)) for seed in range(SAMPLES)]
    while engine.has_unfinished:
        engine.step()
    counts = np.zeros((V,) * LENGTH)
    for request in requests:
        counts[tuple(request.output().outputs[0].token_ids)] += 1
    stats = engine.metrics.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    return counts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PROPOSERS)
def test_generations_follow_the_law(name, rule):
    counts = generate(PROPOSERS[name](), rule)
    assert p_value(counts, law_of()) > 1e-3
    assert p_value(counts, law_of(1.2)) < 1e-6, "a wrong law went unnoticed"


@pytest.mark.parametrize("name", PROPOSERS)
def test_filtered_generations_follow_the_law(name):
    counts = generate(PROPOSERS[name](), "block", 0.8, 2)
    assert p_value(counts, law_of(0.8, 2)) > 1e-3
    assert p_value(counts, law_of(1.1, 2)) < 1e-6, "a wrong law went unnoticed"


def test_a_law_that_was_not_drawn_from_is_noticed():
    class Liar(SampledProposer):
        def propose(self, batch):
            proposal = super().propose(batch)
            laws = proposal.draft_laws
            return proposal if laws is None else replace(proposal, draft_laws=0.5 * laws)

    counts = generate(Liar(DRAFT, (1, 1, 1)), "block")
    assert p_value(counts, law_of()) < 1e-6


def test_noise_that_a_depth_shares_is_noticed():
    proposer = SampledProposer(DRAFT, (2, 1, 1), noise_node=lambda node: -1)
    counts = generate(proposer, "block")
    assert p_value(counts, law_of()) < 1e-6


def test_drafts_that_look_at_the_targets_noise_are_noticed():
    """As coupled drafts do, which matching likes: no second draft where the noise favours a 0."""

    class Foreteller(Guesses):
        def propose(self, batch):
            trees = []
            for seq, (depth, _) in zip(batch.seqs, batch.draft_limits.tolist()):
                noise = gumbel_noise(seq.seed, len(seq.token_ids) + 1, [0, 1, 2])
                length = min(depth, 1 if noise[0] == max(noise) else 2)
                trees.append([(0, -1), (1, 0)][:length])
            return as_proposal(trees)

    assert p_value(generate(Foreteller(), "block"), law_of()) < 1e-6


def test_dropping_unlikely_drafts_is_noticed():
    class Picky(SampledProposer):
        def propose(self, batch):
            proposal = super().propose(batch)
            if proposal.draft_laws is None:
                return proposal
            probs = proposal.draft_laws.softmax(1).numpy()
            rows, drafts = proposal.law_row.numpy(), proposal.tokens.numpy()
            lengths = proposal.lengths.clone()
            for b in range(len(batch)):
                for i in range(int(lengths[b])):
                    if probs[rows[b, i], drafts[b, i]] < 0.3:
                        lengths[b] = i
                        break
            return replace(proposal, lengths=lengths)

    counts = generate(Picky(DRAFT, (1, 1, 1)), "block")
    assert p_value(counts, law_of()) < 1e-6


@pytest.mark.parametrize("rule", ["token", "block", "typical"])
def test_greedy_requests_get_the_targets_own_stream(rule):
    rng = random.Random(4)
    prompts = prompts_of(rng, 6)
    params = SamplingParams(max_tokens=20, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 20) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong=2, miss=0.2), k=5, nodes=24, rule=rule)
    outputs = run(engine, prompts, params)
    assert tokens(outputs) == [[streams[tuple(p)][len(p) :]] for p in prompts]
    assert all(o.lossless for o in outputs)
    assert engine.metrics.stats.num_accepted_tokens > 20


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_request_without_drafts_gets_the_targets_own_stream(rule):
    params = SamplingParams(max_tokens=12, ignore_eos=True, speculative=False, **SAMPLED)
    prompts = prompts_of(random.Random(1), 4)
    outputs = run(make_engine(Guesses(), rule=rule), prompts, params)
    assert tokens(outputs) == [[target_stream(p, params, 12)[len(p) :]] for p in prompts]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_outputs_depend_on_the_request_alone(rule):
    """Batch mates and blocks: another batch, the same bytes, as long as the same is drafted."""
    prompts = [[1 + (i + j) % 3 for j in range(3 + i)] for i in range(6)]
    table = 0.4 * torch.randn(40, 40, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.8, seed=3)
    expected = None
    for config in (
        {"max_num_seqs": 1},
        {"max_num_seqs": 6, "block_size": 7},
        {"max_num_seqs": 3, "enable_prefix_caching": False},
    ):
        proposer = SampledProposer(table, (2, 1))
        engine = make_engine(proposer, ToyModel(order=2), k=2, nodes=4, rule=rule, **config)
        got = tokens(run(engine, prompts, params))
        expected = expected or got
        assert got == expected


def test_point_masses_of_ngram_work_under_rejection():
    spec = SpeculativeConfig("ngram", 4, verification="rejection")
    config = EngineConfig("toy", num_blocks=64, block_size=4, speculative_config=spec)
    target = Target(ToyModel(order=1), ToyTokenizer(), config)
    engine = Engine(target.model, target.tokenizer, config, NgramProposer(spec, target))
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.3, seed=1)
    run(engine, [[1, 2, 3, 1, 2, 3, 1, 2]] * 4, params)
    assert engine.metrics.stats.num_accepted_tokens > 20


def test_typical_says_that_it_is_lossy(caplog):
    with caplog.at_level(logging.WARNING, "specfast"):
        engine = make_engine(Guesses(), rule="typical")
    assert "lossy" in caplog.text
    params = SamplingParams(max_tokens=12, ignore_eos=True, seed=1)
    settings = [params, replace(params, temperature=0.0), replace(params, speculative=False)]
    outputs = run(engine, [[1, 2]] * 3, settings)
    assert [o.lossless for o in outputs] == [False, True, True]


def test_typical_is_not_the_targets_law():
    """The very reason why it says so."""
    assert p_value(generate(Guesses(), "typical"), law_of()) < 1e-6


def test_the_engine_picks_the_verifier():
    assert isinstance(make_verifier(None), MatchVerifier)
    assert isinstance(make_verifier(SpeculativeConfig("ngram")), MatchVerifier)
    block = make_verifier(SpeculativeConfig("ngram", verification="rejection"))
    assert isinstance(block, RejectionVerifier) and not block.by_token
    token = SpeculativeConfig("ngram", verification="rejection", rejection_rule="token")
    assert make_verifier(token).by_token


def proposal(**changes) -> Proposal:
    """Two siblings and a child of the first, drawn from two laws over a vocabulary of 4."""
    tree = as_proposal([[(1, -1), (2, -1), (3, 0)]])
    laws = {"draft_laws": torch.zeros(2, 4), "law_row": torch.tensor([[0, 0, 1]]).int()}
    return replace(tree, **{**laws, **changes})


GARBAGE = {
    "belong together": {"law_row": None},
    "and vocab_map to them": {
        "law_row": None,
        "draft_laws": None,
        "vocab_map": torch.ones(4).int(),
    },
    "law_row must be contiguous": {"law_row": torch.zeros(1, 2).int()},
    "draft_laws must be contiguous": {"draft_laws": torch.zeros(2, 3)},
    "vocab_map must hold ids": {"vocab_map": torch.tensor([0, 1, 2, 4]).int()},
    "row of draft_laws": {"law_row": torch.tensor([[0, 0, 2]]).int()},
    "draft_laws must be a tensor in memory": {"draft_laws": torch.zeros(2, 4, requires_grad=True)},
    "law_row must be a tensor in memory": {"law_row": [[0, 0, 1]]},
    "vocab_map must be a tensor in memory": {"vocab_map": torch.zeros(4, device="meta").int()},
    "must be numbers": {"draft_laws": torch.full((2, 4), torch.nan)},
    "one above -inf": {"draft_laws": torch.full((2, 4), -torch.inf)},
    "must share a row": {"law_row": torch.tensor([[0, 1, 1]]).int()},
    "must be distinct": {"tokens": torch.tensor([[1, 1, 3]]).int()},
}


@pytest.mark.parametrize("message", GARBAGE)
def test_laws_that_can_not_be_are_refused(message):
    limits = np.array([[3, 3]])
    proposal().check(limits, 4)
    with pytest.raises(ValueError, match=message):
        proposal(**GARBAGE[message]).check(limits, 4)


def test_laws_stay_with_their_nodes():
    mapped = {"draft_laws": torch.randn(2, 2), "vocab_map": torch.tensor([3, 1]).int()}
    first, second = proposal(**mapped), proposal(**{**mapped, "draft_laws": torch.randn(2, 2)})
    whole = Proposal.joined([first, Proposal.chains([[1, 2, 3, 0]]), second])
    assert whole.law_row.tolist() == [[0, 0, 1, -1], [-1] * 4, [2, 2, 3, -1]]
    assert torch.equal(whole.draft_laws, torch.cat((first.draft_laws, second.draft_laws)))
    assert whole.vocab_map is second.vocab_map
    turned = whole.only(np.array([2, 0]))
    assert turned.law_row.tolist() == [[2, 2, 3, -1], [0, 0, 1, -1]]
    turned.check(np.array([[4, 4]] * 2), 4)
    assert Proposal.joined([Proposal.empty(1)] * 2).draft_laws is None


def test_a_padding_nodes_law_is_nobodys_affair():
    laws = torch.zeros(2, 4)
    laws[1] = torch.nan
    short = proposal(draft_laws=laws, lengths=torch.tensor([2]).int())
    short.check(np.array([[3, 3]]), 4)
    mapped = proposal(draft_laws=torch.zeros(2, 2), vocab_map=torch.tensor([3, 1]).int())
    mapped.check(np.array([[3, 3]]), 4)
