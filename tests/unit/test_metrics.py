"""Counters and what is derived from them, against steps counted by hand and by definition."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specfast.intervals import Interval
from specfast.metrics import MAX_LABELS, SpecMetrics
from specfast.outputs import StepOutput
from specfast.proposers.base import Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.request_metrics import RequestMetrics
from specfast.sampling_params import SamplingParams
from specfast.sequence import Finish
from specfast.spec_stats import SourceStats, SpecStats
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer


class FakeSequence:
    def __init__(self, label=None, remaining=10, **params):
        self.params = SamplingParams(label=label, **params)
        self.num_remaining_tokens = remaining


def output(
    num_tokens, num_draft_tokens, num_accepted, depth=None, planned=4, finish=None, seq=None
):
    depth = num_draft_tokens if depth is None else depth
    tokens = tuple(range(num_tokens))
    seq = seq or FakeSequence()
    return StepOutput(seq, tokens, num_draft_tokens, depth, num_accepted, finish, planned)


def observe(metrics, outputs, proposal=None, path=()):
    batch = SimpleNamespace(seqs=tuple(o.seq for o in outputs))
    if proposal is None:
        proposal = Proposal.chains([[1] * o.num_draft_tokens for o in outputs])
    result = SimpleNamespace(path=torch.tensor(path, dtype=torch.int32))
    metrics.observe(batch, proposal, result, outputs)


STOP = Finish("stop")
STEPS = [
    [output(1, 0, 0)],  # prefill; the proposer found nothing
    [output(3, 4, 2), output(1, 4, 0)],
    [output(5, 4, 4), output(2, 2, 2, finish=STOP)],  # the second is cut: no bonus token
    [output(1, 0, 0, planned=0)],
    [output(1, 3, 1, finish=STOP)],  # cut behind its first draft: nothing was refused
]


@pytest.fixture
def metrics():
    m = SpecMetrics(["ngram"])
    for step in STEPS:
        observe(m, step)
    return m


def test_counts_and_derived_figures(metrics):
    s = metrics.stats
    assert (s.num_emitted_tokens, s.num_plain_steps, s.num_drafts) == (14, 2, 5)
    assert (s.num_draft_tokens, s.num_draft_positions, s.num_accepted_tokens) == (17, 17, 9)
    assert s.num_accepted_per_pos == (4, 3, 1, 1)
    assert s.num_drafts_per_depth == (0, 1, 1, 3)
    assert s.k_chosen == (2, 0, 1, 1, 3)
    assert (s.num_refusals, s.num_rollbacks, s.num_rolled_back_tokens) == (2, 3, 8)
    assert s.acceptance_rate == 9 / 17
    assert s.acceptance_length == 12 / 5
    assert s.acceptance_per_pos == (0.8, 0.6, 0.2, 0.2)
    assert s.conditional_acceptance_per_pos == (4 / 5, 3 / 4, 1 / 3, 1)
    assert s.tokens_per_iteration == 14 / 7
    assert (s.num_gated_steps, s.gated_share) == (1, 1 / 7)


def test_a_trees_rate_is_by_its_depth(metrics):
    observe(metrics, [output(4, 20, 3, depth=6)])
    assert metrics.stats.num_draft_tokens == 37
    assert metrics.stats.acceptance_rate == (9 + 3) / (17 + 6)
    assert metrics.stats.num_refusals == 3


def test_a_tree_accepted_to_its_end_drops_its_branches_but_refuses_nothing():
    metrics = SpecMetrics(["eagle"])
    observe(metrics, [output(4, 9, 3, depth=3)])
    s = metrics.stats
    assert (s.num_refusals, s.num_rollbacks, s.num_rolled_back_tokens) == (0, 1, 6)


def test_differences_and_sums(metrics):
    before = metrics.stats
    assert (before - before).acceptance_per_pos == (0.0,) * 4
    observe(metrics, [output(6, 5, 5)])
    new = metrics.stats - before
    assert (new.num_drafts, new.num_accepted_per_pos) == (1, (1, 1, 1, 1, 1))
    assert new.k_chosen == (0, 0, 0, 0, 0, 1)
    assert before + new == metrics.stats == new + before
    assert SpecStats() + new == new
    metrics.reset()
    assert metrics.stats == SpecStats() and metrics.by_source == {"ngram": SourceStats()}


def test_nothing_drafted_is_zero_not_an_error():
    s = SpecStats()
    assert s.acceptance_rate == s.acceptance_length == s.draft_time_fraction == 0.0
    assert s.tokens_per_iteration == s.gated_share == 0.0 and s.k_chosen == (0,)


@pytest.mark.parametrize(
    "step, is_gated",
    [
        (output(1, 0, 0, planned=0), True),
        (output(1, 0, 0, planned=1), False),  # planned, and nothing found
        (output(1, 0, 0, planned=0, seq=FakeSequence(remaining=0)), False),  # the last token
        (output(1, 0, 0, planned=0, seq=FakeSequence(remaining=1)), True),
        (output(1, 0, 0, planned=0, seq=FakeSequence(speculative=False)), False),
        (output(0, 0, 0, planned=0, finish=Finish("abort")), False),
    ],
    ids=["gated", "not found", "last token", "last but one", "switched off", "cancelled"],
)
def test_gated_is_who_might_have_drafted(step, is_gated):
    metrics, without = SpecMetrics(["ngram"]), SpecMetrics()
    for m in (metrics, without):
        observe(m, [step])
    assert metrics.stats.num_gated_steps == is_gated
    assert without.stats.num_gated_steps == 0


def test_a_cancelled_sequence_had_no_step(metrics):
    before = metrics.stats
    observe(metrics, [output(0, 0, 0, finish=Finish("abort"))])
    assert metrics.stats == before


def test_times_are_counted_for_steps_and_proposals():
    m = SpecMetrics()
    with m.timing_step(), m.timing_proposal():
        sum(range(1000))
    assert m.last_seconds == (m.stats.step_seconds, m.stats.propose_seconds)
    with m.timing_step():
        pass
    assert 0 < m.stats.propose_seconds < m.stats.step_seconds
    assert 0 < m.stats.draft_time_fraction < 1
    assert m.stats.num_steps == 2 and m.last_seconds[1] == 0


def test_labels_are_counted_apart_and_bounded():
    metrics = SpecMetrics(["ngram"])
    for number in range(MAX_LABELS + 3):
        observe(metrics, [output(2, 2, 1, seq=FakeSequence(f"label {number}"))])
    observe(metrics, [output(1, 0, 0)])
    observe(metrics, [output(3, 2, 2, seq=FakeSequence("label 0"))])
    labels = metrics.by_label
    assert len(labels) == MAX_LABELS + 2
    assert labels["label 0"].num_accepted_tokens == 3 and labels["label 0"].num_drafts == 2
    assert labels["other"].num_drafts == 3 and labels["none"].num_plain_steps == 1
    assert sum(labels.values(), SpecStats()) == metrics.stats


def test_a_hybrids_nodes_are_counted_by_who_drafted_them():
    trees = [
        #          0 - 1 - 2, and 3 beside 0 with 4 below it
        DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, -1, 3], [1.0] * 5, [0, 0, 1, 1, 1]),
        DraftTree([5], [-1], [1.0], [1]),
        DraftTree(),
    ]
    seqs = [FakeSequence() for _ in trees]
    outputs = [
        output(3, 5, 3, depth=3, seq=seqs[0], finish=STOP),
        output(1, 1, 0, seq=seqs[1]),
        output(1, 0, 0, seq=seqs[2]),
    ]
    metrics = SpecMetrics(["eagle", "suffix"])
    observe(metrics, outputs, Proposal.trees(trees), [[0, 1, 2, -1, -1], [-1] * 5, [-1] * 5])
    assert metrics.by_source == {
        "eagle": SourceStats(1, 2, 2, 2),
        "suffix": SourceStats(2, 4, 4, 1),  # at depths 1, 2 and 3, and 1
    }
    cut = [replace(outputs[0], token_ids=(0, 1), num_accepted=2), *outputs[1:]]
    metrics.reset()
    observe(metrics, cut, Proposal.trees(trees), [[0, 1, 2, -1, -1], [-1] * 5, [-1] * 5])
    assert metrics.by_source["suffix"] == SourceStats(2, 4, 4, 0)  # its node lay behind the stop


def test_a_cancelled_neighbour_shifts_no_row():
    tree = DraftTree([5, 6], [-1, 0], [1.0] * 2, [0, 1])
    gone, seq = FakeSequence(), FakeSequence()
    outputs = [
        output(0, 0, 0, finish=Finish("abort"), seq=gone),
        output(2, 2, 1, seq=seq),
    ]
    metrics = SpecMetrics(["eagle", "suffix"])
    batch, result = SimpleNamespace(seqs=(seq,)), SimpleNamespace(path=torch.tensor([[0, 1]]))
    metrics.observe(batch, Proposal.trees([tree]), result, outputs)
    assert [s.num_accepted_tokens for s in metrics.by_source.values()] == [1, 0]


@pytest.mark.parametrize(
    "sizes, median", [([], 0), ([1], 1), ([1, 1, 4], 1), ([1, 4, 4], 4), ([2, 8], 2)]
)
def test_the_usual_batch_size_is_the_median(sizes, median):
    metrics = SpecMetrics()
    for size in sizes:
        observe(metrics, [output(1, 0, 0)] * size)
    assert metrics.p50_batch_size == median


def test_the_speedup_is_unknown_until_it_is_measured():
    metrics = SpecMetrics(["ngram"])
    assert metrics.effective_speedup is None
    measured = Interval(1.5, 1.4, 1.6)
    metrics.speedups = SimpleNamespace(effective_speedup=measured)
    assert metrics.effective_speedup is measured


def test_a_request_is_timed_by_its_tokens():
    record = RequestMetrics(num_spec_tokens=4)
    assert record.first_token_time is None
    steps = [output(1, 0, 0), output(3, 4, 2), output(1, 4, 0), output(1, 0, 0, planned=0)]
    for now, step in enumerate(steps, 1):
        record.observe(step, float(now), 0.5, 0.125)
    assert record.token_times == [1.0, 2.0, 2.0, 2.0, 3.0, 4.0]
    assert record.first_token_time == 1.0
    assert (record.num_drafts, record.num_draft_tokens, record.num_accepted_tokens) == (2, 8, 2)
    s = record.stats
    assert (s.acceptance_rate, s.acceptance_length) == (0.25, 2.0)
    assert (s.gated_share, s.draft_time_fraction) == (0.25, 0.25)
    assert s.tokens_per_iteration == 1.5


class Recount:
    """The same figures from every step's parts, by definition and slowly."""

    def __init__(self, engine):
        self.counts: Counter = Counter()
        inner = engine.metrics.observe

        def observe(batch, proposal, result, outputs):
            inner(batch, proposal, result, outputs)
            for o in outputs:
                self._count(batch.seqs.index(o.seq), batch, proposal, o)

        engine.metrics.observe = observe

    def _count(self, row, batch, proposal, o):
        c, nodes = self.counts, int(proposal.lengths[row])
        c["emitted"] += len(o.token_ids)
        if not nodes:
            c["plain"] += 1
            c["gated"] += int(batch.draft_limits[row, 0]) == 0 and o.seq.params.label != "off"
            return
        depths = []
        for parent in proposal.parents[row, :nodes].tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        c["drafts"] += 1
        c["nodes"] += nodes
        c["positions"] += max(depths)
        c["accepted"] += o.num_accepted
        c["refusals"] += o.num_accepted < max(depths) and len(o.token_ids) > o.num_accepted
        c["rollbacks"] += o.num_accepted < nodes
        c["depth", max(depths)] += 1
        for position in range(o.num_accepted):
            c["position", position] += 1


