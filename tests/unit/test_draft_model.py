"""The draft-model proposer over toys whose logits are a hash of what a row sees.

A toy that drafts for itself is accepted whole, if every row of the draft sees exactly the tokens
that it should: so full acceptance through an event says that the draft's KV came through it.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.proposers import growing
from specfast.proposers.draft_model import DraftModelProposer
from specfast.proposers.growing import tree_shape
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_engine import GREEDY, prompts_of, run, target_stream, tokens
from tests.unit.toy_model import NoisyToy, ToyConfig, ToyModel, ToyTokenizer

COUPLED = {"temperature": 1.0, "seed": 5}
FILTERED = {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 5}
ROOMY = {"num_blocks": 600, "max_num_batched_tokens": 600}
SHAPES = {"chain": None, "tree": 16}


def make_engine(draft, model=None, k=4, nodes=None, verification="match", **config) -> Engine:
    spec = SpeculativeConfig("draft_model", k, verification, max_tree_nodes=nodes, policy="fixed")
    values = {"num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 64, **config}
    settings = EngineConfig("toy", speculative_config=spec, **values)
    target = Target(model or ToyModel(), ToyTokenizer(), settings)
    proposer = DraftModelProposer(spec, target, draft)
    return Engine(target.model, target.tokenizer, settings, proposer)


def params_of(sampling, count=24, **more) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **sampling, **more)


def check_streams(prompts, outputs, params) -> None:
    for prompt, output in zip(prompts, outputs):
        expected = target_stream(prompt, params, params.max_tokens)
        assert prompt + output.outputs[0].token_ids == expected


def check_all_accepted(engine: Engine) -> None:
    stats = engine.metrics.stats
    assert stats.num_draft_tokens == stats.num_accepted_tokens > 0


def recorded(engine: Engine) -> list[tuple]:
    """Fills, step by step, with each drafted sequence's tokens and tree."""
    proposer, seen = engine.proposer, []
    propose = proposer.propose

    def recording(batch):
        proposal = propose(batch)
        for row, seq in enumerate(batch.seqs):
            if n := int(proposal.lengths[row]):
                tree = [t[row, :n].tolist() for t in (proposal.tokens, proposal.parents)]
                tree.append(proposal.confidence[row, :n].numpy().tobytes())
                seen.append((list(seq.token_ids), *tree))
        return proposal

    proposer.propose = recording
    return seen


@pytest.fixture
def eager(monkeypatch):
    """Drafts as far as the limits allow, however unlikely."""
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.0)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)


