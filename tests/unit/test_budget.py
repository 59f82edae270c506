"""The budget: what it keeps is the best of all prefix-closed choices, and what it learns is so."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specfast import budget as budget_module
from specfast._host import Calibration
from specfast.budget import Budget
from specfast.control.cost_model import CostModel
from specfast.control.cost_profile import CostProfile
from specfast.control.node_choice import NodeChoice
from specfast.proposers.base import Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch
from specfast.speculative_config import SpeculativeConfig
from tests.unit.survival import outcomes, survival
from tests.unit.test_engine import GREEDY, SAMPLED, make_engine, run, target_stream, tokens
from tests.unit.toy_proposers import TreeProposer


def test_drafts_that_never_pay_are_probed_cheaply_and_come_back():
    budget = Budget(SpeculativeConfig("ngram", 8, policy="auto"))
    budget.cost = KnownCost(1.0, 0.1)
    proposal = Proposal.chains([[1, 2]])

    def num_verified(num_right):
        budget.plan([])
        chosen = budget.select(batch_of(1), proposal)
        path = torch.arange(chosen.tokens.shape[1], dtype=torch.int32)[None]
        count = torch.tensor([min(num_right, chosen.num_nodes)], dtype=torch.int32)
        budget.observe(batch_of(1), chosen, SimpleNamespace(path=path, num_accepted=count))
        return chosen.num_nodes

    drought = [num_verified(0) for _ in range(3000)]
    assert 0 < np.mean(drought[-1000:]) < 0.3
    assert [num_verified(2) for _ in range(200)][-100:] == [2] * 100


@pytest.mark.parametrize(
    "asked, left, limits",
    [(None, 99, (8, 32)), (2, 99, (2, 8)), (1, 99, (1, 4)), (0, 99, (0, 0)), (None, 4, (3, 12)),
     (2, 2, (1, 4)), (None, 1, (0, 0))],
)  # fmt: skip
def test_a_request_that_goes_less_deep_gets_less_nodes(asked, left, limits):
    budget = Budget(SpeculativeConfig("suffix", 8, max_tree_nodes=32))
    own = None if asked is None else {"num_speculative_tokens": asked}
    params = SamplingParams(speculative=own)
    seq = SimpleNamespace(seq_id=0, params=params, num_remaining_tokens=left)
    assert budget.plan([seq]).tolist() == [list(limits)]


@st.composite
def trees(draw, max_nodes=5):
    tree = DraftTree()
    for node in range(draw(st.integers(0, max_nodes))):
        tree.add(node, draw(st.integers(-1, node - 1)), draw(st.floats(0.0, 1.0)))
    return tree


def closed_choices(tree):
    """Every set of nodes that holds the parent of each."""
    for bits in product((False, True), repeat=len(tree)):
        if all(not b or p < 0 or bits[p] for b, p in zip(bits, tree.parents)):
            yield bits


def timed_steps(budget, num_steps, tokens=1):
    """Runs steps of one sequence that never drafts; -> how many taught what steps cost."""
    seen = []
    budget.cost.observe = lambda load, seconds: seen.append(load)
    seqs = (SimpleNamespace(seq_id=0, token_ids=[0] * 400),)
    starts, counts = np.array([400 - tokens], np.int32), np.array([tokens], np.int32)
    nothing = SimpleNamespace(num_accepted=torch.zeros(1, dtype=torch.int32))
    for _ in range(num_steps):
        batch = Batch(seqs, starts, counts, np.zeros((1, 2), np.int32))
        budget.observe(batch, Proposal.empty(1), nothing)
    return len(seen)


def test_a_prompts_rows_do_not_teach_what_drafts_cost():
    """They are many, and have no logits but one: nine drafts were thought to take half of it."""
    spec = SpeculativeConfig("ngram", 8, policy="auto")
    assert timed_steps(Budget(spec), 20, tokens=300) == 0
    assert timed_steps(Budget(spec), 20) == 20


def test_times_are_looked_at_now_and_then_once_much_was_seen():
    budget = Budget(SpeculativeConfig("ngram", 8, policy="auto"))
    num_steps = budget_module.ALL_TIMED + 10 * budget_module.TIMED_EVERY
    assert timed_steps(budget, num_steps) == pytest.approx(budget_module.ALL_TIMED + 10, abs=1)


class KnownCost(CostModel):
    """Steps that take fixed + row * rows, whatever is observed."""

    def __init__(self, fixed, row):
        super().__init__(CostProfile((1, 2), (fixed + row, fixed + 2 * row)))

    def observe(self, load, seconds):
        """Knows better."""


def batch_of(size):
    seqs = tuple(SimpleNamespace(seq_id=i, token_ids=[0] * 9) for i in range(size))
    starts, one = np.full(size, 8, np.int32), np.ones(size, np.int32)
    return Batch(seqs, starts, one, np.full((size, 2), 8, np.int32))


@given(st.lists(trees(), min_size=1, max_size=2), st.sampled_from([(1.0, 0.02), (1.0, 0.4)]))
def test_the_choice_is_the_best_of_all(drafts, cost):
    fixed, row = cost
    budget = Budget(SpeculativeConfig("ngram", 8, policy="auto"))
    budget.cost = KnownCost(fixed, row)
    proposal = Proposal.trees(drafts)
    budget.plan([])
    chosen = budget.select(batch_of(len(drafts)), proposal)
    chosen.check(np.full((len(drafts), 2), 8, np.int32), 40)

    def rate(reaches):
        return (len(drafts) + sum(reaches)) / (fixed + row * (len(drafts) + len(reaches)))

    def kept(tree, bits):
        reach = []
        for p, c in zip(tree.parents, tree.confidence):
            reach.append(c * (reach[p] if p >= 0 else 1.0))
        return [r for r, b in zip(reach, bits) if b]

    best = max(
        rate([r for tree, bits in zip(drafts, choice) for r in kept(tree, bits)])
        for choice in product(*(list(closed_choices(t)) for t in drafts))
    )
    reach = survival(chosen, chosen.confidence.numpy().astype(float))
    assert rate(reach[reach >= 0].tolist()) == pytest.approx(best, rel=1e-5)


def test_drafts_that_were_drawn_are_all_kept():
    """Which of them pays depends on what was drawn: dropping those that don't would bias."""
    budget = Budget(SpeculativeConfig("ngram", 8, policy="auto", verification="rejection"))
    budget.cost = KnownCost(0.0, 1.0)
    guessed = Proposal.chains([[1, 2, 3]], [[0.01] * 3])
    budget.plan([])
    assert budget.select(batch_of(1), guessed).num_nodes == 0
    row = torch.zeros(1, 3, dtype=torch.int32)
    drawn = replace(guessed, draft_laws=torch.zeros(1, 5), law_row=row)
    assert budget.select(batch_of(1), drawn) is drawn


