from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specfast.detokenizer import byte_alphabet
from specfast.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, then a tab\tand\n\n3 newlines\n\n\n1. one\n2. two",
    "def f(x):\n    return x ** 2  # 3.14159, 1,000,000\n",
    "It's we'll they'd I'M \u2019s",
    "caf\u00e9 e\u0301 \u00bd\u00b2 \u0661\u0662\u0663 \u6f22\u5b57\u304b\u306a \ud55c\uad6d\uc5b4",
    "\U0001f642\U0001f44d\U0001f3fd\u200d\U0001f680 \u00a0\u2003x",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    'https://example.org/a?b=c&d=%20 {"k": [1, 2.5e-3, null]}',
]


def byte_level_backend() -> tokenizers.Tokenizer:
    """All bytes, a few merges, and added tokens spelled inside and outside the byte alphabet."""
    alphabet = sorted(byte_alphabet(), key=byte_alphabet().get)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("\u0120", "w"), ("\u00f0", "\u0141")]
    vocab = {token: i for i, token in enumerate([*alphabet, *map("".join, merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(["<tool call>", "\u6f22"])
    return backend


def sentencepiece_backend() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["\u2581", "a", "b", "\u2581a", "ab", "\u00e9", "\u2581\u2581"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581", "\u2581")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        + [decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


BYTE_LEVEL = Tokenizer(byte_level_backend(), {"bos_token": "<s>", "eos_token": "</s>"})
SENTENCEPIECE = Tokenizer(sentencepiece_backend(), {"bos_token": "<s>", "eos_token": "</s>"})
IDS = st.lists(st.integers(0, 300), max_size=60)


@given(IDS, st.booleans())
def test_byte_level_decode_is_that_of_tokenizers(ids, skip):
    assert BYTE_LEVEL.decode(ids, skip) == BYTE_LEVEL._backend.decode(ids, skip_special_tokens=skip)


@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "\u2581a",
                "ab",
                "\u2581",
                "\u2581\u2581",
                "<s>",
                "\u00e9",
                "\U0001f642",
                "\u6f22",
            ]
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_sentencepiece_decode_is_that_of_tokenizers(tokens, skip):
    """Characters outside the vocabulary as byte tokens; runs that are no UTF-8 are our own."""
    backend = SENTENCEPIECE._backend
    ids = []
    for token in tokens:
        known = backend.token_to_id(token)
        by_bytes = [backend.token_to_id(f"<0x{byte:02X}>") for byte in token.encode()]
        ids += by_bytes if known is None else [known]
    assert SENTENCEPIECE.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["bytes", "sentencepiece"])
@given(IDS, st.booleans())
def test_text_grows_and_ends_as_the_whole(tokenizer, ids, skip):
    """What was given out never changes: it is a prefix of every longer text, and never cut within
    a character.
    """
    detokenizer, text = tokenizer.detokenizer(skip), ""
    for count, token_id in enumerate(ids, 1):
        text += detokenizer.append(token_id)
        assert tokenizer.decode(ids[:count], skip).startswith(text)
        assert tokenizer.decode(ids, skip).startswith(text)
    assert text + detokenizer.flush() == tokenizer.decode(ids, skip)


@given(st.text(max_size=40))
def test_valid_text_comes_back_without_replacement(text):
    detokenizer = BYTE_LEVEL.detokenizer()
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    pieces = [detokenizer.append(token_id) for token_id in ids]
    assert detokenizer.flush() == ""
    skipped = [token for token in ("<s>", "</s>") if token in text]
    assert skipped or "".join(pieces) == text


def test_an_emoji_appears_when_its_last_byte_does():
    detokenizer = SENTENCEPIECE.detokenizer()
    ids = [SENTENCEPIECE._backend.token_to_id(f"<0x{byte:02X}>") for byte in "\U0001f642".encode()]
    assert [detokenizer.append(token_id) for token_id in ids] == ["", "", "", "\U0001f642"]
    assert detokenizer.flush() == ""


def test_half_a_character_is_refused_as_a_prompt():
    with pytest.raises(ValueError, match=r"at character 3 \('\\udce9'\); give UTF-8"):
        Tokenizer(byte_level_backend(), {}).encode(b"caf\xe9".decode(errors="surrogateescape"))


def test_bytes_that_are_no_utf8_are_replaced():
    ids = [255, 104]
    assert BYTE_LEVEL.decode(ids) == "\ufffdh"
    half = BYTE_LEVEL.encode("\U0001f642", add_special_tokens=False)[:-1]
    assert BYTE_LEVEL.decode(half) == "\ufffd"


def test_special_tokens_are_skipped_or_not():
    ids = BYTE_LEVEL.encode("he<s>llo<tool call></s>", add_special_tokens=False)
    assert BYTE_LEVEL.decode(ids) == "hello<tool call>"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "he<s>llo<tool call></s>"
    assert (BYTE_LEVEL.bos_token_id, BYTE_LEVEL.eos_token_ids) == (261, {262})


def test_ids_past_the_vocabulary_have_no_text():
    """Models round their vocabulary up."""
    assert BYTE_LEVEL.decode([BYTE_LEVEL.vocab_size, 10**6, 104]) == "h"


def test_an_unknown_decoder_is_refused():
    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece"):
        Tokenizer(backend, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(tmp_path)
    return tmp_path


def edit(path: Path, **values) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def assert_like_transformers(folder: Path) -> Tokenizer:
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*TEXTS, "he<s>llo<extra> x"]:
        for special in (True, False):
            expected = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == expected
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    return ours


def test_folder(folder):
    assert assert_like_transformers(folder).encode("h") == [261, 104]


def test_tokenizer_json_decides_what_is_added(folder):
    """As in transformers 5, where these two keys only matter without a tokenizer.json."""
    edit(folder / "tokenizer_config.json", add_bos_token=False, add_eos_token=True)
    assert assert_like_transformers(folder).encode("h") == [261, 104]


def test_folder_with_tokens_beside_tokenizer_json(folder):
    entry = {
        "content": "<extra>",
        "special": True,
        "lstrip": True,
        "rstrip": False,
        "single_word": False,
        "normalized": False,
    }
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"265": entry})
    ours = assert_like_transformers(folder)
    assert ours.encode("h <extra>", add_special_tokens=False) == [104, 265]
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"300": entry})
    with pytest.raises(ValueError, match="'<extra>' the id 300"):
        Tokenizer.from_folder(folder)


def test_special_tokens_written_as_dicts(folder):
    edit(folder / "tokenizer_config.json", eos_token={"content": "</s>", "special": True})
    assert Tokenizer.from_folder(folder).eos_token_id == 262


@pytest.mark.parametrize("eos, expected", [(5, {5, 262}), ([5, 6], {5, 6, 262}), (None, {9, 262})])
def test_eos_ids_come_from_generation_config_first(folder, eos, expected):
    edit(folder / "config.json", eos_token_id=9)
    edit(folder / "generation_config.json", **({} if eos is None else {"eos_token_id": eos}))
    assert Tokenizer.from_folder(folder).eos_token_ids == expected


def test_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("form", ["config", "named", "file"])
def test_where_a_chat_template_lies(folder, form):
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    if form == "file":
        (folder / "chat_template.jinja").write_text(template)
    else:
        value = template if form == "config" else named
        edit(folder / "tokenizer_config.json", chat_template=value)
    prompt = Tokenizer.from_folder(folder).chat_prompt([{"role": "user", "content": "hi"}])
    assert prompt == "<s>user: hi"


def test_no_chat_template(folder):
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.from_folder(folder).chat_prompt([{"role": "user", "content": "hi"}])
