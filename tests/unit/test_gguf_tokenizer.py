from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from specfast.detokenizer import byte_alphabet
from specfast.models.gguf import GgufFile
from specfast.models.gguf_tokenizer import gguf_tokenizer
from specfast.tokenizer import Tokenizer
from tests.unit.test_tokenizer import TEXTS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SCORES = {
    "\u2581": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "\u00e9": -5.0, "ab": -6.5, "bc": -6.0,
    "\u2581a": -7.0, "abc": -8.0, "\u2581ab": -8.5, "\u2581\u2581": -9.0, "\u2581abc": -9.5,
}  # fmt: skip


def sentencepiece_metadata(**overrides):
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "<tool>": USER_DEFINED}
    kinds = (
        special | {f"<0x{byte:02X}>": BYTE for byte in range(256)} | dict.fromkeys(SCORES, NORMAL)
    )
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(kinds),
        "tokenizer.ggml.scores": [SCORES.get(token, 0.0) for token in kinds],
        "tokenizer.ggml.token_type": list(kinds.values()),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in overrides.items()}


def joined_by_score(text: str) -> list[str]:
    """SentencePiece's own rule: join the best-scoring neighbours, the leftmost of equals."""
    symbols = list(text)
    while True:
        scored = [
            (SCORES[left + right], -at)
            for at, (left, right) in enumerate(zip(symbols, symbols[1:]))
            if left + right in SCORES
        ]
        if not scored:
            return symbols
        at = -max(scored)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def in_bytes(symbols: list[str]) -> list[str]:
    pieces = []
    for symbol in symbols:
        spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        pieces += [symbol] if symbol in SCORES else spelled
    return pieces


@given(st.text("abc \u00e9\u6f22x", max_size=20))
def test_sentencepiece_joins_by_score(text):
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokenizer = gguf_tokenizer(metadata)
    escaped = "\u2581" + text.replace(" ", "\u2581") if text else ""
    ids = tokenizer.encode(text)
    assert [tokens[i] for i in ids] == ["<s>", *in_bytes(joined_by_score(escaped))]
    assert tokenizer.decode(ids) == text


def test_sentencepiece_flags():
    plain = gguf_tokenizer(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False))
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in plain.encode("ab abc")] == ["ab", "\u2581abc"]
    assert plain.decode(plain.encode(" ab")) == " ab"
    ended = gguf_tokenizer(sentencepiece_metadata(add_eos_token=True))
    assert [tokens[i] for i in ended.encode("<tool>a")] == ["<s>", "<tool>", "\u2581a", "</s>"]


def byte_level_metadata(**overrides):
    tokens = [*byte_alphabet(), "\u0120\u0120", "12", "<|end|>", "<|turn|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 2) + [CONTROL] * 2,
        "tokenizer.ggml.merges": ["\u0120 \u0120", "1 2"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in overrides.items()}


@pytest.mark.parametrize(
    "pre, pieces",
    [
        ("smollm", "a \u0120\u0120 1 2 1 2"),
        ("gpt-2", "a \u0120 \u0120 12 12"),
        ("llama-bpe", "a \u0120 \u0120 12 1 2"),
        ("qwen2", "a \u0120 \u0120 1 2 1 2"),
        ("default", "a \u0120 \u0120 12 1 2"),
    ],
)
def test_pre_tokenizers_cut_before_merging(pre, pieces):
    metadata = byte_level_metadata(pre=pre, bos_token_id=258)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = gguf_tokenizer(metadata).encode("a  1212", add_special_tokens=False)
    assert [tokens[i] for i in ids] == pieces.split()


def test_byte_level_flags():
    tokenizer = gguf_tokenizer(byte_level_metadata(pre="qwen2", bos_token_id=259, eot_token_id=259))
    assert tokenizer.eos_token_ids == {258, 259}
    assert tokenizer.encode("<|turn|>") == [259]
    with_bos = byte_level_metadata(pre="llama-bpe", bos_token_id=259)
    assert gguf_tokenizer(with_bos).encode("<|end|>") == [259, 258]
    with_bos["tokenizer.ggml.add_bos_token"] = False
    assert gguf_tokenizer(with_bos).encode("<|end|>") == [258]


@pytest.mark.parametrize(
    "overrides, named", [({"model": "bert"}, "'bert'"), ({"pre": "tekken"}, "'tekken'")]
)
def test_unknown_kinds_are_refused(overrides, named):
    with pytest.raises(ValueError, match=named):
        gguf_tokenizer(byte_level_metadata(**overrides))


@pytest.fixture(scope="module")
def demo_tokenizer(demo_path: Path) -> Tokenizer:
    return gguf_tokenizer(GgufFile(demo_path).metadata)


def test_demo_encodes_as_transformers_does(demo_path, demo_tokenizer):
    """Once it cuts text as the file says: transformers does not know 'smollm', and keeps numbers
    whole.
    """
    theirs = AutoTokenizer.from_pretrained(demo_path.parent, gguf_file=demo_path.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    for text in TEXTS + sources:
        ids = demo_tokenizer.encode(text)
        assert ids == theirs.encode(text)
        assert demo_tokenizer.decode(ids, skip_special_tokens=False) == text
    assert demo_tokenizer.chat_prompt([{"role": "user", "content": "Hi"}]) == (
        theirs.apply_chat_template(
            [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
        )
    )
    assert demo_tokenizer.eos_token_ids == {theirs.eos_token_id}


@settings(max_examples=50)
@given(st.lists(st.integers(0, 49151), max_size=60), st.booleans())
def test_demo_detokenizes_as_tokenizers_decodes(demo_tokenizer, ids, skip):
    detokenizer = demo_tokenizer.detokenizer(skip)
    text = "".join(map(detokenizer.append, ids)) + detokenizer.flush()
    assert text == demo_tokenizer._backend.decode(ids, skip_special_tokens=skip)
