"""No training prompt may share a fifth of its word 8-grams with an evaluation prompt."""

import json
import os
from pathlib import Path

import pytest

from specfast.train.dedupe import LIMIT, Decontaminator, word_ngrams
from specfast.train.prompts import Source, decontaminated, evaluation_texts, read_sources

WORDS = [f"w{i}" for i in range(200)]
EVALUATION = ("spec_bench.jsonl", "humaneval.jsonl", "edit_eval.jsonl")
TRAINING = (
    *("arena_train.jsonl", "gsm8k_test.jsonl", "math500.jsonl", "mbpp.jsonl"),
    *("seed_tasks.jsonl", "train_prompts.jsonl"),
)


def test_ngrams():
    assert word_ngrams("One, two; THREE!", n=2) == [("one", "two"), ("two", "three")]
    assert word_ngrams("Only three words") == [("only", "three", "words")]
    assert word_ngrams(" ... ") == []


@pytest.mark.parametrize(
    "shared, kept", [(0, True), (7, True), (9, True), (10, False), (11, False)]
)
def test_the_limit_is_a_fifth_of_the_texts_own_grams(shared, kept):
    """22 words have 15 grams; `shared` words in front are the evaluation's: shared - 7 grams."""
    evaluation = " ".join(WORDS[:100])
    text = " ".join(WORDS[:shared] + [f"x{i}" for i in range(22 - shared)])
    judge = Decontaminator([evaluation])
    assert judge.overlap(text) == max(0, shared - 7) / 15
    assert judge.keeps(text) is kept


def test_short_texts_are_compared_whole():
    judge = Decontaminator(["What is speculative decoding?"])
    assert not judge.keeps("what is SPECULATIVE decoding")
    assert judge.keeps("What is speculative")


def jsonl(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"turns": [p]}) + "\n" for p in prompts), "utf-8")
    return path


def leaked(sources: list[Source], texts: list[str]) -> list[str]:
    """By a plain count of its own, pair by pair."""

    def grams(text: str) -> list[str]:
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text.lower()).split()
        return [" ".join(words[i : i + 8]) for i in range(max(1, len(words) - 7))] if words else []

    seen = [set(grams(t)) for t in texts]
    found = []
    for source in sources:
        own = grams(source.text)
        if own and max(sum(g in s for g in own) / len(own) for s in seen) >= LIMIT:
            found.append(source.text)
    return found


def test_none_is_left(tmp_path):
    stem = " ".join(WORDS[:40])
    evaluation = [jsonl(tmp_path / "eval.jsonl", stem, "Name three trees.")]
    copies = [stem, stem.upper() + "!", "Please: " + stem, "name three trees"]
    clean = ["Name three trees and two birds of the northern woods.", " ".join(WORDS[100:140])]
    sources = read_sources([jsonl(tmp_path / "train.jsonl", *copies, *clean, clean[0])])
    texts = evaluation_texts(evaluation)
    assert len(leaked(sources, texts)) == 4
    kept = decontaminated(sources, texts)
    assert [s.text for s in kept] == clean
    assert not leaked(kept, texts)


if "SPECFAST_DATA" in os.environ:

    def test_none_is_left_of_the_real_files():
        folder = Path(os.environ["SPECFAST_DATA"])
        texts = evaluation_texts(folder / name for name in EVALUATION)
        sources = read_sources(folder / name for name in TRAINING)
        kept = decontaminated(sources, texts)
        assert 0.5 * len(sources) < len(kept) < len(sources)
        assert not leaked(kept, texts)
