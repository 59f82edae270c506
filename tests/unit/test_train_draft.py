"""Distillation: its parts against plain oracles, and the whole command on the tiny target."""

import itertools
import json

import numpy as np
import pytest
import torch

from specfast import LLM, cli
from specfast.models.config import ModelConfig
from specfast.models.loader import load_draft
from specfast.train import draft
from specfast.train.acceptance import acceptance, matches_of
from specfast.train.batches import Batches, collate
from specfast.train.data import Answer
from specfast.train.draft import distillation_loss, new_student
from specfast.train.reduction import head_tokens, nearest_rows, rows_of_tokens
from specfast.train.student import Student, llama_config

VOCAB = 60


def answers_of(count, rng, top=4, longest=30):
    found = []
    for index in range(count):
        prompt, length = int(rng.integers(1, 8)), int(rng.integers(1, longest))
        tokens = rng.integers(0, VOCAB, prompt + length).astype(np.int32)
        ids = np.stack([rng.permutation(VOCAB)[:top] for _ in range(length)]).astype(np.int32)
        logits = -np.sort(rng.random((length, top)).astype(np.float16), axis=1)
        found.append(Answer(index, prompt, tokens, ids, logits - logits[:, :1]))
    return found


def config(**others):
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_layers": 1, "head_dim": 16, "num_kv_heads": 1,
        "intermediate_size": 48, "context": 48, "max_position_embeddings": 48,
    }  # fmt: skip
    return llama_config(**sizes | others)


@pytest.fixture
def answers():
    return answers_of(23, np.random.default_rng(4))


def test_an_epoch_takes_every_answer_once(answers):
    batches = Batches(answers, 5, context=48, seed=1)
    assert batches.per_epoch == 4
    plans = [np.concatenate(batches._order(epoch)) for epoch in range(3)]
    for plan in plans:
        assert len(set(plan.tolist())) == 20
    assert plans[0].tolist() != plans[1].tolist()
    again = Batches(answers, 5, context=48, seed=1)
    for step in (7, 2, 7):
        assert torch.equal(again.at(step).tokens, batches.at(step).tokens)