@given(st.lists(trees(9), min_size=1, max_size=3), st.randoms())
def test_kept_trees_keep_their_paths(drafts, random):
    choices = [random.choice(list(closed_choices(t))) for t in drafts]
    proposal = Proposal.trees(drafts)
    keep = np.zeros(proposal.tokens.shape, bool)
    for row, bits in enumerate(choices):
        keep[row, : len(bits)] = bits
    for tree, bits, kept in zip(drafts, choices, proposal.kept(keep).to_trees()):
        assert paths(kept) == [p for p, b in zip(paths(tree), bits) if b]


def paths(tree):
    found = []
    for token, parent in zip(tree.tokens, tree.parents):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_outcomes_are_of_nodes_whose_parents_were_accepted():
    tree = DraftTree([1, 2, 3, 4], [-1, -1, 1, 0], [0.5] * 4)
    proposal = Proposal.trees([tree, DraftTree([1], [-1], [0.5])])
    result = SimpleNamespace(
        path=torch.tensor([[1, -1, -1, -1], [-1] * 4], dtype=torch.int32),
        num_accepted=torch.tensor([1, 0], dtype=torch.int32),
    )
    is_tested, is_accepted = outcomes(proposal, result)
    assert is_tested.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert is_accepted.tolist() == [[False, True, False, False], [False] * 4]


