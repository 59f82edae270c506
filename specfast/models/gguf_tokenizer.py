"""A tokenizer rebuilt from GGUF metadata, which holds the vocabulary but no tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from gguf.constants import TokenType
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from specfast.tokenizer import Tokenizer, set_template

_METASPACE = "\u2581"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# What text is cut by before merging, one pattern after another, by tokenizer.ggml.pre.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """ValueError for a kind of tokenizer, or a way of splitting text, that isn't known."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(metadata)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(metadata), True
    else:
        raise ValueError(
            f"GGUF tokenizer {kind!r} is not supported; 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece) are."
        )
    _add_special(backend, metadata)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {f"{short}_token": _named(metadata, name) for short, name in names.items()}
    special_tokens = {name: token for name, token in special.items() if token is not None}
    set_template(
        backend,
        special["bos_token"] if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None,
        special["eos_token"] if metadata.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    eos_token_ids = [token_id for token_id in ends if token_id is not None]
    return Tokenizer(
        backend, special_tokens, eos_token_ids, metadata.get("tokenizer.chat_template")
    )


def _byte_level(metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, bool]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    pre = _ALIASES.get(pre, pre)
    if pre not in _SPLITS:
        raise ValueError(
            f"GGUF pre-tokenizer {pre!r} is not supported; supported are {', '.join(_SPLITS)}. "
            "Use the model's Hugging Face folder instead."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    is_llama3 = pre == "llama-bpe"
    model = models.BPE(_vocabulary(metadata), merges, ignore_merges=is_llama3)
    backend = tokenizers.Tokenizer(model)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(text), "isolated") for text in _SPLITS[pre]]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell])
    backend.decoder = decoders.ByteLevel()
    return backend, is_llama3


def _sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    vocabulary, unknown = _vocabulary(metadata), _named(metadata, "unknown")
    model = models.BPE(
        vocabulary, _merges_of(vocabulary, metadata["tokenizer.ggml.scores"]),
        unk_token=unknown, fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", _METASPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_METASPACE), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace(_METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges_of(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose whole scores best: every split of every piece."""
    ranked = []
    for piece, token_id in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], token_id, left, right, piece, cut))
    return [(piece[:cut], piece[cut:]) for *_, piece, cut in sorted(ranked)]


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _named(metadata: Mapping[str, Any], name: str) -> str | None:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if token_id is None else metadata["tokenizer.ggml.tokens"][token_id]


def _add_special(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Control tokens are matched whole and skipped in output; user-defined ones only matched."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    for kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
        is_control = kind == TokenType.CONTROL
        backend.add_tokens(
            [
                tokenizers.AddedToken(token, normalized=False, special=is_control)
                for token, token_kind in zip(tokens, kinds)
                if token_kind == kind
            ]
        )
