"""EAGLE heads as proposers: what they draft against plain torch in float64, their KV byte for byte,
and the way of hidden states through chunks, preemption, prefix hits and trees.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.eagle import _target_layers, load_eagle
from specfast.proposers import features, growing, track_record
from specfast.proposers.eagle import EagleProposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig
from tests.unit import eagle_heads
from tests.unit.eagle_heads import LAYOUTS, H, Oracle, ToyHead, save_head, tensors_of
from tests.unit.exact import raw
from tests.unit.test_draft_model import check_all_accepted, check_streams, recorded
from tests.unit.test_draft_model import params_of as toy_params
from tests.unit.test_draft_model_native import params_of, prompts_of, run
from tests.unit.test_engine import prompts_of as toy_prompts_of
from tests.unit.test_engine import run as toy_run
from tests.unit.tiny_models import BLOCK_SIZE, native, new_cache, oracle, tail_rows
from tests.unit.toy_model import NoisyToy, ToyModel, ToyTokenizer

GREEDY = {"temperature": 0.0}
COUPLED = {"temperature": 1.0, "seed": 5}
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])


@pytest.fixture
def eager(monkeypatch):
    """Drafts as far as the limits allow, however unlikely."""
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.0)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)


@pytest.fixture(scope="module")
def target():
    return native(oracle("llama_yarn"))


@pytest.fixture(params=LAYOUTS)
def head(request, target, tmp_path):
    """-> the head as loaded, and its oracle."""
    layout = LAYOUTS[request.param]
    tensors = tensors_of(layout)
    folder = save_head(tmp_path / "head", layout, tensors)
    return load_eagle(str(folder), target), Oracle(layout, tensors, target)


def make_engine(model, draft=None, k=4, nodes=None, verification="match", **config) -> Engine:
    spec = SpeculativeConfig("eagle", k, verification, max_tree_nodes=nodes, policy="fixed")
    values = {"num_blocks": 80, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 64}
    values |= {"max_num_seqs": 8, **config}
    settings = EngineConfig("tiny", speculative_config=spec if draft else None, **values)
    proposer = (
        EagleProposer(spec, Target(model, ToyTokenizer(), settings), draft) if draft else None
    )
    engine = Engine(model, ToyTokenizer(), settings, proposer)
    if proposer:
        engine._guard = proposer  # whatever it raises is to be seen
    return engine


@torch.inference_mode()
def features_of(model, layers, tokens):
    cache = new_cache(model)
    rows = tail_rows(tokens, 0, range(cache.shape[2]))
    return model.forward_with_features(rows, cache, layers)[1]


def test_each_kind_takes_the_layers_that_it_was_made_for(head):
    draft, want = head
    assert draft.layers == want.layers


def test_the_layers_that_a_head_does_not_name_are_the_papers():
    assert _target_layers("head", {}, 30) == (2, 15, 27)
    with pytest.raises(ValueError, match="ascend within 0 to 4"):
        _target_layers("head", {}, 4)


def test_drafts_are_those_of_plain_torch(head, target, eager):
    """Every chain, after rejections, chunks and batch mates, is the oracle's from scratch."""
    draft, want = head
    engine = make_engine(target, draft, max_num_batched_tokens=16, enable_prefix_caching=False)
    seen = recorded(engine)
    run(engine, prompts_of(1, 5), params_of(GREEDY, 12))
    assert len(seen) > 20
    for tokens, drafts, *_ in seen[::2]:
        known = features_of(target, draft.layers, tokens[:-1])
        logits = want.chain(known, tokens, len(drafts))
        for depth, token in enumerate(drafts):
            best = want.to_target(int(logits[depth].argmax()))
            margin = logits[depth].topk(2).values.diff().abs()
            assert token == best or margin < 1e-4
            if token != best:
                break


