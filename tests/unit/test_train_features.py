"""Hidden states for training: stored or computed, the same bytes; and batches of them."""

import json

import numpy as np
import pytest
import torch

from specfast.models.loader import load
from specfast.train.batches import FeatureBatches, collate_features
from specfast.train.corpus import write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.data import Answer
from specfast.train.feature_source import FeatureSource
from specfast.train.features import FeatureRequest

KEPT, WANTED = (0, 2, 4), (2, 4)
GIB = 2**30


@pytest.fixture(scope="module")
def tiny():
    return load("tiny")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"turns": ["Add. " * n + f"What is {n} and {n}?"]} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write(tiny, work, prompts, kept, num_writers=1):
    settings = CorpusSettings(
        target="tiny", prompts=(prompts,), max_answer_tokens=12, sampled_share=0.5
    )
    return write_corpus(*tiny, settings, work, lambda *r: None, num_writers, kept)


def source_of(tiny, work, layers=WANTED, max_bytes=GIB):
    return FeatureSource(*tiny, FeatureRequest(layers, max_bytes), work / "answers")


def stored(work):
    return {p.relative_to(work).as_posix(): p.read_bytes() for p in work.rglob("*.npy")}


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert a.dtype == b.dtype == torch.bfloat16 and torch.equal(a, b)


def test_what_was_kept_while_writing_is_what_is_computed_again(tiny, tmp_path, prompts):
    kept = write(tiny, tmp_path / "kept", prompts, FeatureRequest(KEPT, GIB))
    bare = write(tiny, tmp_path / "bare", prompts, FeatureRequest())
    read, computed = source_of(tiny, tmp_path / "kept"), source_of(tiny, tmp_path / "bare")
    found = read.of(kept.train)
    assert_same(found, computed.of(bare.train))
    assert (read.num_computed, computed.num_computed) == (0, len(bare.train))
    for answer, features in zip(kept.train, found):
        assert features.shape == (len(answer.tokens) - 1, 2 * tiny[0].config.hidden_size)


def test_layers_are_numbered_as_the_targets(tiny, tmp_path, prompts):
    """Layer 0 is the embedding, the last one what the head turns into the recorded logits."""
    model = tiny[0]
    corpus = write(tiny, tmp_path, prompts, FeatureRequest(KEPT, GIB))
    (answer, *_), first, last = corpus.train, (0,), (model.config.num_layers,)
    tokens = torch.from_numpy(answer.tokens[:-1]).long()
    (embedded,) = source_of(tiny, tmp_path, first).of([answer])
    assert torch.equal(embedded, model.weights.embedding[tokens].bfloat16())
    (hidden,) = source_of(tiny, tmp_path, last).of([answer])
    index = torch.arange(answer.num_prompt_tokens - 1, len(tokens))
    best = model.logits(hidden.float(), index).argmax(1)
    assert (best == torch.from_numpy(answer.top_ids[:, 0]).long()).float().mean() > 0.8


def test_what_was_computed_is_stored_and_read_the_next_time(tiny, tmp_path, prompts):
    corpus = write(tiny, tmp_path, prompts, FeatureRequest())
    first = source_of(tiny, tmp_path)
    found = first.of(corpus.train)
    assert_same(found, first.of(corpus.train))
    again = source_of(tiny, tmp_path)
    assert_same(found, again.of(corpus.train))
    assert (first.num_computed, again.num_computed) == (len(corpus.train), 0)


