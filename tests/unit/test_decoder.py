"""The native decoder against transformers' own models, and against itself, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specfast import ops
from tests.unit.exact import raw
from tests.unit.tiny_models import (
    FAMILIES,
    native,
    new_cache,
    oracle,
    prefill,
    tail_rows,
)

# Both sides compute in float32, in different orders; the logits of these models are around 10.
TOLERANCE = 1e-4

TEXT = [(7 * i * i + 3 * i + 5) % 101 for i in range(41)]
BLOCKS = list(range(11))


def same_bytes(a, b):
    assert raw(a) == raw(b)


def reference_logits(model, token_ids):
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers(family):
    model = oracle(family)
    logits = prefill(native(model), TEXT, [len(TEXT)], BLOCKS)
    torch.testing.assert_close(logits, reference_logits(model, TEXT), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_bf16_weights_are_computed_with_in_float32(family):
    model = oracle(family, torch.bfloat16)
    logits = prefill(native(model, torch.bfloat16), TEXT, [len(TEXT)], BLOCKS)
    torch.testing.assert_close(logits, reference_logits(model, TEXT), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "field, other",
    [("windows", (0, 0, 0, 0)), ("rotary_layers", (True,) * 4)],
)
def test_the_tolerance_sees_a_layer_treated_wrongly(field, other):
    model = oracle("smollm3_windows")
    wrong = native(model)
    wrong = type(wrong)(replace(wrong.config, **{field: other}), wrong.weights)
    difference = prefill(wrong, TEXT, [len(TEXT)], BLOCKS) - reference_logits(model, TEXT)
    assert difference.abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2_windows", "qwen3", "smollm3"])
def test_chunked_prefill_gives_the_same_bytes(family):
    model = native(oracle(family))
    whole = prefill(model, TEXT, [len(TEXT)], BLOCKS)
    scattered = [17, 3, 9, 0, 12, 5, 14, 7, 1, 10, 2]
    same_bytes(prefill(model, TEXT, [3, 17, 1, 1, 6, 13], scattered), whole)
    same_bytes(prefill(model, TEXT, [1] * len(TEXT), BLOCKS), whole)


def test_draft_nodes_give_the_bytes_of_plain_rows():
    """Two children of one root: the second's logits are those of the text that goes its way."""
    model = native(oracle("mistral"))
    plain = prefill(model, TEXT, [len(TEXT)], BLOCKS)
    base = len(TEXT) - 1
    cache = new_cache(model)
    model.forward(tail_rows(TEXT[:base], 0, BLOCKS), cache)
    rows = tail_rows([50, TEXT[base]], base, BLOCKS)
    rows = replace(
        rows,
        positions=torch.tensor([base, base], dtype=torch.int32),
        node_bits=torch.tensor([1, 2]),
        node_base=torch.tensor([base], dtype=torch.int32),
    )
    hidden = model.forward(rows, cache)
    same_bytes(model.logits(hidden, torch.tensor([1])), plain[-1:])


def test_two_sequences_in_one_forward():
    model = native(oracle("llama3"))
    a, b = tail_rows(TEXT, 0, BLOCKS), tail_rows(TEXT[:9], 0, [11, 12, 13])
    table = torch.zeros(2, len(BLOCKS), dtype=torch.int32)
    table[0], table[1, :3] = a.block_tables[0], b.block_tables[0]
    joint = {
        name: torch.cat([getattr(a, name), getattr(b, name)])
        for name in vars(a)
        if name not in ("qo_indptr", "block_tables")
    }
    indptr = torch.tensor([0, len(TEXT), len(TEXT) + 9], dtype=torch.int32)
    rows = type(a)(qo_indptr=indptr, block_tables=table, **joint)
    hidden = model.forward(rows, new_cache(model))
    logits = model.logits(hidden, torch.tensor([len(TEXT) - 1, len(TEXT) + 8]))
    whole = prefill(model, TEXT, [len(TEXT)], BLOCKS)
    same_bytes(logits, whole[[len(TEXT) - 1, 8]])


@pytest.mark.parametrize("layers", [(0,), (1, 4), (0, 1, 2, 3, 4), (3,), ()])
def test_features_are_the_hidden_states_as_transformers_numbers_them(layers):
    model = oracle("llama2")
    ours = native(model)
    assert ours.config.num_layers == 4
    rows = tail_rows(TEXT, 0, BLOCKS)
    hidden, features = ours.forward_with_features(rows, new_cache(ours), layers)
    same_bytes(hidden, ours.forward(rows, new_cache(ours)))
    with torch.no_grad():
        states = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    assert features.shape == (len(TEXT), len(layers) * ours.config.hidden_size)
    for layer, found in zip(layers, features.split(ours.config.hidden_size, 1)):
        torch.testing.assert_close(found, states[layer][0], rtol=0, atol=TOLERANCE)


def test_non_finite_keys_set_the_row_status():
    model = oracle("llama2")
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = float("inf")
    ours = native(model)
    rows = tail_rows([5, 9, 6], 0, BLOCKS)
    cache = new_cache(ours)
    ours.forward(rows, cache)
    assert rows.status[0] == 0 and rows.status[1] != 0
    assert torch.isfinite(cache).all()


def test_bfloat16_cache():
    model = oracle("llama2")
    ours = native(model)
    assert ours.kv_dtype("auto") == torch.float32
    cache = new_cache(ours, dtype=ours.kv_dtype("bfloat16"))
    hidden = ours.forward(tail_rows(TEXT, 0, BLOCKS), cache)
    logits = ours.logits(hidden, torch.arange(len(TEXT)))
    difference = (logits - reference_logits(model, TEXT)).abs()
    assert TOLERANCE < difference.max() < 1.0


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda args: args[0].pop(), "scratch: must be 8 tensors"),
        (lambda args: args[1].pop(), "weights, kv_caches: must hold 13 and 1 tensors a window"),
        (lambda args: args[1].__setitem__(14, None), "weights: entry 14 is missing"),
        (lambda args: args[2].pop(), "rows: must be 9 tensors"),
        (lambda args: args[0].__setitem__(1, torch.empty(3, 5)), "out: shape must be"),
    ],
)
def test_decoder_layers_refuses_what_does_not_fit(change, message, monkeypatch):
    model = native(oracle("llama2"))
    caught = []
    monkeypatch.setattr(ops, "decoder_layers", lambda *args: caught.extend(args))
    model.forward(tail_rows(TEXT[:3], 0, BLOCKS), new_cache(model))
    monkeypatch.undo()
    torch.library.opcheck(torch.ops.specfast.decoder_layers.default, tuple(caught))
    change(caught)
    with pytest.raises(RuntimeError, match=message):
        ops.decoder_layers(*caught)
