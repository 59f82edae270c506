"""Folders and shards: the same weights give the same logits, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from specfast.models import loader
from specfast.models.loader import load, resolve
from tests.unit.exact import raw
from tests.unit.test_tokenizer import byte_level_backend
from tests.unit.tiny_models import oracle, prefill

TEXT = [(7 * i * i + 3 * i + 5) % 101 for i in range(41)]
LAYER = "model.layers.0.self_attn.q_proj.weight"


def logits(model):
    return prefill(model, TEXT, [len(TEXT)], list(range(11)))


def save(family: str, folder: Path, dtype=torch.float32, **options) -> Path:
    model = oracle(family, dtype).to(dtype)
    model.save_pretrained(folder, **options)
    backend = byte_level_backend()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save("llama3", tmp_path / "model")


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_folder_and_shards_give_the_same_logits(folder, tmp_path):
    model, tokenizer = load(str(folder))
    assert model.config.dtype == torch.float32
    assert tokenizer.eos_token_ids == {2, 262}
    shards = save("llama3", tmp_path / "shards", max_shard_size="60KB")
    assert len(list(shards.glob("*.safetensors"))) > 3
    assert raw(logits(load(str(shards))[0])) == raw(logits(model))
    next(shards.glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match="lacks the file model-00002"):
        load(str(shards))


@pytest.mark.parametrize(
    "stored, wanted, computed",
    [
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.bfloat16, "float32", torch.float32),
        (torch.float16, "auto", torch.float32),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
)
def test_dtypes(tmp_path, stored, wanted, computed):
    model = load(str(save("qwen2", tmp_path, stored)), wanted)[0]
    assert model.config.dtype == model.weights.arena.dtype == computed
    assert model.weights.final_norm.dtype == torch.float32


def test_auto_loses_nothing(tmp_path):
    folder = save("qwen2", tmp_path, torch.bfloat16)
    assert raw(logits(load(str(folder))[0])) == raw(logits(load(str(folder), "float32")[0]))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop(LAYER), f"has no tensor '{LAYER}' \\[64, 64\\]"),
        (lambda t: t.update({LAYER: torch.zeros(64, 60)}), f"'{LAYER}' has shape \\[64, 60\\]"),
        (lambda t: t.update(extra=torch.zeros(3)), "does not use, the first being 'extra'"),
        (lambda t: t.update({LAYER: torch.zeros(64, 64).int()}), f"'{LAYER}' is stored as I32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load(str(folder))


def test_leftovers_of_old_checkpoints_pass(tmp_path):
    folder = save("llama_tied", tmp_path)
    plain = logits(load(str(folder))[0])
    leftovers = {
        "lm_head.weight": torch.zeros(101, 64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    }
    rewrite(folder, lambda tensors: tensors.update(leftovers))
    assert raw(logits(load(str(folder))[0])) == raw(plain)


JSON_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[]", b"\xff\xfe"])
@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors"])
def test_broken_files_are_named(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is .*fetch or save it again"):
        load(str(folder))


def test_folder_without_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="save_pretrained"):
        load(str(folder))


def test_weights_without_a_tensor(folder):
    save_file({}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="has no tensor 'model.embed_tokens.weight'"):
        load(str(folder))


@pytest.mark.parametrize("name", ["no/such/folder", "model.gguf", "./gone", "owner/model.gguf"])
def test_names_that_stand_for_nothing(name):
    with pytest.raises(ValueError, match="no folder, no .gguf file, no hub id"):
        resolve(name)


def test_files_and_folders_that_hold_no_model(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="no .gguf"):
        resolve(str(tmp_path / "a.bin"))
    with pytest.raises(ValueError, match="no config.json and 0 .gguf files"):
        resolve(str(tmp_path))


def test_hub_ids_offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="owner/model is neither.*hf download owner/model"):
        resolve("owner/model")


def test_demo_is_found_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(loader.demo, "find", lambda: tmp_path / "demo.gguf")
    assert resolve("demo") == tmp_path / "demo.gguf"


def test_an_index_without_a_map(folder):
    for found in ("{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'):
        (folder / "model.safetensors.index.json").write_text(found)
        with pytest.raises(ValueError, match="weight_map"):
            load(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_folder_where_a_file_should_be(name, folder):
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} is no"):
        load(str(folder))
