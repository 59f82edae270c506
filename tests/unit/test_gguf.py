"""GGUF files written here, by ggml's conventions, against the weights they were written from."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import PreTrainedModel

from specfast.detokenizer import byte_alphabet
from specfast.models.decoder import Model
from specfast.models.gguf import GgufFile
from specfast.models.loader import load
from specfast.models.weights import read_weights
from tests.unit.exact import raw
from tests.unit.tiny_models import DictCheckpoint, native, oracle, prefill

TEXT = [(7 * i * i + 3 * i + 5) % 101 for i in range(41)]
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "embed_tokens": "token_embd", "norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip


def logits(model: Model) -> torch.Tensor:
    return prefill(model, TEXT, [len(TEXT)], list(range(11)))


def ggml_name(name: str) -> str:
    layer = ""
    if name.startswith("model.layers."):
        _, _, index, name = name.split(".", 3)
        layer = f"blk.{index}."
    middle, kind = name.removeprefix("model.").rsplit(".", 1)
    return f"{layer}{NAMES[middle]}.{kind}"


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Row 2 i of a head from its first half, row 2 i + 1 from its second."""
    heads = weight.reshape(num_heads, -1, *weight.shape[1:])
    half = heads.shape[1] // 2
    out = np.empty_like(heads)
    out[:, 0::2], out[:, 1::2] = heads[:, :half], heads[:, half:]
    return out.reshape(weight.shape)


def tensors_of(model: PreTrainedModel, arch: str) -> dict[str, np.ndarray]:
    heads = {
        "attn_q.": model.config.num_attention_heads,
        "attn_k.": model.config.num_key_value_heads,
    }
    tied = model.config.tie_word_embeddings
    tensors = {}
    for name, tensor in model.state_dict().items():
        own, values = ggml_name(name), tensor.numpy()
        for part, num_heads in heads.items():
            if part in own and arch in ("llama", "smollm3"):
                values = interleaved(values, num_heads)
        if not (tied and own == "output.weight"):
            tensors[own] = values
    return tensors


def metadata_of(model: PreTrainedModel, arch: str) -> dict[str, Any]:
    c = model.config
    return {
        f"{arch}.context_length": c.max_position_embeddings,
        f"{arch}.embedding_length": c.hidden_size,
        f"{arch}.feed_forward_length": c.intermediate_size,
        f"{arch}.block_count": c.num_hidden_layers,
        f"{arch}.attention.head_count": c.num_attention_heads,
        f"{arch}.attention.head_count_kv": c.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        f"{arch}.rope.freq_base": c.rope_parameters["rope_theta"],
        f"{arch}.vocab_size": c.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*byte_alphabet()][:100] + ["ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 2,
    }


def write(path: Path, arch: str, metadata: dict, tensors: dict, kind: Kind = Kind.F32) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           str: writer.add_string, list: writer.add_array}  # fmt: skip
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, values in tensors.items():
        stored = kind if values.ndim == 2 and values.shape[1] % 32 == 0 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


HEADS_OF_32 = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}


@pytest.mark.parametrize(
    "family, arch, own",
    [
        ("llama2", "llama", {"rope.dimension_count": 16}),
        ("llama_linear", "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("llama_yarn", "llama", YARN),
        ("llama_biases", "llama", {}),
        ("llama_tied", "llama", HEADS_OF_32),
        ("mistral", "llama", {"attention.sliding_window": 7}),
        ("qwen2", "qwen2", {"rope.scaling.type": "none"}),
        ("qwen3", "qwen3", HEADS_OF_32),
        ("smollm3", "smollm3", {}),
    ],
)
def test_the_same_logits_as_the_weights_it_came_from(family, arch, own, tmp_path):
    model = oracle(family)
    metadata = metadata_of(model, arch) | {f"{arch}.{key}": value for key, value in own.items()}
    loaded, tokenizer = load(
        str(write(tmp_path / "m.gguf", arch, metadata, tensors_of(model, arch)))
    )
    assert loaded.config.dtype == torch.float32
    assert raw(logits(loaded)) == raw(logits(native(model)))
    assert tokenizer.encode("ab") == [100]


def test_llama3_scaling_comes_as_divisors(tmp_path):
    model = oracle("llama3")
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    tensors = tensors_of(model, "llama") | {"rope_freqs.weight": factors.astype(np.float32)}
    metadata = metadata_of(model, "llama")
    loaded, _ = load(str(write(tmp_path / "m.gguf", "llama", metadata, tensors)))
    torch.testing.assert_close(logits(loaded), logits(native(model)), rtol=0, atol=1e-4)
    assert max(loaded.config.rope.freq_factors) > 3.9


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.BF16, Kind.F16])
def test_quantised(kind, tmp_path, caplog):
    """auto: bf16, said in one line where it was quantised; both dtypes hold what gguf's own
    dequantisation gives.
    """
    model = oracle("qwen2")
    tensors = tensors_of(model, "qwen2")
    path = write(tmp_path / "m.gguf", "qwen2", metadata_of(model, "qwen2"), tensors, kind)
    file = GgufFile(path)
    state = {name: file.tensor(ggml_name(name)).float() for name in model.state_dict()}
    for dtype in ("float32", "auto"):
        with caplog.at_level(logging.INFO, "specfast"):
            loaded, _ = load(str(path), dtype)
        expected = Model(loaded.config, read_weights(loaded.config, DictCheckpoint(state)))
        assert raw(logits(loaded)) == raw(logits(expected))
    is_plain = kind == Kind.F16
    assert loaded.config.dtype == (torch.float32 if is_plain else torch.bfloat16)
    assert len(caplog.records) == (kind not in (Kind.F16, Kind.BF16))


