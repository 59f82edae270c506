"""The prompts that a target answers for training: of files, and of its own writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specfast.data import load_workload
from specfast.tokenizer import Tokenizer
from specfast.train.dedupe import Decontaminator
from specfast.validation import read_text

PIECE_WORDS = 48  # of a text file, a prompt
_MARK = "\u2063user\u2063"


@dataclass(frozen=True)
class Source:
    """One prompt before tokenization. chat: a user's turn; otherwise text to be continued."""

    text: str
    category: str
    chat: bool


@dataclass(frozen=True)
class TargetPrompt:
    """What the target gets: token ids, their category and how warm the answer is."""

    token_ids: tuple[int, ...]
    category: str
    temperature: float
    seed: int


def read_sources(paths: Iterable[Path]) -> list[Source]:
    """First turns of JSON lines files (any format of `bench --dataset`), pieces of other text
    files.
    """
    found: list[Source] = []
    for path in paths:
        if path.suffix == ".jsonl":
            prompts = load_workload(path)
            found += [Source(p.turns[0], p.category, True) for p in prompts]
        else:
            text = read_text(path, "a .jsonl file of prompts, or a text")
            found += [Source(piece, path.stem, False) for piece in _pieces(text)]
    return found


def _pieces(text: str) -> list[str]:
    """Stretches of whole lines, of at least PIECE_WORDS words each."""
    pieces, piece, words = [], [], 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        words += len(line.split())
        if words >= PIECE_WORDS:
            pieces.append("".join(piece))
            piece, words = [], 0
    return pieces


def decontaminated(sources: Sequence[Source], evaluation: Iterable[str]) -> list[Source]:
    """Those that share less than a fifth of their 8-grams with evaluation texts, once each."""
    judge = Decontaminator(evaluation)
    kept = {s.text: s for s in sources if judge.keeps(s.text)}
    return list(kept.values())


def evaluation_texts(paths: Iterable[Path]) -> list[str]:
    """Every turn of the evaluation prompts."""
    return [turn for path in paths for prompt in load_workload(path) for turn in prompt.turns]


def encode(source: Source, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Through the chat template where the model has one and the source is a user's turn."""
    if not (source.chat and tokenizer.has_chat_template):
        return tuple(tokenizer.encode(source.text))
    return tuple(tokenizer.encode_chat([{"role": "user", "content": source.text}]))


def open_user_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The chat template up to where a user's words begin: the target goes on with a user's turn."""
    text = tokenizer.chat_prompt([{"role": "user", "content": _MARK}], add_generation_prompt=False)
    opening, mark, _ = text.partition(_MARK)
    if not mark:
        raise ValueError("The chat template changes the user's words, so none can be sampled.")
    return tuple(tokenizer.encode(opening, add_special_tokens=False))
