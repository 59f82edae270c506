"""Hybrid drafting: who is asked, what is grafted, and that nothing of it shows in the output."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from specfast.proposers import hybrid
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.draft_tree import DraftTree, expected, graft, likeliest_leaf, num_foretold
from specfast.proposers.hybrid import HybridProposer
from specfast.proposers.target import Target
from specfast.proposers.track_record import FRUITLESS, MAX_REST, CostClock, Promises, Watchdog
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_engine import GREEDY, SAMPLED, make_engine, run, target_stream, tokens
from tests.unit.toy_model import ToyConfig, ToyModel

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 9, 2], list(range(1, 30))]
LAWS = {"greedy": GREEDY, "sampled": SAMPLED}


def make_hybrid(order=1, nodes=32, drafter=None) -> HybridProposer:
    config = SpeculativeConfig("hybrid", 4, max_tree_nodes=nodes, policy="fixed")
    proposer = HybridProposer(config, Target(ToyModel(ToyConfig(), order=order), None, None))
    if drafter:
        proposer._drafter = drafter
    return proposer


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("order", (0, 1))
def test_same_bytes_on_and_off(law, order):
    params = SamplingParams(max_tokens=50, ignore_eos=True, **LAWS[law])
    model = ToyModel(ToyConfig(), order=order)
    expected_tokens = tokens(run(make_engine(None, model), PROMPTS, params))
    engine = make_engine(make_hybrid(order), model)
    assert tokens(run(engine, PROMPTS, params)) == expected_tokens
    assert engine.metrics.stats.num_draft_tokens


def tree(*nodes):
    """(token, parent, confidence) each."""
    return DraftTree(*map(list, zip(*nodes))) if nodes else DraftTree()


FORK = tree((5, -1, 0.5), (6, -1, 0.4), (7, 0, 0.5), (8, 1, 0.9), (9, 3, 0.9))


def test_expected_and_likeliest_leaf():
    assert expected(FORK) == pytest.approx(0.5 + 0.4 + 0.25 + 0.36 + 0.324)
    leaf, path, reach = likeliest_leaf(FORK)
    assert (leaf, path) == (4, [6, 8, 9]) and reach == pytest.approx(0.324)


@pytest.mark.parametrize(
    ("said", "count"), [([6, 8, 9, 1], 3), ([5, 8], 1), ([1], 0), ([], 0), ([5, 7], 2)]
)
def test_num_foretold(said, count):
    assert num_foretold(FORK, said) == count


def test_a_graft_adds_only_what_is_new_and_stays_within_the_nodes():
    own = tree((5, -1, 0.9), (6, 0, 0.8))
    graft(own, FORK, -1, 64)
    assert list(zip(own.tokens, own.parents)) == [(5, -1), (6, 0), (6, -1), (7, 0), (8, 2), (9, 4)]
    small = tree((5, -1, 0.9), (6, 0, 0.8))
    graft(small, FORK, -1, 3)
    assert list(zip(small.tokens, small.parents)) == [(5, -1), (6, 0), (6, -1)]
    behind = tree((5, -1, 0.9))
    graft(behind, tree((1, -1, 0.5), (2, 0, 0.5)), 0, 64)
    assert list(zip(behind.tokens, behind.parents)) == [(5, -1), (1, 0), (2, 1)]


@st.composite
def grown(draw, depth, nodes):
    """A tree within these limits, as a source may draft it: siblings are distinct."""
    found, depths, taken = DraftTree(), [], set()
    for _ in range(draw(st.integers(0, nodes))):
        parents = [-1, *(i for i, d in enumerate(depths) if d + 1 < depth)]
        parent = draw(st.sampled_from([parents[-1], *parents]))
        token = draw(st.integers(1, 4))
        if (parent, token) not in taken:
            taken.add((parent, token))
            found.add(token, parent, draw(st.sampled_from([0.3, 0.8, 1.0])))
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return found


def paths(found):
    """Every node, as the tokens on the way to it."""
    seen = []
    for token, parent in zip(found.tokens, found.parents):
        seen.append((*(seen[parent] if parent >= 0 else ()), token))
    return seen


@given(st.data(), st.integers(1, 5), st.integers(0, 8))
def test_what_is_grafted_stays_within_depth_and_nodes(data, depth, more):
    nodes = depth + more
    own, found = (data.draw(grown(depth, nodes)) for _ in range(2))
    proposer, asked = make_hybrid(), []

    def continuation(seq, depth, nodes, behind):
        asked.append((behind, data.draw(grown(depth, nodes))))
        return asked[0][1]

    proposer._retrieval = SimpleNamespace(continuation=continuation)
    tree = proposer._grafted(None, own, found, depth, nodes)
    Proposal.trees([tree]).check(np.array([[depth, nodes]]), 40, num_sources=2)
    assert len(set(paths(tree))) == len(tree), "siblings are distinct"
    assert paths(tree)[: len(own)] == paths(own)
    known = {*paths(own), *paths(found)}
    for behind, tail in asked:
        assert tuple(behind) in paths(own)
        known |= {(*behind, *path) for path in paths(tail)}
    assert set(paths(tree)) <= known


def test_watchdog_rests_longer_each_time_and_wakes_for_good():
    dog = Watchdog()
    rests = []
    for _ in range(FRUITLESS + 7):
        steps = 0
        while not dog.is_awake():
            steps += 1
        rests.append(steps)
        dog.saw(0)
    assert rests == [0] * FRUITLESS + [1, 2, 4, 8, 16, 32, MAX_REST][:7]
    while not dog.is_awake():
        pass
    dog.saw(2)
    assert dog.is_awake()


def test_promises_follow_what_is_kept():
    promises = Promises()
    for _ in range(300):
        promises.add(2.0, 0.5)
    assert promises.kept_share == pytest.approx(0.25, rel=0.01)


def test_promises_outlast_any_number_of_empty_ones():
    promises = Promises()
    for _ in range(50_000):
        promises.add(0.0, 0.0)
    assert promises.kept_share == pytest.approx(1.0)


def test_the_clock_finds_what_drafting_costs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = CostClock(prior=0.3)
    for drafting in (0.1, 0.1, 0.0) * 100:
        if drafting:
            with clock.drafting():
                now[0] += drafting
        clock.proposed()
        now[0] += 0.4
        clock.observed()
    assert clock.draft_cost == pytest.approx(0.25, rel=0.01), "steps without drafting say nothing"
    with clock.drafting():  # a prompt is fed
        now[0] += 1000
    clock.proposed()
    now[0] += 0.4
    clock.observed()
    assert clock.draft_cost < 0.3


class Knowing:
    """A drafter that knows the stream, counts its calls, and seems to take `seconds`."""

    def __init__(self, streams, length=2, wrong=False):
        self.needs, self.streams = Needs(), streams
        self.length, self.wrong, self.asked = length, wrong, []

    def propose(self, batch):
        chains = []
        for seq, limit in zip(batch.seqs, batch.draft_limits[:, 0].tolist()):
            stream = self.streams[tuple(seq.token_ids[: seq.num_prompt_tokens])]
            n = len(seq.token_ids)
            ahead = stream[n : n + min(limit, self.length)]
            chains.append([(t + 1) % 40 for t in ahead] if self.wrong else ahead)
            self.asked.append(limit > 0)
        return Proposal.chains(chains, [[0.9] * len(c) for c in chains])

    def observe(self, *_):
        pass

    def release(self, seq):
        pass

    def reset(self):
        pass


PARAMS = SamplingParams(max_tokens=40, ignore_eos=True, **GREEDY)


def drafted_engine(cost=0.0, prompt=(3, 1, 4, 1, 5), monkeypatch=None, **kwargs):
    streams = {tuple(prompt): target_stream(list(prompt), PARAMS, 40)}
    drafter = Knowing(streams, **kwargs)
    if monkeypatch:
        monkeypatch.setattr(CostClock, "draft_cost", property(lambda self: cost))
    proposer = make_hybrid(order=0, drafter=drafter)
    return make_engine(proposer), drafter, list(prompt)


def test_the_drafter_fills_where_retrieval_has_nothing(monkeypatch):
    engine, drafter, prompt = drafted_engine(monkeypatch=monkeypatch)
    run(engine, [prompt], PARAMS)
    assert all(drafter.asked) and engine.metrics.stats.acceptance_length > 2.5


def test_a_drafter_that_costs_too_much_is_not_asked(monkeypatch):
    engine, drafter, prompt = drafted_engine(cost=50.0, monkeypatch=monkeypatch)
    run(engine, [prompt], PARAMS)
    found = [t for t in drafter.asked if t]
    assert not found, "where retrieval has nothing, plain decoding is what it competes with"


def test_the_watchdog_rests_a_drafter_that_brings_nothing(monkeypatch):
    engine, drafter, prompt = drafted_engine(monkeypatch=monkeypatch, wrong=True)
    outputs = run(engine, [prompt], PARAMS)
    assert outputs[0].outputs[0].token_ids == target_stream(prompt, PARAMS, 40)[len(prompt) :]
    assert FRUITLESS <= len(drafter.asked) < 20


def test_a_drafter_that_is_not_asked_is_not_judged():
    proposer, seq = make_hybrid(drafter=Knowing({})), SimpleNamespace(seq_id=0)
    result = SimpleNamespace(decided=lambda row, proposal: [(6, True), (8, True)])
    for _ in range(30):
        assert proposer._asks_drafter(seq, DraftTree())
        proposer._asked[0] = FORK, DraftTree()  # retrieval was sure enough
        proposer.observe(SimpleNamespace(seqs=[seq]), None, None, result)


def test_retrieval_goes_on_behind_the_drafter(monkeypatch):
    """The drafter says one token; behind it only the prompt knows what follows."""
    stream = target_stream([3, 1, 4, 1, 5], PARAMS, 12)
    prompt = [*stream[6:12], 39, *stream[:5]]
    proposer = make_hybrid(order=0, drafter=Knowing({tuple(prompt): [*prompt, *stream[6:12]]}, 1))
    monkeypatch.setattr(hybrid, "MIN_SURVIVAL", 0.01)
    engine = make_engine(proposer)
    seen = []
    propose = proposer.propose
    monkeypatch.setattr(proposer, "propose", lambda b: seen.append(propose(b)) or seen[-1])
    run(engine, [prompt], SamplingParams(max_tokens=6, ignore_eos=True, **GREEDY))
    first = seen[0].tokens[0].tolist()
    assert first[:3] == stream[6:9], "one token of the drafter's, the rest retrieved"
    assert seen[0].sources[0, :3].tolist() == [0, 1, 1]
    assert engine.proposer.source_names == ("recycle", "suffix")


def test_confident_retrieval_spares_the_drafter(monkeypatch):
    monkeypatch.setattr(CostClock, "draft_cost", property(lambda self: 0.5))
    prompt = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    drafter = Knowing({tuple(prompt): prompt * 2})
    proposer = make_hybrid(order=0, drafter=drafter)
    engine = make_engine(proposer)
    run(engine, [prompt], SamplingParams(max_tokens=2, ignore_eos=True, **GREEDY))
    assert not any(drafter.asked)


def test_limits_hold(monkeypatch):
    engine, _, prompt = drafted_engine(monkeypatch=monkeypatch)
    proposer = engine.proposer
    limits = []
    propose = proposer.propose

    def checked(batch):
        proposal = propose(batch)
        proposal.check(batch.draft_limits, 40, num_sources=2)
        limits.append(int(np.max(batch.draft_limits)))
        return proposal

    monkeypatch.setattr(proposer, "propose", checked)
    run(engine, [prompt], PARAMS)
    assert limits


def test_every_node_says_who_drafted_it():
    """The drafter's own, what retrieval adds behind and beside, and retrieval alone."""
    tree = DraftTree([5, 6], [-1, 0], [0.5, 0.5], [0, 0])
    graft(tree, DraftTree([5, 7, 8], [-1, 0, -1], [0.1] * 3), -1, 9, source=1)
    assert (tree.tokens, tree.sources) == ([5, 6, 7, 8], [0, 0, 1, 1])
    first, second = Proposal.trees([tree, DraftTree()]), Proposal.chains([[3]])
    joined = Proposal.joined([first, second])
    assert joined.sources.tolist() == [[0, 0, 1, 1], [0] * 4, [0] * 4]
    assert joined.only(np.array([2, 0])).sources.tolist() == [[0] * 4, [0, 0, 1, 1]]
    keep = np.array([[True, False, True, False], [False] * 4])
    assert first.kept(keep).sources.tolist() == [[0, 1], [0, 0]]
    limits = np.full((2, 2), 9, np.int32)
    first.check(limits, 50, num_sources=2)
    with pytest.raises(ValueError, match="sources must lie in"):
        first.check(limits, 50)
    with pytest.raises(ValueError, match="sources must be contiguous"):
        replace(first, sources=first.sources.long()).check(limits, 50, num_sources=2)
    assert second.sources is None
