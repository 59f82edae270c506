"""From prompt files to a corpus: who is chosen, who is kept out, who writes."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specfast.models.loader import load
from specfast.train.corpus import in_turn, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.prompts import PIECE_WORDS, Source, open_user_turn, read_sources
from specfast.train.tiny import TinySettings, read_documents, train_tiny


def jsonl(path: Path, prompts: list[str], **others: object) -> str:
    rows = [{"turns": [p], **others} for p in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def test_categories_take_turns():
    sources = [
        Source(f"{c}{i}", c, True) for c, n in (("a", 50), ("b", 3), ("c", 50)) for i in range(n)
    ]
    chosen = in_turn(sources, 23, seed=1)
    assert Counter(s.category for s in chosen) == {"a": 10, "b": 3, "c": 10}
    assert in_turn(sources, 23, seed=1) == chosen != in_turn(sources, 23, seed=2)
    assert sorted(in_turn(sources, 500, seed=1), key=str) == sorted(sources, key=str)


def test_a_text_is_cut_into_pieces_of_whole_lines(tmp_path):
    path = tmp_path / "verse.txt"
    path.write_text("".join(f"line {i} of this long verse\n" for i in range(40)))
    pieces = read_sources([path])
    assert len(pieces) == 40 * 6 // PIECE_WORDS
    assert path.read_text().startswith("".join(p.text for p in pieces))
    assert all(not p.chat and p.category == "verse" for p in pieces)


@pytest.fixture(scope="module")
def tiny():
    return load("tiny")


def corpus_of(tiny, tmp_path, **settings):
    values = {"target": "tiny", "max_answer_tokens": 20, "num_prompts": 12, "seed": 3} | settings
    reports = []
    corpus = write_corpus(
        *tiny, CorpusSettings(**values), tmp_path / "work", lambda *r: reports.append(r)
    )
    return corpus, reports


def text_of(tiny, answer):
    return tiny[1].decode(answer.tokens.tolist())


def test_evaluation_prompts_are_measured_on_and_not_trained_on(tiny, tmp_path):
    secret = "A farmer has seven cows and every cow gives two cans of milk each day."
    evaluation = jsonl(tmp_path / "eval.jsonl", [secret, "Name a tree."], category="farm")
    prompts = [f"Count to {n} in steps of two, then stop and say so." for n in range(9)]
    training = jsonl(tmp_path / "train.jsonl", [*prompts, secret + " How many?", "Name a tree!"])
    corpus, _ = corpus_of(tiny, tmp_path, prompts=(training,), evaluation=(evaluation,))
    assert len(corpus.train) == 9 and len(corpus.held_out) == 2
    assert not any("farmer" in text_of(tiny, a) for a in corpus.train)
    assert any("farmer" in text_of(tiny, a) for a in corpus.held_out)
    assert corpus.held_out_categories == ["farm", "farm"]
    for answer in corpus.held_out:
        assert (answer.tokens[answer.num_prompt_tokens :] == answer.top_ids[:, 0]).all()


def test_without_evaluation_some_greedy_answers_are_held_out(tiny, tmp_path):
    training = jsonl(tmp_path / "train.jsonl", [f"Add {n} and {n + 1}." for n in range(60)])
    corpus, _ = corpus_of(tiny, tmp_path, prompts=(training,), num_prompts=60, sampled_share=0.25)
    assert len(corpus.held_out) == 2 and len(corpus.train) == 58
    held = {a.index for a in corpus.held_out}
    assert not held & {a.index for a in corpus.train}
    sampled = [
        a for a in corpus.train if (a.tokens[a.num_prompt_tokens :] != a.top_ids[:, 0]).any()
    ]
    assert 10 <= len(sampled) <= 15


@pytest.mark.parametrize(
    "settings, left", [({"num_prompts": 1}, "train on"), ({"sampled_share": 1.0}, "measure on")]
)
def test_a_corpus_that_leaves_nothing_for_one_purpose_is_refused(settings, left, tiny, tmp_path):
    prompts = jsonl(tmp_path / "own.jsonl", [f"Tell me of thing {i}." for i in range(4)])
    with pytest.raises(ValueError, match=f"none is left to {left}: give more prompts"):
        corpus_of(tiny, tmp_path, prompts=(prompts,), **settings)


def test_the_target_writes_users_turns_itself(tiny, tmp_path):
    opening = open_user_turn(tiny[1])
    assert opening == tuple(tiny[1].encode("<|user|>"))
    corpus, reports = corpus_of(tiny, tmp_path, num_self_prompts=40)
    stages = {r[0] for r in reports}
    assert stages == {"writing turns", "writing answers"}
    assert len(corpus.train) + len(corpus.held_out) > 10
    assert all(tuple(a.tokens[:1]) == opening for a in corpus.train)


def test_long_prompts_are_left_out(tiny, tmp_path):
    short = ["Short one.", "Another short one.", "A third."]
    training = jsonl(tmp_path / "train.jsonl", [*short, "Long " * 400])
    corpus, _ = corpus_of(tiny, tmp_path, prompts=(training,))
    assert len(corpus.train) + len(corpus.held_out) == len(short)
    only_long = jsonl(tmp_path / "long.jsonl", ["Long " * 400])
    with pytest.raises(ValueError, match="No prompt for answers is left"):
        corpus_of(tiny, tmp_path / "other", prompts=(only_long,))


def test_a_work_folder_of_another_corpus_is_refused(tiny, tmp_path):
    training = jsonl(tmp_path / "train.jsonl", ["Add 3 and 4.", "Add 5 and 6.", "Name a bird."])
    corpus_of(tiny, tmp_path, prompts=(training,))
    with pytest.raises(ValueError, match="another max_answer_tokens; delete it"):
        corpus_of(tiny, tmp_path, prompts=(training,), max_answer_tokens=21)


def test_the_tiny_family_is_trained_by_one_command(tmp_path):
    verse = tmp_path / "verse.txt"
    verse.write_text("".join(f"the {n} birds sing to the {n + 1} trees\n" for n in range(900)))
    sums = tmp_path / "sums.jsonl"
    rows = [{"question": f"Add {n} and 2.", "answer": f"{n + 2}"} for n in range(60)]
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_documents(sums)[3] == "<|user|>Add 3 and 2.<|end|><|assistant|>5<|end|>"
    settings = TinySettings(
        (str(verse), str(sums)), vocab_size=320, hidden_size=64, num_layers=1,
        intermediate_size=48, window=64, batch_size=2, steps=12, block_steps=3, draft_steps=4,
        num_prompts=40,
    )  # fmt: skip
    stages = []
    train_tiny(settings, tmp_path / "out", tmp_path / "work", lambda s, *more: stages.append(s))
    assert list(dict.fromkeys(stages)) == ["training target", "writing answers", "training"]
    model, tokenizer = load(str(tmp_path / "out" / "target"))
    assert model.config.num_nextn_predict_layers == 1
    tuned = load_file(tmp_path / "work" / "block" / "model.safetensors")
    stored = load_file(tmp_path / "out" / "target" / "model.safetensors")
    assert tuned and all(torch.equal(stored[name], tuned[name]) for name in tuned)
    card = (tmp_path / "out" / "target" / "README.md").read_text()
    assert "acceptance length of the MTP block" in card and "`mtp loop`" in card
    assert tokenizer.vocab_size <= model.config.vocab_size == 320
    assert (
        tokenizer.chat_prompt([{"role": "user", "content": "Hi"}])
        == "<|user|>Hi<|end|><|assistant|>"
    )
    for name in ("draft-s", "draft-m"):
        assert load(str(tmp_path / "out" / name))[0].config.vocab_size == 320
