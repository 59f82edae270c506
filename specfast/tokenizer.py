"""The model's tokenizer: text to ids, ids to text, messages to a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from specfast.chat_template import ChatTemplate
from specfast.detokenizer import Detokenizer, Pieces
from specfast.validation import read_object

_PADDING = re.compile(r"\[PAD\d+\]")  # GGUF's names for rows that only round a vocabulary up
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """special_tokens: the model's named ones (bos_token, eos_token, ...), as text.

    eos_token_ids: every id that ends a text, eos_token_id (the tokenizer's own) among them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        eos_token_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template and ChatTemplate(chat_template, special_tokens)
        self._pieces = {skip: Pieces(backend, skip) for skip in (True, False)}
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._id_of(special_tokens.get("bos_token"))
        self.eos_token_id = self._id_of(special_tokens.get("eos_token"))
        own = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids = frozenset((*own, *eos_token_ids))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From a Hugging Face folder's tokenizer.json and the small files beside it."""
        if not (folder / "tokenizer.json").exists():
            raise ValueError(
                f"{folder} has no tokenizer.json. Load the tokenizer with transformers and save it "
                "there with save_pretrained, which writes one."
            )
        config = _read_json(folder / "special_tokens_map.json")
        config |= _read_json(folder / "tokenizer_config.json")
        backend = _read_backend(folder / "tokenizer.json")
        backend.no_truncation()
        backend.no_padding()
        special_tokens = _special_tokens(config)
        _add_tokens(backend, config.get("added_tokens_decoder", {}))
        return cls(backend, special_tokens, _eos_ids(folder), _template_of(folder, config))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Special tokens spelled out in the text become their ids. ValueError for half characters,
        as Python makes of bytes that are no UTF-8.
        """
        _check_unicode(text)
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all ids; bytes that are no UTF-8 become U+FFFD."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return "".join(map(detokenizer.append, ids)) + detokenizer.flush()

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh one, for one growing text."""
        return Detokenizer(self._pieces[skip_special_tokens])

    def difference_from(self, draft: Tokenizer) -> str | None:
        """What a draft's tokenizer does otherwise, in words; None: ids mean the same to both."""
        for found in (_by_token(self, draft), _by_kind(self, draft), _by_merge(self, draft)):
            if found:
                return found
        return None

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat_template)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt for a conversation, as text: its special tokens are spelled out."""
        if not self._chat_template:
            raise ValueError(
                "This model has no chat template (it may not be an instruction model). Use "
                "generate with a text prompt instead."
            )
        return self._chat_template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt for a conversation, as ids: the template adds special tokens, not encode."""
        return self.encode(self.chat_prompt(messages), add_special_tokens=False)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ValueError(
            f"The text is no Unicode at character {error.start} ({half!a}); give UTF-8."
        ) from None


def _by_token(target: Tokenizer, draft: Tokenizer) -> str | None:
    ours, theirs = (
        {t: i for t, i in tokenizer._backend.get_vocab().items() if not _PADDING.fullmatch(t)}
        for tokenizer in (target, draft)
    )
    differing = ours.items() ^ theirs.items()
    if not differing:
        return None
    _, token = min((token_id, token) for token, token_id in differing)
    places = [
        f"has id {ids[token]}" if token in ids else "does not exist" for ids in (ours, theirs)
    ]
    return f"the token {token!r} {places[0]} in the target's vocabulary and {places[1]} in its own"


def _by_kind(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Special tokens are cut out of a text before anything else, and not shown."""
    ours, theirs = (
        {t.content for t in tokenizer._backend.get_added_tokens_decoder().values() if t.special}
        for tokenizer in (target, draft)
    )
    if ours == theirs:
        return None
    token = min(ours ^ theirs)
    where = "the target's tokenizer" if token in ours else "its own tokenizer"
    return f"{token!r} is a special token in {where} alone"


def _by_merge(target: Tokenizer, draft: Tokenizer) -> str | None:
    ours, theirs = (json.loads(t._backend.to_str())["model"] for t in (target, draft))
    if ours["type"] != theirs["type"]:
        return f"the target's tokenizer is {ours['type']} and its own {theirs['type']}"
    pairs = zip_longest(ours.get("merges", ()), theirs.get("merges", ()))
    for rank, (merge, other) in enumerate(pairs):
        if merge != other:
            return f"merge {rank} is {_words(merge)} for the target and {_words(other)} for its own"
    return None


def _words(merge: Sequence[str] | None) -> str:
    return " + ".join(map(repr, merge)) if merge else "none"


def set_template(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Makes encode put bos before and eos behind the text, where given."""
    pattern = [token for token in (bos, "$A", eos) if token is not None]
    special = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    backend.post_processor = TemplateProcessing(single=pattern, special_tokens=special)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is no tokenizer ({error}); fetch or save it again.") from error


def _read_json(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """A token is written as text or as a dict with its content."""
    found = {name: config.get(name) for name in _SPECIAL_NAMES}
    return {
        name: token["content"] if isinstance(token, Mapping) else token
        for name, token in found.items()
        if token
    }


def _add_tokens(backend: tokenizers.Tokenizer, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds those of tokenizer_config.json that tokenizer.json lacks, in the order of their ids."""
    known = backend.get_added_tokens_decoder()
    for token_id, entry in sorted((int(key), entry) for key, entry in entries.items()):
        if token_id in known:
            continue
        flags = {
            key: entry[key]
            for key in ("lstrip", "rstrip", "single_word", "normalized")
            if key in entry
        }
        token = tokenizers.AddedToken(
            entry["content"], special=entry.get("special", False), **flags
        )
        backend.add_tokens([token])
        if backend.token_to_id(entry["content"]) != token_id:
            raise ValueError(
                f"tokenizer_config.json gives {entry['content']!r} the id {token_id}, but "
                f"tokenizer.json makes it {backend.token_to_id(entry['content'])}."
            )


def _eos_ids(folder: Path) -> Sequence[int]:
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        if ids is not None:
            return [ids] if isinstance(ids, int) else ids
    return ()


def _template_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or tokenizer_config.json's template: one, or several by name."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
