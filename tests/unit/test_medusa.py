"""The Medusa proposer: what it drafts against float64 and fresh prefills, and what it survives."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from specfast._host import gumbel_noise
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.decoder import Model
from specfast.models.medusa import load_medusa
from specfast.proposers import track_record
from specfast.proposers.base import Proposal
from specfast.proposers.medusa import MedusaProposer, accuracies_of
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig
from tests.unit.medusa_heads import random_heads, said_by, save_heads
from tests.unit.test_draft_model_native import params_of, prompts_of, run
from tests.unit.tiny_models import BLOCK_SIZE, native, new_cache, oracle, tail_rows
from tests.unit.toy_model import ToyTokenizer

GREEDY = {"temperature": 0.0}
COUPLED = {"temperature": 1.0, "seed": 5}
LAWS = {"greedy": GREEDY, "coupled": COUPLED}
V, H = 101, 64
D2T = torch.arange(2, V, 3, dtype=torch.int32)
KINDS = {
    "own": random_heads(H, V),
    "two blocks": random_heads(H, V, num_layers=2),
    "shared": random_heads(H, V, own=False),
    "reduced": random_heads(H, V, own=False, d2t=D2T, num_layers=2),
    "own, reduced": random_heads(H, V, d2t=D2T),
}


@pytest.fixture(scope="module")
def target() -> Model:
    return native(oracle("llama3"))


@pytest.fixture(scope="module")
def target_head() -> torch.Tensor:
    return oracle("llama3").get_output_embeddings().weight.detach()


@pytest.fixture
def folder_of(tmp_path):
    return lambda tensors, **more: save_heads(tmp_path / "heads", tensors, **more)


def make_engine(target, folder=None, k=3, nodes=None, rule="match", **config):
    spec = folder and SpeculativeConfig(
        "medusa", k, rule, model=str(folder), max_tree_nodes=nodes, policy="fixed"
    )
    values = {"num_blocks": 80, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 64}
    settings = EngineConfig("tiny", speculative_config=spec, **{**values, **config})
    whole = Target(target, ToyTokenizer(), settings)
    return Engine(target, ToyTokenizer(), settings, MedusaProposer(spec, whole) if spec else None)


def recorded(engine):
    """Fills, step by step, with each drafted sequence, its tokens then, and its tree."""
    proposer, seen = engine.proposer, []
    propose = proposer.propose

    def recording(batch):
        proposal = propose(batch)
        proposal.check(batch.draft_limits, V)
        for seq, limit, tree in zip(batch.seqs, batch.draft_limits, proposal.to_trees()):
            seen.append((seq, list(seq.token_ids), tuple(limit), tree))
        return proposal

    proposer.propose = recording
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_float64(kind, target, target_head, folder_of):
    _, heads = load_medusa(str(folder_of(KINDS[kind])), target)
    features = 3 * torch.randn(5, H, generator=torch.Generator().manual_seed(3))
    want = said_by(KINDS[kind], target_head, features)
    got = heads.logits(features, 3)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    assert torch.equal(heads.logits(features, 2), got[:2])
    assert torch.equal(heads.logits(features[3:4], 3), got[:, 3:4]), "a row depends on its mates"


@torch.inference_mode()
def fresh_feature(target, token_ids):
    """The hidden state behind the last norm of the token before the last, by one prefill."""
    text = token_ids[:-1]
    blocks = range(-(-len(text) // BLOCK_SIZE))
    rows = tail_rows(text, 0, blocks)
    return target.forward(rows, new_cache(target, len(blocks)))[-1:].clone()


def ranked(logits, d2t, sampling, position):
    """Target ids best first, by the target's own noise."""
    ids = np.arange(V) if d2t is None else d2t.numpy()
    scores = logits.numpy().copy()
    if temperature := sampling["temperature"]:
        noise = gumbel_noise(sampling["seed"], position, ids.tolist())
        scores = scores / temperature + np.array(noise, np.float64)
    return ids[np.argsort(-scores, kind="stable")]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("nodes", [None, 12, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_what_the_heads_say_of_the_row_before(
    kind, nodes, law, target, target_head, folder_of
):
    """Head j speaks of position L + j from the hidden state of position L - 2, whatever made it:
    prefill, whole or in chunks, a rejection, an accepted path, in a batch.
    """
    tensors, sampling = KINDS[kind], LAWS[law]
    engine = make_engine(
        target, folder_of(tensors), nodes=nodes, max_num_seqs=3, max_num_batched_tokens=12
    )
    seen = recorded(engine)
    run(engine, prompts_of(1, 4), params_of(sampling, 14))
    d2t, drafted = tensors.get("d2t"), 0
    for _, ids, (depth, limit), tree in seen[:60]:
        if not tree.tokens:
            continue
        said = said_by(tensors, target_head, fresh_feature(target, ids))[:, 0]
        by_head = [ranked(row, d2t, sampling, len(ids) + j) for j, row in enumerate(said)]
        depths, children = [], {}
        for token, parent in zip(tree.tokens, tree.parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            children.setdefault((parent, depths[-1]), []).append(token)
        for (_, head), siblings in children.items():
            assert siblings == by_head[head][: len(siblings)].tolist()
        assert len(tree) == min(limit, nodes or 3) or depth < 3, "there is room"
        assert max(depths) < depth and len(tree) <= limit
        drafted += 1
    assert drafted > 15


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("nodes", [None, 16])
def test_on_and_off_are_the_same_bytes_through_all_events(nodes, law, target, folder_of):
    prompts, params = prompts_of(3, 6), params_of(LAWS[law], 30)
    off = run(make_engine(target), prompts, params)
    engine = make_engine(
        target, folder_of(KINDS["shared"]), nodes=nodes, num_blocks=26, max_num_batched_tokens=16,
        max_num_seqs=8,
    )  # fmt: skip
    assert run(engine, prompts, params) == off
    events, stats = engine.scheduler.stats, engine.metrics.stats
    assert events.num_preempted and events.num_prefix_hit_tokens and events.num_chunk_splits
    assert stats.num_draft_tokens > stats.num_accepted_tokens > 0


GARBAGE = {
    "nan": lambda t: t.fill_(float("nan")),
    "some nan": lambda t: t.view(-1)[::7].fill_(float("nan")),
    "inf": lambda t: t.view(-1)[::5].fill_(float("inf")),
    "-inf": lambda t: t.fill_(-float("inf")),
    "huge": lambda t: t.mul_(1e30),
    "zero": lambda t: t.zero_(),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("where", ["linear.weight", "linear.bias", "1.weight"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_changes_nothing(garbage, where, law, target, folder_of, caplog):
    tensors = {name: t.clone() for name, t in KINDS["own"].items()}
    for name, tensor in tensors.items():
        if name.endswith(where):
            GARBAGE[garbage](tensor)
    prompts, params = prompts_of(5, 4), params_of(LAWS[law], 12)
    engine = make_engine(target, folder_of(tensors), nodes=12)
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    assert not caplog.records  # they are merely bad heads


def test_a_sequences_drafts_are_its_own(target, folder_of):
    """Alone or in a batch, whole prompts or chunks, with a prefix cache or none: the same trees."""
    folder, prompts, params = folder_of(KINDS["shared"]), prompts_of(2, 6), params_of(COUPLED, 20)
    found = []
    for config in (
        {"max_num_seqs": 1},
        {"max_num_seqs": 6, "max_num_batched_tokens": 32, "enable_prefix_caching": False},
    ):
        engine = make_engine(target, folder, nodes=10, num_blocks=200, **config)
        seen = recorded(engine)
        run(engine, prompts, params)
        trees = {
            tuple(ids): tree for _, ids, limits, tree in seen if limits == (3, 10) and len(tree)
        }
        found.append(trees)
    both = found[0].keys() & found[1].keys()
    assert len(both) > 20
    assert all(found[0][ids] == found[1][ids] for ids in both)


def test_a_preempted_sequence_is_drafted_for_at_once(target, folder_of):
    """Its hidden state is a function of its tokens, which it still has."""
    engine = make_engine(target, folder_of(KINDS["own"]), num_blocks=26, max_num_seqs=6)
    seen, preempted = recorded(engine), []
    schedule = engine.scheduler.schedule

    def scheduling(budget):
        batch = schedule(budget)
        preempted.extend(
            (s.seq_id, len(s.token_ids))
            for s, start, limit in zip(batch.seqs, batch.starts, batch.draft_limits)
            if s.kv_epoch and start == 0 and limit[1] and s.output_token_ids
        )
        return batch

    engine.scheduler.schedule = scheduling
    run(engine, prompts_of(3, 6), params_of(GREEDY, 30))
    drafted = {(seq.seq_id, len(ids)) for seq, ids, _, tree in seen if len(tree)}
    assert preempted and set(preempted) <= drafted


def test_a_prefix_hit_leaves_no_drafts_for_one_step(target, folder_of):
    prompt, params = [7] * 41, params_of(GREEDY, 12)
    engine = make_engine(target, folder_of(KINDS["own"]))
    run(engine, [prompt], params)
    seen = recorded(engine)
    run(engine, [prompt], params)
    assert engine.scheduler.stats.num_prefix_hit_tokens == 40
    (first, *_), lengths = seen, [len(tree) for *_, tree in seen]
    assert len(first[1]) == 41 and lengths[0] == 0 and min(lengths[1:-2]) > 0


def test_a_request_of_its_own_k_and_one_without_drafts(target, folder_of):
    prompts = [[3, 1, 4], [2, 7]]
    params = [params_of(GREEDY, speculative=s) for s in ({"num_speculative_tokens": 2}, False)]
    engine = make_engine(target, folder_of(KINDS["own"]))
    seen = recorded(engine)
    requests = [engine.add_request(p, each) for p, each in zip(prompts, params)]
    while engine.has_unfinished:
        engine.step()
        assert requests[1].seqs[0].seq_id not in engine.proposer._features
    assert max(len(tree) for *_, tree in seen) == 2
    assert all(ids[0] == 3 for _, ids, _, tree in seen if len(tree))


def test_release_and_reset_forget(target, folder_of):
    engine = make_engine(target, folder_of(KINDS["own"]))
    run(engine, [[3, 1, 4], [5, 9]], params_of(GREEDY, 6))
    assert not engine.proposer._features
    engine.add_request([3, 1, 4], params_of(GREEDY, 8))
    engine.step(), engine.step()
    assert engine.proposer._features
    engine.proposer.reset()
    assert not engine.proposer._features
    while engine.has_unfinished:
        engine.step()


def test_a_forwards_features_are_not_kept_alive(target, folder_of):
    engine = make_engine(target, folder_of(KINDS["own"]))
    engine.add_request([7] * 50, params_of(GREEDY, 8))
    engine.step()
    ((_, feature),) = engine.proposer._features.values()
    assert feature.untyped_storage().nbytes() == H * 4


# --- depth, tree and confidence ---


def test_drafts_are_no_deeper_than_there_are_heads(target, folder_of, caplog):
    folder = folder_of(KINDS["own"])
    with caplog.at_level(logging.INFO, "specfast"):
        engine = make_engine(target, folder, k=8)
    assert "has 3 heads: drafts are no deeper" in caplog.text
    seen = recorded(engine)
    run(engine, prompts_of(1, 2), params_of(GREEDY, 20))
    assert {len(tree) for *_, tree in seen} >= {3} and max(len(t) for *_, t in seen) == 3


def test_heads_deeper_than_drafts_are_not_loaded(target, folder_of):
    engine = make_engine(target, folder_of(KINDS["own"]), k=2)
    assert engine.proposer.heads.num_heads == 2


def test_the_folders_accuracies_make_tree_and_confidence(target, folder_of):
    """Greedy: what was measured; else the shares by noise, which sum to 1 over the candidates."""
    accuracies = [[0.5, 0.19, 0.1], [0.6, 0.05], [0.1, 0.4]]
    engine = make_engine(
        target, folder_of(KINDS["own"], medusa_accuracies=accuracies), nodes=6, k=3
    )
    seen = recorded(engine)
    requests = [engine.add_request([5, 6], params_of(law, 12)) for law in LAWS.values()]
    while engine.has_unfinished:
        engine.step()
    greedy, coupled = (r.seqs[0] for r in requests)
    tree = next(t for s, _, limits, t in seen if s is greedy and len(t) == 6)
    assert tree.parents == [-1, 0, -1, 1, 2, -1]  # .5, .3, .19, .12, .114, .1
    assert tree.confidence == pytest.approx([0.5, 0.6, 0.19, 0.4, 0.6, 0.1])
    tree = next(t for s, _, limits, t in seen if s is coupled and len(t) == 6)
    first = [c for c, p in zip(tree.confidence, tree.parents) if p < 0]
    assert first == sorted(first, reverse=True) and 0.3 < sum(first) <= 1.0
    assert tree.confidence != pytest.approx([0.5, 0.6, 0.19, 0.4, 0.6, 0.1], abs=0.02)


def test_the_folders_choices_are_the_only_nodes(target, folder_of):
    """Reordered by what is likely; candidates past those that are ranked are left out."""
    choices = [[0], [1], [1, 0], [10], [1, 0, 2], [0, 3]]
    engine = make_engine(target, folder_of(KINDS["own"], medusa_choices=choices), nodes=20)
    tree = engine.proposer._tree
    assert len(tree) == 5
    assert tree.parents.tolist() == [-1, -1, 1, 0, 2]
    assert tree.ranks.tolist() == [0, 1, 0, 3, 2]
    assert (
        engine.proposer._accuracies.tolist()
        == accuracies_of(load_medusa(str(folder_of(KINDS["own"])), target)[0]).tolist()
    )


@pytest.mark.parametrize("rule", ["rejection", "typical"])
def test_under_another_rule_drafts_do_not_look_at_the_noise(rule, target, folder_of):
    folder, drafted = folder_of(KINDS["own"]), []
    for seed in (1, 2):
        engine = make_engine(target, folder, nodes=8, rule=rule)
        seen = recorded(engine)
        run(engine, [[5, 6, 7]], params_of({"temperature": 1.0, "seed": seed}, 2))
        run(engine, [[5, 6, 7, 8]], params_of({"temperature": 1.0, "seed": seed}, 12))
        drafted.append({tuple(ids): tree for _, ids, _, tree in seen if len(tree)})
    same = drafted[0].keys() & drafted[1].keys()
    assert all(drafted[0][ids] == drafted[1][ids] for ids in same)


# --- heads that don't fit ---


def aligned_heads(target_head):
    """Heads that say the target's own token, which at T = 1 is now and then the one after it."""
    return {
        **random_heads(H, V, own=False, num_heads=1),
        "0.0.linear.weight": torch.zeros(H, H),
        "0.0.linear.bias": torch.zeros(H),
    }


@pytest.mark.parametrize("verified", [True, False])
def test_heads_that_foretell_nothing_are_told_of_once(verified, target, folder_of, caplog):
    """Also where the budget lets none of their drafts be verified."""
    prompts, params = prompts_of(5, 8), params_of(GREEDY, 60)
    plain = run(make_engine(target, max_num_seqs=8), prompts, params)
    never = min({*range(V)} - {t for tokens in plain for t in tokens})
    tensors = random_heads(H, V, num_heads=1, d2t=torch.tensor([never], dtype=torch.int32))
    engine = make_engine(target, folder_of(tensors), max_num_seqs=8)
    if not verified:
        engine.budget.select = lambda batch, proposal: Proposal.empty(len(batch))
    run(engine, prompts, params)
    stats = engine.metrics.stats
    assert stats.num_accepted_tokens == 0 and (stats.num_draft_tokens > 300) == verified
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "Check that the head was trained for this very target" in caplog.text
    assert f"of {engine.proposer._fit._num_drafts} drafts the target said 0" in caplog.text


@pytest.mark.parametrize("law", LAWS)
def test_heads_that_foretell_a_little_are_not(law, target, target_head, folder_of, caplog):
    engine = make_engine(target, folder_of(aligned_heads(target_head)), nodes=8, max_num_seqs=8)
    run(engine, prompts_of(5, 8), params_of(LAWS[law], 60))
    assert engine.proposer._fit._num_drafts >= track_record.ENOUGH_DRAFTS
    assert "made for" not in caplog.text and "was trained for" not in caplog.text