@pytest.mark.parametrize("context", [48, 9])
def test_rows_stand_before_the_tokens_that_they_decide(answers, context):
    batch = collate(answers, context)
    assert batch.tokens.shape[1] <= context
    row = 0
    for b, answer in enumerate(answers):
        own = [int(r) for r in batch.rows if r // batch.tokens.shape[1] == b]
        assert own == sorted(own) and len(own) == min(answer.num_answer_tokens, context)
        first = answer.num_answer_tokens - len(own)
        for i, at in enumerate(own):
            text = batch.tokens[b, : at - b * batch.tokens.shape[1] + 1].tolist()
            before = answer.tokens[: answer.num_prompt_tokens + first + i].tolist()
            assert text == before[-len(text) :] and len(text) == min(len(before), len(text))
            assert batch.top_ids[row].tolist() == answer.top_ids[first + i].tolist()
            row += 1


def test_the_loss_is_cross_entropy_with_the_targets_law(answers):
    d2t = torch.arange(0, VOCAB, 2, dtype=torch.int32)
    values = config(draft_vocab_size=len(d2t))
    t2d = torch.arange(VOCAB, dtype=torch.int32) // 2
    student = Student(ModelConfig.from_hf(values), d2t, t2d)
    batch = collate(answers[:3], 48)
    found = distillation_loss(student, batch, rows_of_tokens(d2t, VOCAB), label_weight=0.25)
    logits = student.logits(student(batch.tokens)).flatten(0, 1)[batch.rows].double()
    total = 0.0
    for row, (ids, top) in enumerate(zip(batch.top_ids.tolist(), batch.top_logits.double())):
        q = logits[row].exp() / logits[row].exp().sum()
        p = top.exp() / top.exp().sum()
        for rank, token in enumerate(ids):
            weight = 0.75 * p[rank] + (0.25 if rank == 0 else 0.0)
            if token % 2 == 0:
                total -= float(weight * q[token // 2].log().detach())
    assert found.item() == pytest.approx(total / len(batch.rows), rel=1e-5)


def test_head_tokens_are_the_commonest(answers):
    d2t = head_tokens(answers, VOCAB, 20)
    counts = np.bincount(np.concatenate([a.tokens for a in answers]), minlength=VOCAB)
    assert d2t.dtype == torch.int32 and (d2t.diff() > 0).all()
    assert counts[d2t].min() >= np.delete(counts, d2t).max()
    assert head_tokens(answers, VOCAB, 0) is None
    assert head_tokens(answers, VOCAB, VOCAB) is None
    rows = rows_of_tokens(d2t, VOCAB)
    assert torch.equal(rows[d2t.long()], torch.arange(20)) and (rows >= 0).sum() == 20


def test_rare_tokens_read_the_nearest_common_one(rng):
    embedding = torch.randn(VOCAB, 16, generator=rng)
    d2t = torch.arange(1, VOCAB, 3, dtype=torch.int32)
    embedding[5] = 4 * embedding[10]
    nearest = nearest_rows(embedding, d2t)
    assert nearest[5] == 3 and d2t[3] == 10
    assert torch.equal(nearest[d2t.long()], torch.arange(len(d2t), dtype=torch.int32))


def test_a_new_student_starts_from_the_targets_embeddings(rng):
    """Directions that matter to the target's embeddings are there, at the usual scale."""
    embedding = torch.randn(VOCAB, 3, generator=rng) @ torch.randn(3, 40, generator=rng)
    student = new_student(config(), None, embedding)
    weight = student.model.embed_tokens.weight.detach()
    assert torch.isfinite(weight).all()
    gram = embedding @ torch.linalg.pinv(embedding)  # onto what the embeddings span
    assert (gram @ weight[:, :3] - weight[:, :3]).abs().max() < 1e-3
    assert 0.1 < weight[:, :3].std() * 32**0.5 < 10


@pytest.mark.parametrize("k", [1, 4])
def test_acceptance_is_what_drafting_token_by_token_gives(answers, k):
    """The oracle drafts k tokens from its own guesses, at every step of every answer."""
    student = Student(ModelConfig.from_hf(config()))
    for answer in answers:  # so that some guesses are right
        with torch.no_grad():
            logits = student.logits(student(torch.from_numpy(answer.tokens).long()[None]))[0]
        guessed = np.random.default_rng(answer.index).random(len(answer.tokens)) < 0.7
        for i in range(answer.num_prompt_tokens, len(answer.tokens)):
            if guessed[i]:
                with torch.no_grad():
                    prefix = torch.from_numpy(answer.tokens[:i]).long()[None]
                    logits = student.logits(student(prefix))[0, -1]
                answer.tokens[i] = int(logits.argmax())
    accepted_at, steps, emitted = [0] * k, 0, 0
    for answer in answers:
        at, end = answer.num_prompt_tokens + 1, len(answer.tokens)
        while at < end:
            text, accepted = answer.tokens[:at].tolist(), 0
            for _ in range(k):
                with torch.no_grad():
                    guess = int(student.logits(student(torch.tensor([text])))[0, -1].argmax())
                if len(text) == end or guess != answer.tokens[len(text)]:
                    break
                text.append(guess)
                accepted_at[accepted] += 1
                accepted += 1
            steps += 1
            emitted += min(accepted + 1, end - at)
            at += min(accepted + 1, end - at)
    found = acceptance(matches_of(student, answers), k)
    assert (found.num_steps, found.num_tokens) == (steps, emitted)
    assert found.per_position == pytest.approx([n / steps for n in accepted_at])
    assert found.length == emitted / steps
    assert found.length > 1.3 or k == 1


def command(tmp_path, *more):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"How many apples are {n} apples and {n + 3} apples?"]} for n in range(24)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("train", "draft", "tiny", "--prompts", str(prompts), "--out", str(tmp_path / "out")),
        *("--hidden-size", "32", "--num-layers", "1", "--head-dim", "32", "--num-kv-heads", "1"),
        "--no-copying",
        *("--intermediate-size", "48", "--draft-vocab-size", "256", "--max-answer-tokens", "16"),
        *("--num-self-prompts", "4", "--steps", "30", "--seed", "7", "--threads", "1", *more),
    ]