@pytest.mark.parametrize("nodes", [None, 12])
@SAMPLINGS
def test_on_and_off_are_the_same_bytes(head, target, eager, nodes, sampling):
    prompts, params = prompts_of(2, 6), params_of(sampling)
    off = run(make_engine(target), prompts, params)
    engine = make_engine(target, head[0], nodes=nodes, max_num_batched_tokens=24, num_blocks=40)
    assert run(engine, prompts, params) == off
    assert engine.metrics.stats.num_draft_tokens > 100


@pytest.mark.parametrize("nodes", [None, 12])
@pytest.mark.parametrize("chunk", [9, 64])
def test_the_heads_kv_is_that_of_one_pass(head, target, eager, nodes, chunk):
    """After every step, byte for byte: across chunk edges, rejections, trees and preemptions."""
    draft, _ = head
    engine = make_engine(
        target, draft, nodes=nodes, num_blocks=30, max_num_batched_tokens=chunk,
        enable_prefix_caching=False,
    )  # fmt: skip
    kv, checked = engine.proposer._kv, []

    @torch.inference_mode()
    def check():
        for seq in engine.scheduler.running:
            epoch, start, end = kv._ranges.get(seq.seq_id, (None, 0, 0))
            if epoch == seq.kv_epoch and end:
                assert start == 0 and end < len(seq.token_ids)
                blocks = seq.block_table[: -(-end // BLOCK_SIZE)]
                got = kv.cache.data[:, :, blocks].flatten(2, 3)[:, :, :end]
                known = draft.fuse(features_of(target, draft.layers, seq.token_ids[:end]))
                fresh = torch.zeros_like(kv.cache.data[:, :, : len(blocks)])
                rows = tail_rows(seq.token_ids[:end], 0, range(len(blocks)))
                after = torch.tensor(seq.token_ids[1 : end + 1], dtype=torch.int32)
                draft.forward(known, replace(rows, token_ids=after), fresh)
                assert raw(got) == raw(fresh.flatten(2, 3)[:, :, :end])
                checked.append(end)

    run(engine, prompts_of(3, 6), params_of(GREEDY, 16), check)
    assert engine.scheduler.stats.num_preempted and len(checked) > 50


def test_attention_begins_behind_what_a_prefix_hit_left_out(target, eager, tmp_path):
    """The prompt was computed for a request without drafts: its slots are no one's."""
    layout = LAYOUTS["eagle3"]
    tensors = tensors_of(layout)
    draft = load_eagle(str(save_head(tmp_path / "head", layout, tensors)), target)
    want = Oracle(layout, tensors, target)
    engine, prompt = make_engine(target, draft), [*range(5, 34)]
    run(engine, [prompt], params_of(GREEDY, 4, speculative=False))
    engine.proposer._kv.cache.data.fill_(7.0)  # would show
    seen = recorded(engine)
    run(engine, [prompt], params_of(GREEDY, 12))
    hit = engine.scheduler.stats.num_prefix_hit_tokens
    assert hit == 28 and len(seen) > 4
    for tokens, drafts, *_ in seen:
        known = features_of(target, draft.layers, tokens[:-1])
        logits = want.chain(known, tokens, len(drafts), kv_start=hit)
        assert drafts[0] == want.to_target(int(logits[0].argmax()))


def test_a_prefix_that_the_head_wrote_is_taken_over(target, eager, head):
    engine, prompt = make_engine(target, head[0]), [*range(5, 34)]
    run(engine, [prompt], params_of(GREEDY, 6))
    request = engine.add_request([*prompt, 3, 4], params_of(GREEDY, 6))
    while engine.has_unfinished:
        engine.step()
        if ranges := engine.proposer._kv._ranges.get(request.seqs[0].seq_id):
            assert ranges[1] == 0
    assert engine.scheduler.stats.num_prefix_hit_tokens == 28


@pytest.mark.parametrize("rows", [8, 60])
@pytest.mark.parametrize("nodes", [None, 16])
@SAMPLINGS
def test_a_head_that_knows_its_target_is_accepted_whole(eager, sampling, nodes, rows):
    """Whatever happens to a sequence, its drafts come from the right hidden state and token."""
    model = ToyModel()
    engine = make_engine(
        model, ToyHead(model), nodes=nodes, num_blocks=26 if nodes is None else 64,
        max_num_batched_tokens=rows, max_num_seqs=4,
    )  # fmt: skip
    prompts, params = toy_prompts_of(random.Random(3), 9), toy_params(sampling)
    prompts += [prompts[0] * 3, prompts[0] * 3 + [4]]
    seen = recorded(engine)
    check_streams(prompts, toy_run(engine, prompts, params), params)
    stats = engine.metrics.stats
    assert len(seen) > 15 and engine.scheduler.stats.num_chunk_splits
    if nodes is None:
        check_all_accepted(engine)
        assert engine.scheduler.stats.num_preempted
    else:
        assert stats.num_accepted_tokens == stats.num_draft_positions


@pytest.mark.parametrize(("k", "nodes", "slots"), [(1, None, 0), (4, None, 3), (8, 9, 14)])
def test_a_tree_asks_for_slots_for_all_nodes_that_are_extended(k, nodes, slots):
    """More than it may keep: two at each depth but the last."""
    model = ToyModel()
    engine = make_engine(model, ToyHead(model), k=k, nodes=nodes)
    assert engine.scheduler.scratch_slots == slots


def test_the_memory_for_kv_holds_the_heads_too(head, target):
    engine = make_engine(target, head[0], num_blocks=None, kv_cache_memory=100_000)
    blocks = engine.scheduler.blocks.num_blocks
    caches = engine.runner.cache.data, engine.proposer._kv.cache.data
    num_bytes = sum(cache.nbytes for cache in caches)
    assert num_bytes <= 100_000 < num_bytes + num_bytes // blocks


def test_hidden_states_past_the_limit_are_let_go(eager, monkeypatch):
    """While nothing is drafted the log grows no further, and drafting goes on with the newest."""
    monkeypatch.setattr(features, "MAX_ROWS", 6)
    model = ToyModel()
    engine = make_engine(model, ToyHead(model), max_num_batched_tokens=8)
    plan = engine.budget.plan
    monkeypatch.setattr(engine.budget, "plan", lambda seqs: plan(seqs) * 0)
    request = engine.add_request([5, 6, 7], toy_params(GREEDY, 60))
    for _ in range(30):
        engine.step()
    first, end = engine.proposer._log.stretch(request.seqs[0])
    assert 6 <= end - first < 6 + 8
    monkeypatch.setattr(engine.budget, "plan", plan)
    while engine.has_unfinished:
        engine.step()
    check_all_accepted(engine)
    assert engine.metrics.stats.num_accepted_tokens > 15


def test_a_request_without_drafts_leaves_no_hidden_states(eager):
    model = ToyModel()
    engine = make_engine(model, ToyHead(model))
    engine.add_request([6, 7], toy_params(GREEDY, 40))
    plain = engine.add_request([5] * 9, toy_params(GREEDY, 8, speculative=False))
    while not plain.finished:
        engine.step()
        assert plain.seqs[0].seq_id not in engine.proposer._log._pending


WRONG = {
    "an EAGLE-3 head's layer for EAGLE-1": (
        "eagle1", {"layers.0.self_attn.q_proj.weight": (64, 128)}, {}, "q_proj.weight",
    ),
    "another hidden size": ("eagle3", {"fc.weight": (H, 3 * 32)}, {}, "'fc.weight'"),
    "another vocabulary": ("eagle3", {}, {"vocab_size": 103}, "vocabulary of 103"),
    "more layers than there are": (
        "eagle3", {}, {"eagle_aux_hidden_state_layer_ids": [2, 9, 15]}, "2, 9, 15",
    ),
    "a tensor of another method": ("eagle3", {"medusa.weight": (3, 3)}, {}, "'medusa.weight'"),
    "no map": ("eagle3_shared", {"d2t": None, "t2d": None}, {}, "no d2t"),
    "a map past the vocabulary": ("eagle3", {"d2t": 90}, {}, "ascending tokens below 101"),
    "no layer": ("eagle3", {"midlayer.mlp.up_proj.weight": None}, {}, "no tensor 'midlayer.mlp.up"),
    "norms that are not implemented": ("eagle3", {}, {"fc_norm": True}, "fc_norm"),
    "no head at all": ("eagle3", {"fc.weight": None}, {}, "no EAGLE head.*'fc.weight'"),
    "a map of two axes": ("eagle3_shared", {"d2t": (40, 1)}, {}, "'d2t' has shape"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_head_that_does_not_fit_is_refused_by_name(what, target, tmp_path):
    name, tensors, config, message = WRONG[what]
    state = tensors_of(LAYOUTS[name])
    for key, change in tensors.items():
        if change is None:
            del state[key]
        elif isinstance(change, int):
            state[key] = state[key] + change
        else:
            dtype = state[key].dtype if key in state else torch.float32
            state[key] = torch.zeros(change, dtype=dtype)
    folder = save_head(tmp_path / "head", LAYOUTS[name], state, **config)
    with pytest.raises(ValueError, match=message):
        load_eagle(str(folder), target)


def test_release_and_reset_forget(eager):
    model = ToyModel()
    engine = make_engine(model, ToyHead(model))
    kept = engine.proposer._kv._ranges, engine.proposer._log._pending
    left, mate = (engine.add_request([5, 6, n], toy_params(GREEDY, 20)) for n in (7, 8))
    for _ in range(3):
        engine.step()
    assert all(len(own) == 2 for own in kept)
    engine.cancel(left.request_id)
    engine.step()
    assert all(own.keys() == {mate.seqs[0].seq_id} for own in kept)
    engine.proposer.reset()
    assert not any(kept)
    while engine.has_unfinished:
        engine.step()
    assert not any(kept)


def check_nothing_is_left(used: Engine, fresh: Engine, num_steps: int) -> None:
    """Of a request cancelled after so many steps, to the next one, which has its number and, in a
    prefix that a request without drafts computed, its blocks.
    """
    kept = used.proposer._kv._ranges, used.proposer._log._pending
    request = used.add_request([*range(40, 80)], params_of(GREEDY, 20))
    (left,) = request.seqs
    for _ in range(num_steps):
        used.step()
    assert kept[1] and bool(kept[0]) == (num_steps > 1)
    blocks = set(left.block_table)
    used.cancel(request.request_id)
    used.step()
    assert not any(kept)
    used.reset_prefix_cache()
    used._seq_ids = iter((1, left.seq_id))
    (seen, prefix), (wanted, _) = map(behind_a_plain_prefix, (used, fresh))
    assert prefix <= blocks if num_steps > 2 else prefix & blocks
    assert seen == wanted and len(seen) > 4


def behind_a_plain_prefix(engine: Engine) -> tuple[list[tuple], set[int]]:
    """-> what is drafted, and the prefix's blocks, whose slots are no one's."""
    seen, prefix = recorded(engine), [*range(5, 33)]
    engine.add_request([*prefix, 2], params_of(GREEDY, 40, speculative=False))
    engine.step(), engine.step()
    request = engine.add_request([*prefix, 3, 4], params_of(GREEDY, 12))
    engine.step()
    assert engine.scheduler.stats.num_prefix_hit_tokens == len(prefix)
    blocks = {*request.seqs[0].block_table[: len(prefix) // BLOCK_SIZE]}
    while not request.finished:
        engine.step()
    return seen, blocks


@pytest.mark.parametrize("num_steps", [1, 3, 6])
@pytest.mark.parametrize("nodes", [None, 12])
def test_a_cancelled_request_leaves_nothing_to_the_next(head, target, eager, nodes, num_steps):
    """Cancelled in a prefill, after its last chunk, or amid drafts."""
    used, fresh = (
        make_engine(target, head[0], nodes=nodes, max_num_batched_tokens=16) for _ in range(2)
    )
    check_nothing_is_left(used, fresh, num_steps)


IDS = "eagle_aux_hidden_state_layer_ids"
NO_LAYERS = (
    5,
    "123",
    {"a": 1},
    ["1", "2", "3"],
    [1.0, 2.0, 3.0],
    [None],
    [True, 2, 3],
    [2, 1],
    [5],
)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (IDS, NO_LAYERS),
        ("eagle_config", (1, "x", [1], *({IDS: layers} for layers in NO_LAYERS))),
        ("transformer_layer_config", (1, "x", [1])),
        ("norm_before_residual", (1, "false")),
        ("norm_before_fc", (1, "false")),
        ("norm_output", (1, "false")),
        ("fc_norm", (1, "false")),
    ],
)
def test_a_config_of_wrong_kinds_is_refused_by_its_key(key, values, target, tmp_path):
    layout = LAYOUTS["eagle3_post_norm"]
    for value in values:
        changes = {key: value} if key != "eagle_config" else {IDS: None, key: value}
        folder = save_head(tmp_path / "head", layout, tensors_of(layout), **changes)
        with pytest.raises(ValueError, match=IDS if isinstance(value, dict) else key):
            load_eagle(str(folder), target)


@pytest.mark.parametrize("own", ["lm_head.weight", "embed_tokens.weight"])
def test_a_head_of_another_size_has_all_of_its_own(own, target, tmp_path, monkeypatch):
    monkeypatch.setattr(eagle_heads, "H", H // 2)
    layout = replace(LAYOUTS["eagle3"], own_head="lm" in own, own_embedding="embed" in own)
    state = tensors_of(layout) | {"fc.weight": torch.zeros(H // 2, 3 * H)}
    folder = save_head(tmp_path / "head", layout, state, head_dim=eagle_heads.DIM)
    (missing,) = {"lm_head.weight", "embed_tokens.weight"} - {own}
    with pytest.raises(ValueError, match=f"has no {missing}, .*hidden states of 64, not 32"):
        load_eagle(str(folder), target)


def test_a_head_of_eagle_3_is_no_eagle_1(target, tmp_path):
    """Without its hidden_norm, so that it is taken for the other kind, it must not run."""
    layout = LAYOUTS["eagle3"]
    state = {k.replace("midlayer.", "layers.0."): v for k, v in tensors_of(layout).items()}
    del state["layers.0.hidden_norm.weight"]
    folder = save_head(tmp_path / "head", layout, state)
    with pytest.raises(ValueError, match="shape"):
        load_eagle(str(folder), target)


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30, 0.0])
def test_garbage_weights_cost_drafts_alone(fill, target, tmp_path, eager):
    layout = LAYOUTS["eagle3"]
    state = tensors_of(layout)
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor.fill_(fill)
    draft = load_eagle(str(save_head(tmp_path / "head", layout, state)), target)
    prompts, params = prompts_of(4, 4), params_of(COUPLED)
    spec = make_engine(target, draft, nodes=12)
    assert run(spec, prompts, params) == run(make_engine(target), prompts, params)


def test_a_file_is_no_head(tmp_path):
    with pytest.raises(ValueError, match="head is a folder"):
        file = tmp_path / "head.gguf"
        file.write_bytes(b"")
        load_eagle(str(file), native(oracle("llama2")))


def test_a_method_without_a_model_says_so(target):
    spec = SpeculativeConfig("eagle")
    settings = EngineConfig("tiny", speculative_config=spec)
    with pytest.raises(ValueError, match="needs a model"):
        EagleProposer(spec, Target(target, ToyTokenizer(), settings))


@pytest.mark.parametrize("is_right", [True, False])
def test_a_head_of_another_target_is_told(is_right, eager, monkeypatch, caplog):
    monkeypatch.setattr(track_record, "ENOUGH_DRAFTS", 20)
    model = ToyModel()
    head = ToyHead(model) if is_right else ToyHead(NoisyToy(9.0))
    toy_run(make_engine(model, head), [[5, 6, 7]], toy_params(GREEDY, 60))
    warned = "Check that the head was trained for this very target" in caplog.text
    assert warned != is_right