@pytest.mark.parametrize("sampling", [GREEDY, FILTERED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(12))
def test_any_setting_gives_the_targets_own_stream(seed, sampling):
    rng = random.Random(seed)
    prompts, params = prompts_of(rng, rng.randint(1, 8)), params_of(sampling)
    k = rng.randint(1, 7)
    engine = make_engine(
        NoisyToy(rng.choice([0.3, 1.0, 30.0])),
        k=k,
        nodes=rng.choice([None, k, k + 3, 40]),
        num_blocks=rng.choice([30, 60]),
        block_size=rng.choice([2, 4, 7]),
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.choice([8, 9, 64]),
        enable_prefix_caching=rng.random() < 0.7,
    )
    check_streams(prompts, run(engine, prompts, params), params)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("batch", range(1, 9))
def test_a_target_that_drafts_for_itself_accepts_everything(eager, batch, sampling):
    prompts, params = prompts_of(random.Random(batch), batch), params_of(sampling)
    engine = make_engine(ToyModel(), max_num_seqs=8, num_blocks=200)
    check_streams(prompts, run(engine, prompts, params), params)
    check_all_accepted(engine)
    assert engine.metrics.stats.acceptance_length > 4


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("nodes", [5, 9, 16, 64])
def test_a_tree_accepts_as_far_as_a_chain(eager, nodes, sampling):
    prompts, params = prompts_of(random.Random(2), 5), params_of(sampling, 40)
    steps = []
    for max_tree_nodes in (None, nodes):
        engine = make_engine(ToyModel(), nodes=max_tree_nodes, **ROOMY)
        check_streams(prompts, run(engine, prompts, params), params)
        steps.append(engine.metrics.stats.num_drafts)
    assert steps[0] == steps[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_events_leave_the_drafts_kv_right(eager, shape):
    """Preemption, prefix hits and chunk splits, each seen; the trunk is accepted through all."""
    prompts, params = prompts_of(random.Random(3), 8), params_of(GREEDY, 30)
    engine = make_engine(
        ToyModel(), nodes=SHAPES[shape], num_blocks=24, max_num_seqs=8, max_num_batched_tokens=12
    )
    seen = recorded(engine)
    check_streams(prompts, run(engine, prompts, params), params)
    stats = engine.scheduler.stats
    assert stats.num_preempted and stats.num_prefix_hit_tokens and stats.num_chunk_splits
    if shape == "chain":
        check_all_accepted(engine)
    assert len({tuple(s[0]) for s in seen}) > 30
    for ids, drafts, parents, _ in seen:
        assert trunk(drafts, parents) == target_stream(ids, params, depth_of(parents))[len(ids) :]


def depth_of(parents) -> int:
    depth: list[int] = []
    for parent in parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return max(depth)


def trunk(drafts, parents) -> list[int]:
    """The path of first children."""
    path, at = [], -1
    while at in parents:
        at = parents.index(at)
        path.append(drafts[at])
    return path


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_chain_is_the_drafts_own_stream(eager, sampling, monkeypatch):
    draft = NoisyToy(1.0)
    prompts, params = prompts_of(random.Random(4), 4), params_of(sampling, 30)
    engine = make_engine(draft, k=5, num_blocks=200)
    seen = recorded(engine)
    run(engine, prompts, params)
    monkeypatch.setattr("tests.unit.test_engine.ToyModel", lambda: draft)
    for ids, drafts, parents, _ in seen:
        assert parents == list(range(-1, len(drafts) - 1))
        assert ids + drafts == target_stream(ids, params, len(drafts))
    assert 0.1 < engine.metrics.stats.acceptance_rate < 0.9


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("width, nodes", [(1, 4), (4, 20)])
def test_a_tree_of_one_child_a_node_is_the_chain(sampling, width, nodes, monkeypatch):
    prompts, params = prompts_of(random.Random(5), 4), params_of(sampling, 30)
    proposals = []
    for shape in (None, (width, 1)):
        if shape:
            monkeypatch.setattr(growing, "tree_shape", lambda *_: (width, 1))
        engine = make_engine(NoisyToy(0.5), nodes=nodes if shape else None, **ROOMY)
        proposals.append(recorded(engine))
        run(engine, prompts, params)
    assert proposals[0] == proposals[1] != []


@pytest.mark.parametrize("sampling", [GREEDY, FILTERED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("nodes", [5, 8, 16, 32, 64])
def test_branches_never_lower_acceptance(nodes, sampling):
    """A tree holds the chain, so it needs no more steps than that; many branches need fewer."""
    prompts, params = prompts_of(random.Random(6), 6), params_of(sampling, 40)
    steps = []
    for max_tree_nodes in (None, nodes):
        engine = make_engine(NoisyToy(0.7), nodes=max_tree_nodes, **ROOMY)
        outputs = run(engine, prompts, params)
        steps.append([o.metrics.num_drafts for o in outputs])
    assert all(tree <= chain for chain, tree in zip(*steps))
    assert nodes < 16 or sum(steps[1]) < sum(steps[0])


def rows_fed(engine: Engine) -> list[int]:
    """Fills with the rows of every draft forward."""
    draft, rows = engine.proposer.model, []
    forward = draft.forward

    def counting(batch_rows, cache):
        rows.append(len(batch_rows.token_ids))
        return forward(batch_rows, cache)

    draft.forward = counting
    return rows


@pytest.mark.parametrize("marked", [True, False])
def test_prefix_hits_with_and_without_the_drafts_marks(eager, marked):
    """Blocks that the draft had filled are not computed again; those it had not are."""
    prompt, params = [7] * 41, params_of(GREEDY, 12)
    engine = make_engine(ToyModel())
    first = params_of(GREEDY, 12, speculative=None if marked else False)
    run(engine, [prompt], first)
    rows = rows_fed(engine)
    (output,) = run(engine, [prompt], params)
    assert engine.scheduler.stats.num_prefix_hit_tokens == 40
    assert rows[0] == (1 if marked else 41)
    check_streams([prompt], [output], params)
    check_all_accepted(engine)


def test_a_mark_dies_with_the_blocks_content(eager):
    """Other texts pass through the same blocks between a text and its repetition."""
    params = params_of(GREEDY, 8)
    engine = make_engine(ToyModel(), num_blocks=14)
    for letter in (1, 2, 3, 1, 2, 2, 3):
        prompt = [letter] * 33
        check_streams([prompt], run(engine, [prompt], params), params)
    check_all_accepted(engine)
    assert engine.scheduler.stats.num_prefix_hit_tokens


def test_a_prompt_is_taken_in_while_it_is_prefilled(eager):
    long, short, params = [5] * 60, [6, 7], params_of(GREEDY, 20)
    engine = make_engine(ToyModel(), max_num_batched_tokens=16, max_num_seqs=2)
    rows, seen = rows_fed(engine), recorded(engine)
    check_streams([long, short], run(engine, [long, short], params), params)
    check_all_accepted(engine)
    assert max(rows) == 16
    assert min(len(ids) for ids, *_ in seen if ids[0] == 5) == 60
    assert len([1 for ids, *_ in seen if ids[0] == 5]) > 2


@pytest.mark.parametrize("shape", SHAPES)
def test_who_is_behind_for_longer_than_a_step_waits_and_the_others_are_drafted_for(eager, shape):
    """The target takes the long prompt from its prefix cache; the draft has yet to see it."""
    prompts, params = [[7] * 41, [6, 7]], params_of(GREEDY, 20)
    engine = make_engine(ToyModel(), nodes=SHAPES[shape], max_num_seqs=2, max_num_batched_tokens=16)
    run(engine, prompts[:1], params_of(GREEDY, 20, speculative=False))
    engine._guard = engine.proposer  # whatever it raises is to be seen
    seen = recorded(engine)
    check_streams(prompts, run(engine, prompts, params), params)
    assert engine.scheduler.stats.num_prefix_hit_tokens == 40
    first, second = ([len(ids) for ids, *_ in seen if ids[0] == p[0]] for p in prompts)
    assert min(first) > 42 and len(first) > 1 and len(second) > 1
    for ids, drafts, parents, _ in seen:
        assert trunk(drafts, parents) == target_stream(ids, params, depth_of(parents))[len(ids) :]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("block_size, spell", [(4, 4), (16, 12)])
def test_off_and_on_again(eager, shape, sampling, block_size, spell):
    """While nothing may be drafted the draft sees nothing, be it for several blocks or for most of
    one; then it catches up and is right.
    """
    prompts, params = prompts_of(random.Random(8), 5), params_of(sampling, 60)
    engine = make_engine(ToyModel(), nodes=SHAPES[shape], num_blocks=200, block_size=block_size)
    plan, calls = engine.budget.plan, []

    def gated(seqs):
        calls.append(1)
        off = len(calls) % (2 * spell) < spell
        return np.zeros((len(seqs), 2), np.int32) if off else plan(seqs)

    engine.budget.plan = gated
    seen = recorded(engine)
    check_streams(prompts, run(engine, prompts, params), params)
    if shape == "chain":
        check_all_accepted(engine)
    assert engine.metrics.stats.num_plain_steps > 20 and len(seen) > 20


@pytest.mark.parametrize("room", [0, 1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_few_free_blocks_shorten_trees(eager, shape, room):
    """The pool is just large enough for the text, or has a little room."""
    prompt, params = [3] * 9, params_of(GREEDY, 20)
    engine = make_engine(ToyModel(), k=6, nodes=SHAPES[shape], block_size=2, num_blocks=15 + room)
    seen = recorded(engine)
    check_streams([prompt], run(engine, [prompt], params), params)
    for ids, drafts, parents, _ in seen:
        assert trunk(drafts, parents) == target_stream(ids, params, depth_of(parents))[len(ids) :]


@pytest.mark.parametrize("limit", [20, 21, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_past_the_drafts_context_there_are_no_drafts(eager, shape, limit, caplog):
    class Short(ToyModel):
        def forward(self, rows, kv_cache):
            assert int(rows.positions.max()) < limit
            return super().forward(rows, kv_cache)

    prompts, params = [[3, 1, 4], [9] * 30], params_of(GREEDY, 40)
    engine = make_engine(Short(ToyConfig(max_position_embeddings=limit)), nodes=SHAPES[shape])
    seen = recorded(engine)
    with caplog.at_level("WARNING"):
        check_streams(prompts, run(engine, prompts, params), params)
    last = max(len(ids) + depth_of(parents) for ids, _, parents, _ in seen)
    assert last == limit + 1  # a row at the last position still drafts what follows it
    assert len([r for r in caplog.records if "context" in r.message]) == 1


def test_a_request_of_its_own_k_and_one_without_drafts(eager):
    prompts = [[3, 1, 4], [2, 7]]
    params = [params_of(GREEDY, speculative=s) for s in ({"num_speculative_tokens": 2}, False)]
    engine = make_engine(ToyModel())
    seen = recorded(engine)
    outputs = run(engine, prompts, params)
    check_streams(prompts, outputs, params_of(GREEDY))
    assert {len(drafts) for _, drafts, _, _ in seen} == {2}
    assert all(ids[0] == 3 for ids, *_ in seen)


def test_the_draft_never_sees_a_request_without_drafts(eager):
    engine = make_engine(ToyModel(), max_num_seqs=2)
    drafted = engine.add_request([6, 7], params_of(GREEDY, 40))
    plain = engine.add_request([5] * 9, params_of(GREEDY, 8, speculative=False))
    while not plain.finished:
        engine.step()
        assert plain.seqs[0].seq_id not in engine.proposer._kv._ranges
    assert drafted.metrics.num_drafts > 2


class Reduced(ToyModel):
    """Knows every third token of its target."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = SimpleNamespace(d2t=torch.arange(1, 40, 3, dtype=torch.int32))

    def logits(self, hidden, index):
        return super().logits(hidden, index)[:, self.weights.d2t.long()].contiguous()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_reduced_vocabulary(eager, sampling):
    """Accepted is, at every step, just the run of tokens that the draft knows."""
    prompts, params = prompts_of(random.Random(9), 4), params_of(sampling, 40)
    draft = Reduced()
    known = set(draft.weights.d2t.tolist())
    engine = make_engine(draft, num_blocks=200)
    seen = recorded(engine)
    check_streams(prompts, run(engine, prompts, params), params)
    num_right = 0
    for ids, drafts, _, _ in seen:
        ahead = target_stream(ids, params, len(drafts))[len(ids) :]
        run_length = next((i for i, t in enumerate(ahead) if t not in known), len(drafts))
        assert set(drafts) <= known and drafts[:run_length] == ahead[:run_length]
        num_right += run_length
    assert num_right == engine.metrics.stats.num_accepted_tokens > 10


def test_a_vocabulary_padded_for_the_draft_is_not_drafted_from(eager):
    class Padded(ToyModel):
        def logits(self, hidden, index):
            padding = torch.full((len(index), 8), 100.0)
            return torch.cat([super().logits(hidden, index), padding], 1)

    prompts, params = prompts_of(random.Random(9), 4), params_of(GREEDY)
    engine = make_engine(Padded())
    check_streams(prompts, run(engine, prompts, params), params)
    check_all_accepted(engine)


class Spoilt(ToyModel):
    """Logits that are no numbers, or infinite: of all rows or of some, of all tokens or of some."""

    def __init__(self, value: float, rows: slice, columns: slice) -> None:
        super().__init__()
        self.value, self.rows, self.columns = value, rows, columns

    def logits(self, hidden, index):
        out = super().logits(hidden, index)
        out[self.rows, self.columns] = self.value
        return out


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [slice(None), slice(0, None, 2)])
@pytest.mark.parametrize("columns", [slice(None), slice(3, 30)])
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_spoilt_draft_changes_nothing(shape, sampling, columns, rows, value, eager, caplog):
    prompts, params = prompts_of(random.Random(9), 4), params_of(sampling, 12)
    engine = make_engine(Spoilt(value, rows, columns), nodes=SHAPES[shape])
    check_streams(prompts, run(engine, prompts, params), params)
    assert not caplog.records  # it is merely a bad draft


def test_drafting_stops_where_it_does_not_pay():
    """A draft that is sure drafts all it may; one that knows nothing, next to nothing."""

    class Sure(ToyModel):
        def logits(self, hidden, index):
            return super().logits(hidden, index) * 50

    prompts, params = prompts_of(random.Random(9), 4), params_of(GREEDY, 40)
    lengths = []
    for draft in (Sure(), ToyModel(ToyConfig(), order=1)):
        engine = make_engine(draft, k=6, num_blocks=200)
        run(engine, prompts, params)
        stats = engine.metrics.stats
        lengths.append(stats.num_draft_tokens / max(stats.num_drafts, 1))
    assert lengths[0] > 5 > 3 > lengths[1]


def test_release_and_reset_forget(eager):
    params = params_of(GREEDY, 10)
    engine = make_engine(ToyModel())
    for _ in range(2):
        run(engine, [[3, 1, 4], [5, 9]], params)
        assert not engine.proposer._kv._ranges
        engine.reset_prefix_cache()
    engine.add_request([3, 1, 4], params)
    engine.step(), engine.step()
    engine.proposer.reset()
    engine.reset_prefix_cache()
    while engine.has_unfinished:
        engine.step()
    check_all_accepted(engine)


@pytest.mark.parametrize(
    "depth, nodes, shape",
    [
        (5, None, (1, 1)), (5, 5, (1, 1)), (4, 16, (4, 4)), (5, 6, (2, 2)), (1, 6, (6, 6)),
        (1, 64, (10, 10)), (8, 64, (8, 8)), (6, 60, (10, 10)), (40, 64, (1, 2)), (64, 64, (1, 1)),
        (33, 64, (2, 2)),
    ],
)  # fmt: skip
def test_tree_shapes(depth, nodes, shape):
    assert tree_shape(depth, nodes, draws=False) == shape


def test_the_shortest_gaps_get_the_rows_first():
    gaps = np.array([20, 3, 0, 9, 3], np.int32)
    assert growing.rows_within(gaps, 17).tolist() == [2, 3, 0, 9, 3]
    assert growing.rows_within(gaps, 5).tolist() == [0, 3, 0, 0, 2]
    assert growing.rows_within(gaps, 99).tolist() == gaps.tolist()


@pytest.mark.parametrize("depth, nodes, side", [(5, None, 1), (4, 5, 2), (4, 16, 2), (4, 17, 3)])
def test_trees_that_keep_what_they_draw_are_narrower(depth, nodes, side):
    assert tree_shape(depth, nodes, draws=True) == (side, side)


def test_same_outputs_on_and_off_for_choices(eager):
    params = SamplingParams(n=3, max_tokens=20, ignore_eos=True, **COUPLED)
    on = tokens(run(make_engine(ToyModel()), [[5, 6, 7]], params))
    spec_off = SamplingParams(n=3, max_tokens=20, ignore_eos=True, speculative=False, **COUPLED)
    assert on == tokens(run(make_engine(ToyModel()), [[5, 6, 7]], spec_off))