def test_the_command_trains_what_the_loader_reads(tmp_path, capsys):
    assert cli.run(command(tmp_path)) == 0
    shown = capsys.readouterr()
    assert "tokens a step" in shown.out and "training: 30/30" in shown.err
    out = tmp_path / "out"
    model = load_draft(str(out))
    assert model.config.head_size == 256 and model.config.dtype == torch.bfloat16
    assert model.config.vocab_size == LLM("tiny").engine.vocab_size
    recipe = json.loads((out / "training.json").read_text())
    assert recipe["recipe"]["corpus"]["seed"] == 7
    assert recipe["recipe"]["corpus"]["prompts"] == ["prompts.jsonl"]
    assert recipe["recipe"]["loop"]["steps"] == 30
    assert recipe["figures"]["acceptance length, k = 4"] >= 1
    card = (out / "README.md").read_text()
    for words in ("`tiny`", "prompts.jsonl", "| seed | 7 |", "acceptance length, k = 4"):
        assert words in card
    assert str(tmp_path) not in card + json.dumps(recipe)


def test_the_command_again_goes_on_from_what_is_there(tmp_path, capsys):
    assert cli.run(command(tmp_path)) == 0
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert cli.run(command(tmp_path)) == 0
    assert "0 tokens" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights
    assert cli.run(command(tmp_path, "--label-weight", "0.5")) == 2
    assert "other settings (draft)" in capsys.readouterr().err
    assert cli.run(command(tmp_path, "--sampled-share", "0.9")) == 2
    assert "another sampled_share" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "gpu"], "--device must be cpu or cuda"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--steps", "0"], "steps must be an integer of at least 1, not 0"),
        (["--hidden-size", "50"], "must be a multiple of head_dim"),
        (["--head-dim", "0"], "head_dim must be an integer of at least 1"),
        (["--head-dim", "8"], "head_dim must be a multiple of 16"),
        (["--batch-size", "0"], "batch_size must be an integer of at least 1"),
        (["--dropout", "1"], "dropout must lie in [0, 1)"),
        (["--label-weight", "-1"], "label_weight must lie in [0, 1]"),
        (["--copying"], "copying needs two layers"),
        (
            ["--copying", "--num-layers", "2", "--hidden-size", "256", "--num-kv-heads", "8"],
            "a target that is wider",
        ),
        (["--sampled-share", "2"], "sampled_share must lie in [0, 1]"),
        (
            ["--num-evaluation-prompts", "0"],
            "num_evaluation_prompts must be an integer of at least",
        ),
        (["--seed", "-1"], "seed must be an integer of at least 0"),
        (["--dtype", "int8"], "dtype must be one of"),
        (["--prompts", "nowhere.txt"], "There is no file nowhere.txt"),
        (["--copying"], "copying needs two layers"),
        (["--out", __file__], "test_train_draft.py is a file; give a folder"),
    ],
)
def test_refusals(tmp_path, capsys, arguments, message):
    """Before anything is written."""
    assert cli.run(command(tmp_path, *arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.work").exists()


def test_a_text_that_is_not_utf8_is_named(tmp_path, capsys):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    assert cli.run(command(tmp_path, "--prompts", str(tmp_path / "latin1.txt"))) == 2
    assert "latin1.txt is not UTF-8" in capsys.readouterr().err


def test_nothing_to_train_on_is_refused(tmp_path, capsys):
    assert cli.run(["train", "draft", "tiny", "--out", str(tmp_path / "out")]) == 2
    assert "nothing to train on" in capsys.readouterr().err


def test_a_killed_command_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """Dropout included; the second corpus is written by two processes."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    assert cli.run(command(whole)) == 0
    look = draft._Distillation._on_step

    def kill(self, step, loss):
        look(self, step, loss)
        if step == 12:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(draft._Distillation, "_on_step", kill)
        clock = itertools.count(step=100)  # so that every step is saved
        patched.setattr("specfast.train.loop.time.monotonic", lambda: next(clock))
        assert cli.run(command(cut, "--writers", "2")) == 130
    assert not (cut / "out").exists()
    assert torch.load(cut / "out.work" / "out.pt", weights_only=True)["step"] == 11
    assert cli.run(command(cut)) == 0
    weights = [(f / "out" / "model.safetensors").read_bytes() for f in (whole, cut)]
    assert weights[0] == weights[1]
