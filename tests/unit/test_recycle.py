"""Token Recycling: the adjacency against a plain one, its trees against all trees, the engine."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specfast._host import Adjacency, gumbel_noise
from specfast.proposers import recycle
from specfast.proposers.base import Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.proposers.recycle import NUM_SUCCESSORS, RecycleProposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.sampling_ops import rank
from tests.unit.test_engine import GREEDY, make_engine, run, tokens
from tests.unit.toy_model import ToyConfig, ToyModel

VOCAB, WIDTH, TAU = 12, 3, 0.75
KEPT = {True: 0.6, False: 0.42}  # greedy or not
GREEDY_LAW = {"temperature": 0.0, "seed": 0, "position": 0}


def fill(adjacency, rows):
    """rows: token -> [(id, logit)], as one call."""
    ids = np.full((len(rows), WIDTH), -1, np.int32)
    logits = np.full((len(rows), WIDTH), -np.inf, np.float32)
    for at, successors in enumerate(rows.values()):
        for i, (token, logit) in enumerate(successors):
            ids[at, i], logits[at, i] = token, logit
    adjacency.replace(np.array(list(rows), np.int32), ids, logits)


def successors_of(adjacency, token):
    """Its successors and their shares, best first."""
    found, parents, confidence = adjacency.draft(token, 1, 64, 0.0, **GREEDY_LAW)
    assert set(parents) <= {-1}
    return dict(zip(found, confidence))


def shares(scores, greedy=True):
    weights = [math.exp(s - max(scores)) for s in scores]
    return [KEPT[greedy] * w / sum(weights) for w in weights]


token = st.integers(0, VOCAB - 1)
row = st.lists(
    st.tuples(token, st.floats(-5, 5, width=32)), max_size=WIDTH, unique_by=lambda r: r[0]
)
event = st.one_of(
    st.tuples(st.just("replace"), st.dictionaries(token, row, min_size=1, max_size=3)),
    st.tuples(st.just("follow"), st.lists(token, max_size=6)),
)


@given(st.lists(event, max_size=12))
def test_follows_a_plain_adjacency(events):
    adjacency, plain = Adjacency(VOCAB, WIDTH), {t: [] for t in range(VOCAB)}
    for kind, value in events:
        if kind == "replace":
            fill(adjacency, value)
            plain |= value
            continue
        adjacency.follow(value)
        for first, then in zip(value, value[1:]):
            best = plain[first][0][1] if plain[first] else 0.0
            others = [r for r in plain[first] if r[0] != then]
            plain[first] = [(then, best), *others][:WIDTH]
    for t, expected in plain.items():
        want = dict(zip([i for i, _ in expected], shares([x for _, x in expected] or [0.0])))
        got = successors_of(adjacency, t)
        assert got.keys() == want.keys()
        assert all(math.isclose(got[i], want[i], rel_tol=1e-5) for i in want)


def every_path(rows, law, root, depth, reach=1.0, level=0):
    """(reach, path) of every node down to a depth."""
    if depth == level or root not in rows:
        return []
    ids, logits = zip(*rows[root])
    scores = list(logits)
    if law["temperature"]:
        noise = gumbel_noise(law["seed"], law["position"] + level, ids)
        scores = [(x / law["temperature"] + g) / TAU for x, g in zip(logits, noise)]
    found = []
    for i, share in zip(ids, shares(scores, not law["temperature"])):
        found.append((reach * share, (i,)))
        below = every_path(rows, law, i, depth, reach * share, level + 1)
        found += [(r, (i, *path)) for r, path in below]
    return found


@pytest.mark.parametrize("temperature", (0.0, 0.7, 1.0))
@pytest.mark.parametrize("nodes", (1, 5, 30))
def test_the_tree_is_the_likeliest_of_all(temperature, nodes):
    rng = np.random.default_rng(7)
    rows = {
        t: [(int(i), float(np.float32(rng.normal()))) for i in rng.permutation(VOCAB)[:WIDTH]]
        for t in range(VOCAB)
    }
    adjacency = Adjacency(VOCAB, WIDTH)
    fill(adjacency, rows)
    law = {"temperature": temperature, "seed": 9, "position": 40}
    ids, parents, confidence = adjacency.draft(3, 3, nodes, 0.01, **law)
    paths, reaches = [], []
    for i, parent, c in zip(ids, parents, confidence):
        assert parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), i))
        reaches.append(c * (reaches[parent] if parent >= 0 else 1.0))
    expected = sorted(every_path(rows, law, 3, 3), reverse=True)
    expected = [(r, p) for r, p in expected if r >= 0.01][:nodes]
    assert paths == [p for _, p in expected]
    np.testing.assert_allclose(reaches, [r for r, _ in expected], rtol=1e-5)


def test_uncoupled_drafts_do_not_see_the_targets_noise():
    adjacency = Adjacency(VOCAB, WIDTH)
    fill(adjacency, {3: [(1, 0.5), (2, -1.0), (4, 0.0)]})
    drafts = [adjacency.draft(3, 1, 3, 0.0, 0.7, seed, 40, coupled=False) for seed in range(9)]
    assert all(d == drafts[0] for d in drafts)
    assert drafts[0][0] == [1, 4, 2]
    weights = np.exp(np.array([0.5, 0.0, -1.0]) / 0.7)
    np.testing.assert_allclose(drafts[0][2], KEPT[False] * weights / weights.sum(), rtol=1e-5)
    assert len({tuple(adjacency.draft(3, 1, 3, 0.0, 0.7, seed, 40)[0]) for seed in range(9)}) > 1


def test_noise_is_that_of_the_ops():
    vocab = 600
    for seed, position in ((0, 0), (2**64 - 1, 77), (123456789, 2**31 - 1)):
        signed = seed - 2**64 if seed >= 2**63 else seed
        ids, scores = rank(torch.zeros(1, vocab), vocab, 1.0, signed, position)
        noise = np.array(gumbel_noise(seed, position, ids[0].tolist()), np.float32)
        assert noise.tobytes() == scores[0].numpy().tobytes()


def test_rows_that_are_no_numbers_teach_nothing():
    adjacency = Adjacency(VOCAB, WIDTH)
    fill(adjacency, {1: [(2, math.nan), (3, 1.0), (4, math.inf)]})
    assert successors_of(adjacency, 1).keys() == {3}


@pytest.mark.parametrize("bad", (-1, VOCAB))
def test_tokens_past_the_vocabulary(bad):
    adjacency = Adjacency(VOCAB, WIDTH)
    with pytest.raises(IndexError, match="vocabulary"):
        adjacency.follow([1, bad])
    with pytest.raises(IndexError, match="vocabulary"):
        adjacency.draft(bad, 2, 4, 0.0, **GREEDY_LAW)
    with pytest.raises(ValueError, match="shape"):
        adjacency.replace(
            np.array([1], np.int32), np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)
        )


PARAMS = {
    "greedy": SamplingParams(max_tokens=60, ignore_eos=True, **GREEDY),
    "sampled": SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=5),
}
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], list(range(1, 30))]


def recycling_engine(order=1):
    model = ToyModel(ToyConfig(), order=order)
    config = SpeculativeConfig("recycle", 4, max_tree_nodes=32, policy="fixed")
    proposer = RecycleProposer(config, Target(model, None, None))
    return make_engine(proposer, model)


@pytest.mark.parametrize("law", PARAMS)
@pytest.mark.parametrize("order", (0, 1))
def test_same_bytes_on_and_off(law, order):
    plain = make_engine(None, ToyModel(ToyConfig(), order=order))
    expected = tokens(run(plain, PROMPTS, PARAMS[law]))
    assert tokens(run(recycling_engine(order), PROMPTS, PARAMS[law])) == expected


def warm_acceptance():
    """Accepted a verify step in the second half, over a target that only sees its last token."""
    engine = recycling_engine()
    run(engine, PROMPTS, PARAMS["sampled"])
    before = engine.metrics.stats
    later = [[7, t] for t in range(1, 9)]
    run(engine, later, SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=8))
    stats = engine.metrics.stats - before
    return stats.num_accepted_tokens / stats.num_drafts


def test_candidates_are_ranked_with_the_positions_noise(monkeypatch):
    coupled = warm_acceptance()
    draft = Adjacency.draft

    class Uncoupled(Adjacency):
        def draft(self, *args):
            return draft(self, *args[:4], args[4], args[5] ^ 1, args[6])

    monkeypatch.setattr(recycle, "Adjacency", Uncoupled)
    assert coupled > 1.3 * warm_acceptance()


def test_a_first_order_target_is_learnt_by_heart():
    engine = recycling_engine()
    prompts = [[3], [1], [4]]  # no pairs of their own
    run(engine, prompts, PARAMS["greedy"])
    before = engine.metrics.stats
    run(engine, prompts, PARAMS["greedy"])
    assert (engine.metrics.stats - before).acceptance_per_pos[0] == 1.0


def test_reset_forgets():
    engine = recycling_engine()
    run(engine, PROMPTS, PARAMS["greedy"])
    engine.proposer.reset()
    assert engine.proposer._adjacency.draft(3, 4, 8, 0.0, **GREEDY_LAW) == ([], [], [])
    assert engine.proposer.needs.top_k == NUM_SUCCESSORS
    assert tokens(run(engine, PROMPTS, PARAMS["greedy"])) == [
        [target_stream_of_order_one(p)] for p in PROMPTS
    ]


def target_stream_of_order_one(prompt):
    plain = make_engine(None, ToyModel(ToyConfig(), order=1))
    return tokens(run(plain, [prompt], PARAMS["greedy"]))[0][0]


@pytest.mark.parametrize("path", ([0], [1, 2]), ids=("first", "last"))
def test_of_one_tokens_rows_the_committed_one_stays(path):
    """Token 7 is drafted twice, by the nodes 0 and 2: once on the accepted path."""
    config = SpeculativeConfig("recycle", 4, policy="fixed")
    proposer = RecycleProposer(config, Target(ToyModel(), None, None))
    proposal = Proposal.trees([DraftTree([7, 8, 7], [-1, -1, 1], [1.0] * 3)])
    likeliest = torch.tensor([[10], [11], [12], [13]], dtype=torch.int32)
    forward = SimpleNamespace(
        top=SimpleNamespace(token_ids=likeliest, logits=torch.zeros(4, 1)),
        row_base=torch.tensor([0]),
        row_seq=np.zeros(4, np.int64),
        decided_positions=torch.tensor([2, 3, 3, 4]),
    )
    result = SimpleNamespace(
        path=torch.tensor([[*path, -1, -1][:3]]), num_accepted=torch.tensor([len(path)])
    )
    batch = SimpleNamespace(seqs=[SimpleNamespace(token_ids=[5, 3])])
    proposer.observe(batch, proposal, forward, result)
    assert list(successors_of(proposer._adjacency, 7)) == [11 + path[-1]]
    assert list(successors_of(proposer._adjacency, 3)) == [10]


def test_a_prompt_enters_once():
    """What the target said since counts more than the prompt's own pairs."""
    config = SpeculativeConfig("recycle", num_speculative_tokens=1)
    proposer = RecycleProposer(config, Target(ToyModel(), None, None))
    params = SamplingParams(temperature=0.0)
    seq = SimpleNamespace(seq_id=0, token_ids=[5, 6, 5], num_prompt_tokens=3, params=params, seed=0)
    batch = SimpleNamespace(seqs=[seq], draft_limits=np.array([[1, 1]], np.int32))
    assert proposer.propose(batch).tokens.tolist() == [[6]]
    fill(proposer._adjacency, {5: [(8, 1.0)]})
    assert proposer.propose(batch).tokens.tolist() == [[8]]


