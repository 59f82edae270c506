"""The target's answers with its logits: complete, resumable, the same whatever the batch."""

import numpy as np
import pytest
import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.sampling_params import SamplingParams
from specfast.train import data
from specfast.train.data import AnswerStore, Recorder, write_answers
from specfast.train.prompts import TargetPrompt
from tests.unit.toy_model import ToyModel, ToyTokenizer

TOP, MAX_TOKENS = 5, 24
PROMPTS = [
    TargetPrompt(tuple(range(1, 3 + n % 7)), "toy", float(n % 3 == 0), seed=n) for n in range(11)
]


def engine_of(recorder, max_num_seqs=3, num_blocks=200):
    config = EngineConfig(
        "toy", max_num_seqs=max_num_seqs, max_num_batched_tokens=max(4, max_num_seqs),
        block_size=4, num_blocks=num_blocks,
    )  # fmt: skip
    return Engine(ToyModel(order=3), ToyTokenizer(), config, recorder)


def write(folder, on_answers=lambda *counts: None, **options):
    recorder = Recorder(TOP)
    store = AnswerStore(folder)
    engine = engine_of(recorder, **options)
    write_answers(engine, recorder, PROMPTS, store, MAX_TOKENS, on_answers)
    return store.load()


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert (a.index, a.num_prompt_tokens) == (b.index, b.num_prompt_tokens)
        for name in ("tokens", "top_ids", "top_logits"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_answers_are_what_plain_decoding_gives(tmp_path):
    engine = engine_of(None)
    for prompt, answer in zip(PROMPTS, write(tmp_path), strict=True):
        params = SamplingParams(
            temperature=prompt.temperature, seed=prompt.seed, max_tokens=MAX_TOKENS
        )
        request = engine.add_request(prompt.token_ids, params)
        while not request.finished:
            engine.step()
        assert answer.tokens.tolist() == request.seqs[0].token_ids
        assert answer.num_prompt_tokens == len(prompt.token_ids)


def test_logits_are_those_that_decided(tmp_path):
    """The law looks three tokens back: computed here from the answer's own text."""
    model = ToyModel(order=3)
    for prompt, answer in zip(PROMPTS, write(tmp_path), strict=True):
        for i in range(answer.num_answer_tokens):
            seen = answer.tokens[: answer.num_prompt_tokens + i]
            digest = model._digest([int(t) + 1 for t in seen])
            hidden = torch.tensor([[digest]], dtype=torch.float64)
            logits = model.logits(hidden, torch.tensor([0]))[0]
            best = logits.topk(TOP)
            assert answer.top_ids[i].tolist() == best.indices.tolist()
            assert np.array_equal(answer.top_logits[i], (best.values - best.values[0]).half())
        if prompt.temperature == 0:
            decided = answer.tokens[answer.num_prompt_tokens :]
            assert np.array_equal(decided, answer.top_ids[:, 0])


@pytest.mark.parametrize("options", [{"max_num_seqs": 1}, {"max_num_seqs": 8, "num_blocks": 24}])
def test_batch_and_preemption_leave_no_trace(tmp_path, options):
    assert_same(write(tmp_path / "one"), write(tmp_path / "other", **options))


def test_resumes_where_it_was_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SHARD_ANSWERS", 3)
    whole = write(tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(num_answers, num_tokens):
        if num_answers == 8:
            raise Killed

    with pytest.raises(Killed):
        write(tmp_path / "cut", on_answers=kill)
    kept = AnswerStore(tmp_path / "cut").done()
    assert 0 < len(kept) < len(PROMPTS)
    (tmp_path / "cut" / "answers-00002.partial").write_bytes(b"half a shard")
    counts = []
    resumed = write(tmp_path / "cut", on_answers=lambda *c: counts.append(c))
    assert counts[0] == (len(kept), 0)
    assert counts[-1][0] == len(PROMPTS)
    assert_same(whole, resumed)
    assert write(tmp_path / "cut", on_answers=lambda *c: counts.append(c)) and counts[-1][1] == 0


@pytest.mark.parametrize("keep", [slice(0), slice(50), slice(-40)])
def test_a_broken_shard_says_what_to_do(keep, tmp_path):
    write(tmp_path / "all")
    (path,) = (tmp_path / "all").glob("*.npz")
    path.write_bytes(path.read_bytes()[keep])
    for use in (lambda: write(tmp_path / "all"), AnswerStore(tmp_path / "all").load):
        with pytest.raises(ValueError, match=f"{path.name} can't be read .*delete it"):
            use()
