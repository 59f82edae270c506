"""What is trained is what is served: saved folders load here and in transformers, logits agree."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specfast.models.config import ModelConfig
from specfast.models.loader import load, load_draft
from specfast.train.card import Card, save_folder
from specfast.train.mtp import MtpStudent
from specfast.train.student import Student, llama_config
from tests.unit.tiny_models import prefill

TEXT = [(7 * i * i + 3 * i + 5) % 101 for i in range(21)]
D2T = torch.arange(3, 101, 2, dtype=torch.int32)
T2D = torch.arange(101, dtype=torch.int32) % len(D2T)
CARD = Card("a model", "For tests.", "none", {}, {})


def config(**others):
    sizes = {
        "vocab_size": 101, "hidden_size": 48, "num_layers": 2, "head_dim": 16, "num_kv_heads": 1,
        "intermediate_size": 80, "context": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    return llama_config(**sizes | others)


def student_of(config, kind=Student, **maps):
    torch.manual_seed(5)
    return kind(ModelConfig.from_hf(config), **maps).eval()


def save(student, config, folder, dtype=torch.float32):
    save_folder(folder, student.tensors(dtype), config, CARD)
    return folder


@torch.no_grad()
def logits_of(student, tokens):
    return student.logits(student(torch.tensor([tokens])))[0]


def served(model, tokens):
    return prefill(model, tokens, [len(tokens)], list(range(16)))


@pytest.mark.parametrize(
    "others, maps",
    [
        ({}, {}),
        ({"context": 21, "max_position_embeddings": 64}, {}),
        ({"draft_vocab_size": len(D2T)}, {"d2t": D2T, "t2d": T2D}),
        ({"draft_vocab_size": len(D2T), "tie_word_embeddings": False}, {"d2t": D2T}),
    ],
    ids=["whole", "window", "reduced", "reduced_untied"],
)
def test_the_native_decoder_gives_the_students_logits(tmp_path, others, maps):
    values = config(**others)
    student = student_of(values, **maps)
    model = load_draft(str(save(student, values, tmp_path)))
    wanted = logits_of(student, TEXT)
    assert wanted.shape == (21, model.config.head_size)
    assert (served(model, TEXT) - wanted).abs().max() < 1e-4 * wanted.abs().max()
    d2t = model.weights.d2t
    assert d2t is None if not maps else torch.equal(d2t, D2T)
    assert len(model.weights.embedding) == 101


def test_a_window_forgets_what_lies_before_it(tmp_path):
    """Past its context a windowed draft still gives logits; one layer sees the window alone."""
    values = config(num_layers=1, context=8, max_position_embeddings=64)
    student = student_of(values)
    model = load_draft(str(save(student, values, tmp_path)))
    assert set(model.config.windows) == {8}
    wanted = logits_of(student, TEXT[-8:])[-1]
    assert (served(model, TEXT)[-1] - wanted).abs().max() < 1e-4 * wanted.abs().max()
    with pytest.raises(AssertionError, match="window"):
        student(torch.tensor([TEXT]))


def test_bfloat16_folders_hold_the_rounded_weights(tmp_path):
    values = config() | {"dtype": "bfloat16"}
    student = student_of(values)
    model = load_draft(str(save(student, values, tmp_path, torch.bfloat16)))
    assert model.config.dtype == torch.bfloat16
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.copy_(parameter.bfloat16())
    wanted = logits_of(student, TEXT)
    exact = load_draft(str(tmp_path), "float32")
    assert (served(exact, TEXT) - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("context", [64, 8], ids=["llama", "mistral"])
def test_transformers_reads_the_folder(tmp_path, context):
    values = config(context=context)
    student = student_of(values)
    save(student, values, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    text = TEXT[: min(context, len(TEXT))]
    with torch.no_grad():
        found = theirs(torch.tensor([text])).logits[0]
    assert (found - logits_of(student, text)).abs().max() < 1e-4


def test_an_mtp_block_stands_beside_the_decoder(tmp_path):
    values = config(num_nextn_predict_layers=1)
    student = student_of(values, MtpStudent)
    folder = save(student, values, tmp_path)
    names = [n for n in load_file(folder / "model.safetensors") if "mtp" in n]
    prefix = "model.mtp_layers.0."
    assert len(names) == 13 and all(n.startswith(prefix) for n in names)
    for part in ("hidden_layernorm", "token_layernorm", "input_proj", "final_layernorm"):
        assert f"{prefix}{part}.weight" in names
    model = load_draft(str(folder))
    assert model.config.num_nextn_predict_layers == 1
    wanted = logits_of(student, TEXT)
    assert (served(model, TEXT) - wanted).abs().max() < 1e-4 * wanted.abs().max()
    (folder / "config.json").write_text(json.dumps(config()))
    with pytest.raises(ValueError, match="13 tensors that a llama model does not use"):
        load_draft(str(folder))


def test_the_mtp_block_sees_the_hidden_state_and_the_next_token_only(tmp_path):
    student = student_of(config(num_nextn_predict_layers=1), MtpStudent)
    with torch.no_grad():
        logits, ahead = student.both(torch.tensor([TEXT]))
        changed = torch.tensor([TEXT])
        changed[0, 10] = (changed[0, 10] + 1) % 101
        _, moved = student.both(changed)
    assert logits.shape == (1, 21, 101) and ahead.shape == (1, 20, 101)
    differs = (ahead != moved).any(-1)[0]
    assert not differs[:9].any() and differs[9:].all()


def test_a_reduced_draft_is_no_target(tmp_path):
    values = config(draft_vocab_size=len(D2T))
    save(student_of(values, d2t=D2T, t2d=T2D), values, tmp_path)
    with pytest.raises(ValueError, match="is a draft model: it knows 49 of"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["d2t"].__setitem__(4, 101),
        lambda t: t["d2t"].__setitem__(4, int(t["d2t"][3])),
        lambda t: t["t2d"].__setitem__(4, len(D2T)),
        lambda t: t["t2d"].__setitem__(4, -1),
    ],
    ids=["d2t beyond the vocabulary", "d2t twice", "t2d beyond the rows", "t2d negative"],
)
def test_wrong_maps_are_refused(tmp_path, change):
    values = config(draft_vocab_size=len(D2T))
    save(student_of(values, d2t=D2T, t2d=T2D), values, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="must hold ids below"):
        load_draft(str(tmp_path))


def test_a_missing_map_is_named(tmp_path):
    values = config(draft_vocab_size=len(D2T))
    save(student_of(values, d2t=D2T, t2d=T2D), values, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "d2t"}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has no tensor 'd2t' \\[49\\]"):
        load_draft(str(tmp_path))