def test_every_row_teaches_its_own_token_and_padding_none():
    """Trees of 1, 3 and no nodes side by side, and a prompt that is not at its end."""
    config = SpeculativeConfig("recycle", num_speculative_tokens=4)
    proposer = RecycleProposer(config, Target(ToyModel(), None, None))
    trees = [([7], [-1]), ([8, 9, 10], [-1, 0, -1]), ([], []), ([], [])]
    proposal = Proposal.trees([DraftTree(t, p, [1.0] * len(t)) for t, p in trees])
    texts, base = [[1, 2], [3, 4, 5], [6] * 5, [11, 12]], [0, 2, -1, 6]
    fed = [2, 7, 5, 8, 9, 10, 12]  # each row's token: a last one or a draft
    rows = len(fed)
    forward = SimpleNamespace(
        top=SimpleNamespace(
            token_ids=20 + torch.arange(rows, dtype=torch.int32)[:, None],
            logits=torch.zeros(rows, 1),
        ),
        row_base=torch.tensor(base),
        row_seq=np.array([0, 0, 1, 1, 1, 1, 3]),
        decided_positions=torch.tensor([2, 3, 3, 4, 5, 4, 2]),
    )
    result = SimpleNamespace(
        path=torch.tensor([[0, -1, -1], [2, -1, -1], [-1] * 3, [-1] * 3]),
        num_accepted=torch.tensor([1, 1, 0, 0]),
    )
    batch = SimpleNamespace(seqs=[SimpleNamespace(token_ids=t) for t in texts])
    proposer.observe(batch, proposal, forward, result)
    known = {t: list(successors_of(proposer._adjacency, t)) for t in range(40)}
    assert {t: s for t, s in known.items() if s} == {t: [20 + i] for i, t in enumerate(fed)}