def test_an_engines_counts_are_those_of_its_steps():
    """Trees with wrong branches and gaps, choices, stops within a run, requests without drafts."""
    rng = random.Random(4)
    prompts = prompts_of(rng, 8)
    params = [SamplingParams(max_tokens=25, label=("a", "b")[i % 2], **GREEDY) for i in range(8)]
    streams = {tuple(p): target_stream(p, params[0], 25) for p in prompts}
    params[0] = replace(params[0], n=3)
    stop = streams[tuple(prompts[1])][len(prompts[1]) + 9]
    params[1] = replace(params[1], stop_token_ids=[stop])
    params[2] = replace(params[2], speculative=False, label="off")
    engine = make_engine(
        TreeProposer(streams, wrong=1, miss=0.2), k=5, num_blocks=200, max_num_seqs=4
    )
    recount = Recount(engine)
    outputs = run(engine, prompts, params)
    s, c = engine.metrics.stats, recount.counts
    assert s.num_emitted_tokens == c["emitted"]
    assert s.num_emitted_tokens == sum(len(x.token_ids) for o in outputs for x in o.outputs)
    assert (s.num_plain_steps, s.num_drafts) == (c["plain"], c["drafts"])
    assert (s.num_draft_tokens, s.num_draft_positions) == (c["nodes"], c["positions"])
    assert s.num_accepted_tokens == c["accepted"] == sum(s.num_accepted_per_pos)
    assert s.num_accepted_tokens == sum(sum(x.accepted) for o in outputs for x in o.outputs)
    assert 0 < s.num_refusals == c["refusals"] < s.num_drafts
    assert s.num_rollbacks == c["rollbacks"] == s.num_drafts  # side branches
    for depth, number in enumerate(s.num_drafts_per_depth, 1):
        assert number == c["depth", depth]
    for position, number in enumerate(s.num_accepted_per_pos):
        assert number == c["position", position]
    assert engine.metrics.by_source["test"].num_accepted_tokens == c["accepted"]
    requests = sum((o.metrics.stats for o in outputs), SpecStats())
    times = {"num_steps": 0, "step_seconds": 0, "propose_seconds": 0}
    assert replace(requests, **times) == replace(s, **times)
    assert set(engine.metrics.by_label) == {"a", "b", "off"}
    assert engine.metrics.by_label["off"].num_drafts == 0


def test_the_share_that_the_gate_kept_from_drafting():
    rng = random.Random(5)
    prompts = prompts_of(rng, 3)
    params = SamplingParams(max_tokens=12, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 12) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong=0))
    plan = engine.ab.plan
    engine.ab.plan = lambda seqs: plan(seqs) * (len(seqs) < 3)
    outputs = run(engine, prompts, params)
    s = engine.metrics.stats
    assert s.num_gated_steps == 3 * 11 == s.num_plain_steps - 3  # the last tokens take no drafts
    assert all(o.metrics.stats.gated_share == 11 / 12 for o in outputs)


def test_prefix_queries_are_the_tokens_admitted():
    engine = make_engine(num_blocks=64)
    params = SamplingParams(max_tokens=2, **GREEDY)
    run(engine, [list(range(1, 14))], params)
    run(engine, [list(range(1, 14))], params)
    stats = engine.scheduler.stats
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (26, 12)
