"""The whole command on the tiny target; what is saved against an inference of its own."""

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specfast import cli
from specfast.models.config import ModelConfig
from specfast.models.loader import load
from specfast.models.rope import Rope
from specfast.train import head_run
from specfast.train.acceptance import acceptance, chain_acceptance, chains_of
from specfast.train.data import AnswerStore
from specfast.train.eagle_folder import rope_json
from specfast.train.eagle_settings import EagleSettings, default_layers
from specfast.train.feature_source import FeatureSource
from specfast.train.features import FeatureRequest
from tests.unit.tiny_models import FAMILIES, SIZES
from tests.unit.unrolled import Alone

LAYERS = (1, 2, 3)  # of the tiny target, unless others are asked for


def command(folder, *more, kind="eagle"):
    prompts = folder / "prompts.jsonl"
    rows = [{"turns": [f"How many apples are {n} apples and {n + 3} apples?"]} for n in range(24)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("train", kind, "tiny", "--prompts", str(prompts), "--out", str(folder / "out")),
        *("--intermediate-size", "48", "--draft-vocab-size", "256", "--max-answer-tokens", "16"),
        *("--num-self-prompts", "4", "--steps", "30", "--seed", "7", "--threads", "1", *more),
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert cli.run(command(folder)) == 0
    return folder


def test_the_folder_is_the_published_layout(trained):
    tensors = load_file(trained / "out" / "model.safetensors")
    config = json.loads((trained / "out" / "config.json").read_text())
    hidden, heads, kv_heads, dim = 192, 6, 2, 32
    expected = {
        "fc": (hidden, 3 * hidden),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.self_attn.q_proj": (heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj": (kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.v_proj": (kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, heads * dim),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.mlp.gate_proj": (48, hidden),
        "midlayer.mlp.up_proj": (48, hidden),
        "midlayer.mlp.down_proj": (hidden, 48),
        "norm": (hidden,),
    }
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    d2t, t2d = tensors.pop("d2t"), tensors.pop("t2d")
    assert shapes == {f"{n}.weight": s for n, s in expected.items()} | {
        "d2t": (256,), "t2d": (1024,),
    }  # fmt: skip
    assert all(t.dtype == torch.bfloat16 for t in tensors.values())
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool
    assert torch.equal(torch.arange(256) + d2t, t2d.nonzero().flatten())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(LAYERS)
    assert (config["draft_vocab_size"], config["vocab_size"]) == (256, 1024)


def test_card_and_recipe_tell_how_it_came_about(trained):
    recipe = json.loads((trained / "out" / "training.json").read_text())
    assert recipe["recipe"]["eagle"]["layers"] == list(LAYERS)
    assert recipe["recipe"]["corpus"]["seed"] == 7
    assert recipe["figures"]["acceptance length, k = 5"] >= 1
    assert len(recipe["figures"]["acceptance by position"]) == 5
    card = (trained / "out" / "README.md").read_text()
    assert "`tiny`" in card and str(trained) not in card + json.dumps(recipe)


def test_the_figures_are_what_drafting_with_the_saved_head_gives(trained):
    """Every step of every held-out answer, drafted token by token from what was saved."""
    model, tokenizer = load("tiny")
    tensors = load_file(trained / "out" / "model.safetensors")
    d2t = torch.arange(256) + tensors["d2t"]
    rows = model.weights.head_rows(d2t).double()
    shape = ModelConfig.from_hf(json.loads((trained / "out" / "config.json").read_text()))
    named = {n: t.double() for n, t in tensors.items() if t.is_floating_point()}
    alone = Alone(named, model.weights.embedding.double(), shape)
    work = trained / "out.work" / "answers"
    source = FeatureSource(model, tokenizer, FeatureRequest(LAYERS, 0), work)
    greedy = [
        a
        for a in AnswerStore(work).load()
        if (a.tokens[a.num_prompt_tokens :] == a.top_ids[:, 0]).all()
    ]
    held_out = greedy[::32]
    accepted_at, steps, emitted = [0] * 5, 0, 0
    for answer in held_out:
        features = [alone.fuse(f.double()) for f in source.of([answer])[0]]
        tokens, at = answer.tokens.tolist(), answer.num_prompt_tokens + 1
        while at < len(tokens):
            cache = []
            for slot in range(at - 1):
                out, fed = alone.slot(features[slot], tokens[slot + 1], slot, cache)
            accepted, text = 0, tokens[:at]
            for depth in range(5):
                guess = int(d2t[(rows @ out).argmax()])
                if len(text) == len(tokens) or guess != tokens[len(text)]:
                    break
                accepted_at[depth] += 1
                accepted += 1
                text.append(guess)
                out, fed = alone.slot(fed, guess, len(text) - 2, cache)
            steps += 1
            emitted += min(accepted + 1, len(tokens) - at)
            at += min(accepted + 1, len(tokens) - at)
    figures = json.loads((trained / "out" / "training.json").read_text())["figures"]
    assert figures["held-out tokens"] == emitted
    assert figures["acceptance length, k = 5"] == pytest.approx(emitted / steps)
    assert figures["acceptance by position"] == pytest.approx([n / steps for n in accepted_at])


def test_the_command_again_goes_on_from_what_is_there(trained, capsys):
    weights = (trained / "out" / "model.safetensors").read_bytes()
    assert cli.run(command(trained)) == 0
    assert "0 tokens" in capsys.readouterr().err
    assert (trained / "out" / "model.safetensors").read_bytes() == weights
    assert cli.run(command(trained, "--label-weight", "0.5")) == 2
    assert "other settings (eagle)" in capsys.readouterr().err


def test_a_draft_models_corpus_will_do(trained, tmp_path, capsys):
    """It has no hidden states: they are computed, whether there is room for them or not."""
    assert cli.run(command(tmp_path, "--num-layers", "1", "--no-copying", kind="draft")) == 0
    assert not list(tmp_path.rglob("*.npy"))
    work = ("--work", str(tmp_path / "out.work"), "--out", str(tmp_path / "head"))
    capsys.readouterr()
    assert cli.run(command(tmp_path, *work, "--feature-cache-gb", "0.0002")) == 0
    shown = capsys.readouterr()
    assert "0 tokens" in shown.err and "tokens a step" in shown.out
    kept = sum(p.stat().st_size for p in tmp_path.rglob("*.npy"))
    assert 0 < kept <= 0.0002 * 2**30
    expected = (trained / "out" / "model.safetensors").read_bytes()
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == expected


def test_a_killed_command_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """Dropout included."""
    whole, cut, more = tmp_path / "whole", tmp_path / "cut", ("--dropout", "0.1", "--own-head")
    whole.mkdir()
    cut.mkdir()
    assert cli.run(command(whole, *more)) == 0
    look = head_run.HeadRun._on_step

    def kill(self, step, loss):
        look(self, step, loss)
        if step == 12:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(head_run.HeadRun, "_on_step", kill)
        clock = itertools.count(step=100)  # so that every step is saved
        patched.setattr("specfast.train.loop.time.monotonic", lambda: next(clock))
        assert cli.run(command(cut, *more)) == 130
    assert not (cut / "out").exists()
    assert cli.run(command(cut, *more)) == 0
    weights = [(f / "out" / "model.safetensors").read_bytes() for f in (whole, cut)]
    assert weights[0] == weights[1]
    tensors = load_file(cut / "out" / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (256, 192)


def test_it_learns(tmp_path, capsys):
    """The tiny target answers like prompts alike: after some hundred steps drafts are accepted."""
    assert cli.run(command(tmp_path, "--steps", "150", "--learning-rate", "0.01")) == 0
    figures = json.loads((tmp_path / "out" / "training.json").read_text())["figures"]
    assert figures["acceptance length, k = 5"] > 2
    assert "right" in capsys.readouterr().err


def test_chains_of_drafts_that_depend_on_the_text_alone():
    matches = [np.array([1, 1, 0, 1, 0], bool), np.array([], bool), np.array([1], bool)]
    chains = chains_of(matches, 3)
    assert chains[0].tolist() == [[1, 1, 0], [1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    found = chain_acceptance(chains)
    assert found == acceptance(matches, 3)
    assert (found.num_steps, found.num_tokens) == (3, 6)
    assert found.per_position == pytest.approx((1.0, 1 / 3, 0.0))


@pytest.mark.parametrize(
    "num_layers, layers", [(30, (2, 15, 27)), (6, (2, 3, 4)), (7, (2, 3, 4)), (4, LAYERS)]
)
def test_layers_are_spread(num_layers, layers):
    assert default_layers(num_layers) == layers
    EagleSettings(layers=default_layers(num_layers))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_targets_rotary_embedding_is_written_down(family):
    config_class, overrides = FAMILIES[family]
    rope = ModelConfig.from_hf(config_class(**(SIZES | overrides)).to_dict()).rope
    again = Rope.from_hf(rope_json(rope), 1.0, 128)
    assert torch.equal(again.table(64, 16), rope.table(64, 16))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--layers", "2,x"], "--layers must be numbers such as 2,15,27"),
        (["--layers", "3,1"], "layers must ascend"),
        (["--layers", "1,9"], "layers must lie in 0 to 4"),
        (["--unroll", "0"], "unroll must be an integer of at least 1"),
        (["--num-kv-heads", "4"], "must be a multiple of num_key_value_heads"),
        (["--context", "1"], "context must be an integer of at least 4"),
        (["--dropout", "1"], "dropout must lie in [0, 1)"),
        (["--feature-cache-gb", "-1"], "--feature-cache-gb must not be below 0"),
        (["--feature-cache-gb", "1e300"], "--feature-cache-gb must not be below 0, nor above 1e9"),
        (["--out", f"{__file__}/head"], "test_train_eagle.py is a file; give a folder"),
        (["--out", __file__], "test_train_eagle.py is a file; give a folder"),
    ],
)
def test_refusals(tmp_path, capsys, arguments, message):
    """Before anything is written."""
    assert cli.run(command(tmp_path, *arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.work").exists()