def refused(tmp_path: Path, metadata: dict, tensors: dict, arch: str = "llama") -> str:
    with pytest.raises(ValueError) as caught:
        load(str(write(tmp_path / "m.gguf", arch, metadata, tensors)))
    return str(caught.value)


@pytest.fixture(scope="module")
def llama() -> tuple[dict, dict]:
    model = oracle("llama2")
    return metadata_of(model, "llama"), tensors_of(model, "llama")


@pytest.mark.parametrize(
    "key, value",
    [
        ("expert_count", 8),
        ("attention.causal", False),
        ("rope.dimension_count", 8),
        ("attention.value_length", 8),
        ("attention.clamp_kqv", 8.0),
        ("rope.scaling.attn_factor", 2.0),
        ("rope.scaling.yarn_log_multiplier", 0.5),
        ("final_logit_softcapping", 30.0),
    ],
)
def test_metadata_that_changes_the_forward_pass_is_refused_by_name(key, value, llama, tmp_path):
    metadata, tensors = llama
    message = refused(tmp_path, metadata | {f"llama.{key}": value}, tensors)
    assert f"{key} = {value!r}" in message


def test_unknown_metadata_warns(llama, tmp_path):
    metadata, tensors = llama
    path = write(tmp_path / "m.gguf", "llama", metadata | {"llama.mood": 3}, tensors)
    with pytest.warns(UserWarning, match="mood"):
        load(str(path))


def test_missing_extra_and_misshapen_tensors_are_named(llama, tmp_path):
    metadata, tensors = llama
    norm = "blk.1.attn_norm.weight"
    without = {name: values for name, values in tensors.items() if name != norm}
    assert "'model.layers.1.input_layernorm.weight'" in refused(tmp_path, metadata, without)
    short = tensors | {norm: np.zeros(60, np.float32)}
    assert "has shape [60]" in refused(tmp_path, metadata, short)
    extra = tensors | {"blk.1.attn_sinks": np.zeros(4, np.float32)}
    assert "'blk.1.attn_sinks'" in refused(tmp_path, metadata, extra)
    factors = tensors | {"rope_freqs.weight": np.zeros(4, np.float32)}
    assert "'rope_freqs.weight' has shape [4]" in refused(tmp_path, metadata, factors)


def test_a_type_that_cannot_be_dequantised_is_named(tmp_path):
    name = "blk.0.attn_q.weight"
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor(name, np.zeros((64, 64), np.int8))
    finish(writer)
    with pytest.raises(ValueError, match=f"'{name}' is quantised as I8"):
        GgufFile(tmp_path / "m.gguf").tensor(name)


def test_what_every_file_must_have(llama, tmp_path):
    metadata, tensors = llama
    without = {key: value for key, value in metadata.items() if "head_count" not in key}
    assert "lacks attention.head_count" in refused(tmp_path, without, tensors)
    headless = {name: values for name, values in tensors.items() if "token_embd" not in name}
    assert "'token_embd.weight'" in refused(tmp_path, metadata, headless)


def test_architectures_and_parts(llama, tmp_path):
    metadata, tensors = llama
    assert "'gemma'" in refused(tmp_path, metadata, tensors, arch="gemma")
    assert "one part of several" in refused(tmp_path, metadata | {"split.count": 2}, tensors)


# A key with its value's type, a tensor's name with rank, shape and type; and with a type that there
# isn't.
BLOCK_COUNT, UNKNOWN_VALUE = (b"llama.block_count" + struct.pack("<I", t) for t in (4, 99))
NORM, UNKNOWN_NORM = (b"output_norm.weight" + struct.pack("<IQI", 1, 64, t) for t in (0, 99))


def test_broken_files(llama, tmp_path):
    path = write(tmp_path / "m.gguf", "llama", *llama)
    content = path.read_bytes()
    for broken, message in [
        (b"GGML" + content[4:], "not a GGUF file"),
        (content[:4] + b"\x01" + content[5:], "version 1"),
        (content[: len(content) // 2], "cut short"),
        (content[:200], "cut short"),
        (content[:6], "cut short"),
        (b"", "is empty"),
        (content.replace(BLOCK_COUNT, UNKNOWN_VALUE), "type 99, which is no GGUFValueType"),
        (content.replace(NORM, UNKNOWN_NORM), "type 99, which is no GGMLQuantizationType"),
    ]:
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=message):
            load(str(path))


def test_every_value_type_is_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    values = {
        "u8": (writer.add_uint8, 200), "i8": (writer.add_int8, -5),
        "u16": (writer.add_uint16, 60000), "i16": (writer.add_int16, -5),
        "u32": (writer.add_uint32, 2**32 - 1),
        "i32": (writer.add_int32, -5), "u64": (writer.add_uint64, 2**63),
        "i64": (writer.add_int64, -5), "f32": (writer.add_float32, 0.5),
        "f64": (writer.add_float64, 0.1), "b": (writer.add_bool, True),
        "s": (writer.add_string, "caf\u00e9"), "strings": (writer.add_array, ["a", ""]),
        "ints": (writer.add_array, [1, -2]), "nested": (writer.add_array, [[1, 2], [3]]),
    }  # fmt: skip
    for key, (add, value) in values.items():
        add(key, value)
    finish(writer)
    metadata = GgufFile(tmp_path / "m.gguf").metadata
    assert {key: metadata[key] for key in values} == {k: value for k, (_, value) in values.items()}


def test_the_demo_knows_the_capital_of_france(demo_path):
    model, tokenizer = load(str(demo_path))
    prompt = tokenizer.chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    blocks = list(range(-(-len(ids) // 4)))
    first = prefill(model, ids, [len(ids)], blocks)[-1].argmax().item()
    assert tokenizer.decode([first]) == "The"
