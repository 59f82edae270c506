"""Keeps evaluation prompts out of the training data: overlap of word 8-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable

N = 8
LIMIT = 0.2

_WORD = re.compile(r"\w+")
Gram = tuple[str, ...]


def word_ngrams(text: str, n: int = N) -> list[Gram]:
    """Every run of n words, lower case, without punctuation; a shorter text is one gram."""
    words = _WORD.findall(text.lower())
    if len(words) < n:
        return [tuple(words)] if words else []
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


class Decontaminator:
    """Knows the evaluation texts; a training text that shares too many of its own 8-grams with
    them is to be dropped.
    """

    def __init__(self, evaluation: Iterable[str]) -> None:
        self._seen = {gram for text in evaluation for gram in word_ngrams(text)}

    def overlap(self, text: str) -> float:
        """The share of the text's own 8-grams that evaluation texts hold, all of them together."""
        grams = word_ngrams(text)
        return sum(gram in self._seen for gram in grams) / len(grams) if grams else 0.0

    def keeps(self, text: str) -> bool:
        return self.overlap(text) < LIMIT
