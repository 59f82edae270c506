"""From token ids to text, token by token: each id is some bytes, the text is their UTF-8."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import Any

import tokenizers

_METASPACE = "\u2581"


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells each byte as one printable character: that character's byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(256 + n): byte for n, byte in enumerate(others)}


class Pieces:
    """The bytes of each token id, kept once asked for. Unknown and skipped ids have none."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._to_bytes, self.strips_first_space = _decoder_of(backend)
        added = backend.get_added_tokens_decoder()
        special = (token for token, entry in added.items() if entry.special)
        self._known: dict[int, bytes] = dict.fromkeys(special, b"") if skip_special_tokens else {}

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._known.get(token_id)
        if piece is None:
            token = self._backend.id_to_token(token_id)
            piece = self._known[token_id] = b"" if token is None else self._to_bytes(token)
        return piece


class Detokenizer:
    """Text of a growing list of ids, in constant time a token.

    Bytes that are no UTF-8 become U+FFFD as soon as that is certain; the joined texts equal
    Tokenizer.decode of all ids.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = pieces.strips_first_space

    def append(self, token_id: int) -> str:
        """The new text that can no longer change: never half a character, often none."""
        return self._stripped(self._utf8.decode(self._pieces[token_id]))

    def flush(self) -> str:
        """What is held back: an unfinished character becomes U+FFFD."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def _decoder_of(backend: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How this tokenizer spells bytes, and whether decoding drops the text's first space."""
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps} - {"Fuse"}
    if kinds == {"ByteLevel"}:
        return _byte_level(), False
    if kinds == {"Metaspace"}:
        return _sentencepiece, steps[0].get("prepend_scheme", "always") != "never"
    if kinds and kinds <= {"Replace", "ByteFallback", "Strip"}:
        return _sentencepiece, "Strip" in kinds
    raise ValueError(
        f"This tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported; "
        "byte-level BPE and SentencePiece with byte fallback are."
    )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    step = json.loads(backend.decoder.__getstate__())
    return step["decoders"] if step["type"] == "Sequence" else [step]


def _byte_level() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes(alphabet[char] for char in token)
        except KeyError:  # an added token, spelled as plain text
            return token.encode()

    return to_bytes


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(_METASPACE, " ").encode()
