"""MTP blocks as proposers: one that is fed its own output, and several in a chain."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.committed import FOLDERS
from specfast.models.config import ModelConfig
from specfast.models.loader import load
from specfast.models.mtp import load_mtp
from specfast.proposers import growing, mtp
from specfast.proposers.mtp import MtpProposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig
from specfast.train.mtp import MtpStudent
from tests.unit.eagle_heads import ToyHead
from tests.unit.exact import raw
from tests.unit.test_draft_model import check_all_accepted, check_streams
from tests.unit.test_draft_model import params_of as toy_params
from tests.unit.test_draft_model_native import params_of, prompts_of, run
from tests.unit.test_eagle import (
    COUPLED,
    GREEDY,
    SAMPLINGS,
    check_nothing_is_left,
    features_of,
)
from tests.unit.test_engine import prompts_of as toy_prompts_of
from tests.unit.test_engine import run as toy_run
from tests.unit.test_loader import rewrite, save
from tests.unit.tiny_models import BLOCK_SIZE, native, oracle, prefill, tail_rows
from tests.unit.toy_model import ToyModel, ToyTokenizer

H, INNER = 64, 88


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.0)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)
    monkeypatch.setattr(mtp, "MIN_SURVIVAL", 0.0)


@pytest.fixture(scope="module")
def target():
    return native(oracle("qwen2"))  # MiMo's decoder is Qwen2's: biases on q, k and v


@pytest.fixture
def blocks(target, tmp_path):
    """Three random ones in a folder of their own."""
    return load_mtp(str(save_blocks(tmp_path / "blocks", 3)), target)


def save_blocks(folder, count, **changes):
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "input_proj.weight": (H, 2 * H), "self_attn.o_proj.weight": (H, H),
        "mlp.gate_proj.weight": (INNER, H), "mlp.up_proj.weight": (INNER, H),
        "mlp.down_proj.weight": (H, INNER),
    }  # fmt: skip
    for p, size in {"q": H, "k": H // 2, "v": H // 2}.items():
        shapes[f"self_attn.{p}_proj.weight"] = (size, H)
        shapes[f"self_attn.{p}_proj.bias"] = (size,)
    for name in ("hidden", "token", "input", "post_attention", "final"):
        shapes[f"{name}_layernorm.weight"] = (H,)
    shapes |= changes
    tensors = {
        f"model.mtp_layers.{n}.{name}": float("norm" in name)
        + 0.2 * torch.randn(*shape, generator=generator)
        for n in range(count)
        for name, shape in shapes.items()
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_nextn_predict_layers": count}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def make_engine(model, blocks=None, k=4, nodes=None, rule="match", **config) -> Engine:
    spec = SpeculativeConfig("mtp", k, rule, max_tree_nodes=nodes, policy="fixed")
    values = {"num_blocks": 80, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 64}
    values |= {"max_num_seqs": 8, **config}
    settings = EngineConfig("tiny", speculative_config=spec if blocks else None, **values)
    of_target = Target(model, ToyTokenizer(), settings)
    proposer = MtpProposer(spec, of_target, blocks) if blocks else None
    engine = Engine(model, ToyTokenizer(), settings, proposer)
    if proposer:
        engine._guard = proposer  # whatever it raises is to be seen
    return engine


def test_a_block_foretells_what_it_was_trained_to():
    """Against the module that trained it, on the test suite's own target."""
    model, _ = load("tiny", "float32")
    (block,) = load_mtp("tiny", model, "float32")
    config = ModelConfig.from_hf(json.loads((FOLDERS["tiny"] / "config.json").read_text()))
    student = MtpStudent(config).double()
    state = load_file(FOLDERS["tiny"] / "model.safetensors")
    student.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    tokens = torch.randint(1, 1000, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, ahead = student.both(tokens)
    ids = tokens[0].tolist()
    known = features_of(model, block.layers, ids[:-1])
    rows = tail_rows(ids[:-1], 0, range(20))
    rows = replace(rows, token_ids=tokens[0, 1:].int())
    c = block.config
    cache = torch.zeros(1, 2, 20, BLOCK_SIZE, c.num_kv_heads, c.head_dim)
    _, normed = block.forward(block.fuse(known), rows, cache)
    torch.testing.assert_close(block.logits(normed).double(), ahead[0], rtol=0, atol=2e-3)


@pytest.mark.parametrize(("count", "nodes"), [(1, None), (1, 12), (2, None), (3, None)])
@SAMPLINGS
def test_on_and_off_are_the_same_bytes(blocks, target, eager, count, nodes, sampling):
    prompts, params = prompts_of(2, 6), params_of(sampling)
    off = run(make_engine(target), prompts, params)
    engine = make_engine(
        target, blocks[:count], nodes=nodes, max_num_batched_tokens=24, num_blocks=40
    )
    assert run(engine, prompts, params) == off
    assert engine.metrics.stats.num_draft_tokens > 100


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", [8, 60])
@SAMPLINGS
def test_blocks_that_know_their_target_are_accepted_whole(eager, sampling, rows, count):
    """Whatever happens to a sequence, each block gets the right hidden state and token."""
    model = ToyModel()
    heads = tuple(ToyHead(model) for _ in range(count))
    engine = make_engine(model, heads, num_blocks=26, max_num_batched_tokens=rows, max_num_seqs=4)
    prompts, params = toy_prompts_of(random.Random(3), 9), toy_params(sampling)
    prompts += [prompts[0] * 3, prompts[0] * 3 + [4]]
    check_streams(prompts, toy_run(engine, prompts, params), params)
    check_all_accepted(engine)
    assert engine.scheduler.stats.num_preempted
    depth = max(len(engine.metrics.stats.num_accepted_per_pos), 1)
    assert depth == (4 if count == 1 else count)


@pytest.mark.parametrize("chunk", [9, 64])
def test_every_blocks_kv_is_that_of_one_pass(blocks, target, eager, chunk):
    """Block m knows a slot's KV for good once the token m + 1 after it is committed."""
    engine = make_engine(
        target, blocks, k=3, num_blocks=30, max_num_batched_tokens=chunk,
        enable_prefix_caching=False,
    )  # fmt: skip
    kv, checked = engine.proposer._kv, []

    @torch.inference_mode()
    def check():
        for seq in engine.scheduler.running:
            epoch, start, end = kv._ranges.get(seq.seq_id, (None, 0, 0))
            if epoch == seq.kv_epoch and end > len(blocks):
                assert start == 0 and end < len(seq.token_ids)
                table = seq.block_table[: -(-end // BLOCK_SIZE)]
                got = kv.cache.data[:, :, table].flatten(2, 3)[:, :, :end]
                hidden = features_of(target, blocks[0].layers, seq.token_ids[:end])
                for m, block in enumerate(blocks):
                    known = end - m
                    rows = tail_rows(seq.token_ids[:known], 0, range(len(table)))
                    after = torch.tensor(seq.token_ids[m + 1 : end + 1], dtype=torch.int32)
                    fresh = torch.zeros_like(kv.cache.data[m : m + 1, :, : len(table)])
                    hidden, _ = block.forward(hidden[:known], replace(rows, token_ids=after), fresh)
                    assert raw(got[m, :, :known]) == raw(fresh.flatten(2, 3)[0, :, :known])
                checked.append(end)

    run(engine, prompts_of(3, 6), params_of(GREEDY, 16), check)
    assert engine.scheduler.stats.num_preempted and len(checked) > 50


@pytest.mark.parametrize("num_steps", [1, 3, 6])
@pytest.mark.parametrize("count", [1, 3])
def test_a_cancelled_request_leaves_nothing_to_the_next(blocks, target, eager, count, num_steps):
    """Of several blocks not even the slots that were to be fed again."""
    used, fresh = (make_engine(target, blocks[:count], max_num_batched_tokens=16) for _ in range(2))
    check_nothing_is_left(used, fresh, num_steps)


def test_a_mimo_checkpoint_is_a_target_with_blocks(tmp_path):
    """XiaomiMiMo's layout, its config's keys as released; the decoder is Qwen2's."""
    source, folder = oracle("qwen2"), save("qwen2", tmp_path / "mimo")
    blocks = load_file(save_blocks(tmp_path / "blocks", 1) / "model.safetensors")
    config = {
        "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True,
        "num_nextn_predict_layers": 1, "use_sliding_window": False, "rope_theta": 10000.0,
    }  # fmt: skip
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    kept += ("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps")
    config |= {key: getattr(source.config, key) for key in kept}
    (folder / "config.json").write_text(json.dumps(config))
    rewrite(folder, lambda tensors: tensors.update(blocks))
    model, _ = load(str(folder))
    text = [*range(5, 14)]
    ours, theirs = (prefill(m, text, [9], range(3)) for m in (model, native(source)))
    assert raw(ours) == raw(theirs)
    (block,) = load_mtp(str(folder), model)
    assert block.config.qkv_bias and not block.config.o_bias


def test_blocks_deeper_than_drafts_are_left_out(eager):
    model = ToyModel()
    heads = tuple(ToyHead(model) for _ in range(3))
    engine = make_engine(model, heads, k=2)
    assert engine.proposer.needs.kv.num_layers == 2 and engine.proposer.num_kept == 1
    toy_run(engine, [[5, 6, 7]], toy_params(GREEDY, 12))
    check_all_accepted(engine)
    assert heads[1].num_fed and not heads[2].num_fed


def test_several_blocks_draft_no_trees(blocks, target):
    with pytest.raises(ValueError, match="leave max_tree_nodes out"):
        make_engine(target, blocks, nodes=12)


def test_a_model_without_blocks_says_what_to_do(target):
    spec = SpeculativeConfig("mtp")
    settings = EngineConfig("tiny-draft-m", speculative_config=spec)
    with pytest.raises(ValueError, match="has no MTP blocks"):
        MtpProposer(spec, Target(target, ToyTokenizer(), settings))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"input_proj.weight": (H, H)}, "mtp_layers.0.input_proj.weight' has shape"),
        ({"self_attn.k_proj.weight": (H, H)}, "k_proj.weight' has shape"),
        ({"enorm.weight": (H,)}, "'model.mtp_layers.0.enorm.weight'"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_by_name(shapes, message, target, tmp_path):
    folder = save_blocks(tmp_path / "blocks", 1, **shapes)
    with pytest.raises(ValueError, match=message):
        load_mtp(str(folder), target)


@pytest.mark.parametrize("count", [-1, 1.5, "1", [1], True, 2**31])
def test_a_number_of_blocks_that_can_not_be_is_refused(count, target, tmp_path):
    folder = save_blocks(tmp_path / "blocks", 1)
    (folder / "config.json").write_text(json.dumps({"num_nextn_predict_layers": count}))
    with pytest.raises(ValueError, match="num_nextn_predict_layers must be an integer"):
        load_mtp(str(folder), target)


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30, 0.0])
@pytest.mark.parametrize("count", [1, 2])
def test_garbage_weights_cost_drafts_alone(fill, count, target, tmp_path, eager):
    folder = save_blocks(tmp_path / "blocks", count)
    state = load_file(folder / "model.safetensors")
    save_file({k: torch.full_like(v, fill) for k, v in state.items()}, folder / "model.safetensors")
    prompts, params = prompts_of(4, 4), params_of(COUPLED)
    spec = make_engine(target, load_mtp(str(folder), target))
    assert run(spec, prompts, params) == run(make_engine(target), prompts, params)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_drawn_from_a_law_that_is_no_number(count, target, tmp_path):
    folder = save_blocks(tmp_path / "blocks", count)
    state = load_file(folder / "model.safetensors")
    nan = {k: torch.full_like(v, float("nan")) for k, v in state.items()}
    save_file(nan, folder / "model.safetensors")
    engine = make_engine(target, load_mtp(str(folder), target), rule="rejection")
    run(engine, prompts_of(4, 4), params_of(COUPLED))
    assert engine.proposer._kv.cache.is_written(0) and not engine.metrics.stats.num_draft_tokens