PROMPTS = [[3, 1, 4], [5, 6, 7, 8, 9, 3]]


@pytest.mark.parametrize("row_cost", (0.0, 0.2, 5.0))
@pytest.mark.parametrize("law", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_trimming_changes_no_byte(law, row_cost, monkeypatch):
    params = SamplingParams(max_tokens=30, ignore_eos=True, **law)
    streams = {tuple(p): target_stream(p, params, 30) for p in PROMPTS}
    monkeypatch.setattr(budget_module, "CostModel", lambda: KnownCost(1.0, row_cost))
    engine = make_engine(TreeProposer(streams, wrong=2, miss=0.2), k=4, policy="auto")
    outputs = run(engine, PROMPTS, params)
    assert tokens(outputs) == [[streams[tuple(p)][len(p) :]] for p in PROMPTS]


def test_dear_rows_draft_less(monkeypatch):
    params = SamplingParams(max_tokens=60, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 60) for p in PROMPTS}
    drafted = []
    for row_cost in (0.0, 0.6):
        monkeypatch.setattr(budget_module, "CostModel", lambda c=row_cost: KnownCost(1.0, c))
        engine = make_engine(TreeProposer(streams, wrong=2, miss=0.6), k=4, policy="auto")
        run(engine, PROMPTS, params)
        drafted.append(engine.metrics.stats.num_draft_tokens)
    assert drafted[1] < 0.7 * drafted[0]


def test_steps_of_nobody_are_survived():
    params = SamplingParams(max_tokens=12, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 12) for p in PROMPTS}
    engine = make_engine(TreeProposer(streams), k=4, policy="auto")
    engine.step()
    engine.cancel(engine.add_request(PROMPTS[0], params).request_id)
    engine.step()
    outputs = run(engine, PROMPTS, params)
    assert tokens(outputs) == [[streams[tuple(p)][len(p) :]] for p in PROMPTS]
    assert engine.metrics.stats.num_accepted_tokens


def test_fixed_keeps_everything():
    budget = Budget(SpeculativeConfig("ngram", 8, policy="fixed"))
    proposal = Proposal.trees([DraftTree([1, 2], [-1, 0], [0.0, 0.0])])
    assert budget.select(batch_of(1), proposal) is proposal


@given(st.lists(trees(8), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_each_source_learns_from_its_own_nodes_that_were_tested(drafts, seed):
    """Against numpy: the error of what was foretold tells who learnt from what."""
    rng, choice, alone = np.random.default_rng(seed), NodeChoice(2), [Calibration(), Calibration()]
    for _ in range(3):
        proposal = Proposal.trees(
            [replace(d, sources=rng.integers(0, 2, len(d)).tolist()) for d in drafts]
        )
        path, count = random_paths(rng, drafts, proposal.tokens.shape)
        result = SimpleNamespace(path=torch.from_numpy(path), num_accepted=torch.from_numpy(count))
        choice.observe(batch_of(len(drafts)), proposal, result)
        if not proposal.num_nodes:
            continue
        is_tested, is_accepted = outcomes(proposal, result)
        confidence = proposal.confidence.numpy().astype(float)
        for number, calibration in enumerate(alone):
            own = is_tested & (proposal.sources.numpy() == number)
            calibration.observe(confidence[own], proposal.node_depths[own], is_accepted[own])
    errors = [c.error for c in alone if c.error is not None]
    assert choice.calibration_error == pytest.approx(max(errors, default=None))


def random_paths(rng, drafts, shape):
    """-> path [B, N], num_accepted [B]: down each tree, as far as it goes or less."""
    path, count = np.full(shape, -1, np.int32), np.zeros(len(drafts), np.int32)
    for row, tree in enumerate(drafts):
        node = -1
        while children := [n for n, parent in enumerate(tree.parents) if parent == node]:
            if rng.random() < 0.3:
                break
            node = path[row, count[row]] = rng.choice(children)
            count[row] += 1
    return path, count