def test_the_budget_is_kept_and_the_rest_is_computed_each_time(tiny, tmp_path, prompts):
    whole = write(tiny, tmp_path / "whole", prompts, FeatureRequest(WANTED, GIB))
    expected = source_of(tiny, tmp_path / "whole").of(whole.train + whole.held_out)
    room = sum(map(len, stored(tmp_path / "whole").values())) // 2
    work = tmp_path / "half"
    corpus = write(tiny, work, prompts, FeatureRequest(WANTED, room // 2))
    answers = corpus.train + corpus.held_out
    written = stored(work)
    assert 0 < sum(map(len, written.values())) <= room // 2
    source = source_of(tiny, work, max_bytes=room)
    assert_same(expected, source.of(answers))
    grown = stored(work)
    assert len(written) < len(grown) < len(answers)
    assert sum(map(len, grown.values())) <= room
    source.of(answers)
    assert source.num_computed == 2 * len(answers) - len(written) - len(grown)
    other = source_of(tiny, work, layers=(1,), max_bytes=room)  # shares the room
    other.of(answers)
    assert sum(map(len, stored(work).values())) <= room


def test_writers_share_the_budget(tiny, tmp_path, prompts):
    write(tiny, tmp_path / "whole", prompts, FeatureRequest(WANTED, GIB))
    room = sum(map(len, stored(tmp_path / "whole").values())) // 2
    corpus = write(tiny, tmp_path / "two", prompts, FeatureRequest(WANTED, room), num_writers=2)
    files = stored(tmp_path / "two")
    assert 0 < sum(map(len, files.values())) <= room
    assert {int(name.split("/")[-1][:-4]) % 2 for name in files} == {0, 1}
    assert_same(
        source_of(tiny, tmp_path / "whole").of(corpus.train),
        source_of(tiny, tmp_path / "two").of(corpus.train),
    )


VOCAB, TOP, WIDTH = 50, 3, 4


def answers_of(count, rng):
    found = []
    for index in range(count):
        prompt, length = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        ids = rng.integers(0, VOCAB, (length, TOP)).astype(np.int32)
        logits = -np.sort(rng.random((length, TOP))).astype(np.float16)
        tokens = rng.integers(1, VOCAB, prompt + length).astype(np.int32)
        found.append(Answer(index, prompt, tokens, ids, logits))
    return found


class FakeSource:
    """A text's features name its tokens."""

    def of(self, answers):
        return [
            torch.from_numpy(a.tokens[:-1]).bfloat16()[:, None].repeat(1, WIDTH) for a in answers
        ]


@pytest.mark.parametrize("context", [64, 7])
def test_a_batch_says_what_the_target_saw_and_decided(context):
    answers = answers_of(9, np.random.default_rng(1))
    batch = collate_features(answers, FakeSource().of(answers), context)
    assert batch.tokens.shape[1] <= context and batch.features.dtype == torch.bfloat16
    assert torch.equal(batch.features[..., 0], batch.tokens[:, :-1].where(
        torch.arange(batch.tokens.shape[1] - 1) < (batch.tokens != 0).sum(1)[:, None] - 1, 0
    ).bfloat16())  # fmt: skip
    seen = []
    for b, answer in enumerate(answers):
        cut = max(0, len(answer.tokens) - context)
        length = len(answer.tokens) - cut
        assert batch.tokens[b, :length].tolist() == answer.tokens[cut:].tolist()
        assert not batch.tokens[b, length:].any() and not batch.features[b, length - 1 :].any()
        for t, row in enumerate(batch.law[b].tolist()):
            decided = t + cut - answer.num_prompt_tokens
            if t >= length or decided < 0 or t == 0:
                assert row == -1
                continue
            assert t >= int(batch.starts[b])
            assert batch.top_ids[row].tolist() == answer.top_ids[decided].tolist()
            assert batch.top_logits[row].tolist() == answer.top_logits[decided].tolist()
            seen.append(row)
        assert batch.law[b, batch.starts[b]] >= 0 > batch.law[b, batch.starts[b] - 1]
    assert sorted(seen) == list(range(len(batch.top_ids)))


def test_which_answers_come_when_depends_on_seed_and_step_alone():
    answers = answers_of(23, np.random.default_rng(2))
    batches = [FeatureBatches(FakeSource(), answers, 5, 64, seed) for seed in (3, 3, 4)]
    for step in (0, 6, 2, 6):
        assert torch.equal(batches[0].at(step).tokens, batches[1].at(step).tokens)
    epoch = [a.index for step in range(4) for a in batches[0].answers_at(step)]
    assert batches[0].per_epoch == 4 and len(set(epoch)) == 20
    other = [a.index for step in range(4) for a in batches[2].answers_at(step)]
    assert epoch != other
