"""An MTP block trained on its own output: the unroll against each chain by itself, and the whole
command on the tiny target.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from specfast import LLM, SamplingParams, cli
from specfast.proposers import growing
from specfast.train.batches import collate_features
from specfast.train.data import AnswerStore
from specfast.train.mtp_head import PREFIX, MtpHead, own_block
from specfast.train.mtp_tune import MtpSettings
from tests.unit.test_train_eagle_head import DECODER, HIDDEN, VOCAB, texts
from tests.unit.unrolled import turned


class Alone:
    """One text, one slot at a time, from the saved tensors alone: keys and values in a list."""

    def __init__(self, tensors, embedding):
        self.t = {n.removeprefix(PREFIX): t for n, t in tensors.items()}
        self.embedding = embedding

    def rms(self, x, name):
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + DECODER.rms_norm_eps).sqrt() * self.t[f"{name}_layernorm.weight"]

    def slot(self, feature, token, position, cache):
        t, dim, rope = self.t, DECODER.head_dim, DECODER.rope
        both = torch.cat([self.rms(feature, "hidden"), self.rms(self.embedding[token], "token")])
        x = t["input_proj.weight"] @ both
        inner = self.rms(x, "input")
        q, k, v = ((t[f"self_attn.{n}_proj.weight"] @ inner).view(-1, dim) for n in "qkv")
        cache.append((turned(k, position, rope), v))
        heads = []
        for h, row in enumerate(turned(q, position, rope)):
            of = h * len(k) // len(q)
            scores = torch.stack([keys[of] @ row for keys, _ in cache]) * dim**-0.5
            values = torch.stack([values[of] for _, values in cache])
            heads.append(scores.softmax(0) @ values)
        x = x + t["self_attn.o_proj.weight"] @ torch.cat(heads)
        inner = self.rms(x, "post_attention")
        gate, up = (t[f"mlp.{n}_proj.weight"] @ inner for n in ("gate", "up"))
        x = x + t["mlp.down_proj.weight"] @ (functional.silu(gate) * up)
        return self.rms(x, "final")


def test_every_chain_is_what_it_is_by_itself():
    rng = np.random.default_rng(8)
    answers, features = texts(rng)
    features = [f[:, :HIDDEN].contiguous() for f in features]
    batch = collated(answers, features)
    torch.manual_seed(5)
    head = MtpHead(DECODER, 64)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    head.double()
    embedding = torch.from_numpy(rng.standard_normal((VOCAB, HIDDEN)))
    alone = Alone(head.tensors(torch.float64), embedding)
    seen = 0
    for step, draft in enumerate(head.unroll(embedding, batch, 4)):
        for (b, chain), hidden in zip(draft.counts.nonzero().tolist(), draft.hidden):
            answer, cache = answers[b], []
            first = answer.num_prompt_tokens - 1 + chain
            for slot in range(first + 1):
                fed = alone.slot(features[b][slot].double(), answer.tokens[slot + 1], slot, cache)
            for slot in range(first + 1, first + 1 + step):
                fed = alone.slot(fed, answer.tokens[slot + 1], slot, cache)
            torch.testing.assert_close(hidden, fed, rtol=1e-9, atol=1e-9)
            seen += 1
    assert seen > 60


def collated(answers, features):

    batch = collate_features(answers, features, 64)
    return replace(batch, features=batch.features.double())


def command(folder, *more):
    prompts = folder / "prompts.jsonl"
    rows = [{"turns": [f"How many apples are {n} apples and {n + 3} apples?"]} for n in range(40)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("train", "mtp", "tiny", "--prompts", str(prompts), "--out", str(folder / "out")),
        *("--max-answer-tokens", "24", "--sampled-share", "0", "--steps", "12", "--seed", "7"),
        *("--learning-rate", "1e-3", "--threads", "1", *more),
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert cli.run(command(folder)) == 0
    return folder


def test_training_begins_with_the_targets_own_block(trained):
    block, before = load_file(trained / "out" / "model.safetensors"), own_block("tiny")
    assert block.keys() == before.keys()
    weight = PREFIX + "input_proj.weight"
    change = (block[weight].float() - before[weight]).norm() / before[weight].norm()
    assert 0 < change < 0.3
    assert own_block("tiny-draft-m") is None


def test_the_figures_are_what_the_engine_accepts(trained, monkeypatch):
    """Greedy answers to the prompts that were held out, drafted by the saved block."""
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.0)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)
    held_out = AnswerStore(trained / "out.work" / "answers").load()[::32]
    spec = {"method": "mtp", "model": str(trained / "out"), "num_speculative_tokens": 5}
    llm = LLM("tiny", speculative_config={**spec, "policy": "fixed"}, enable_prefix_caching=False)
    for answer in held_out:
        params = SamplingParams(temperature=0.0, max_tokens=answer.num_answer_tokens)
        prompt = answer.tokens[: answer.num_prompt_tokens].tolist()
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.outputs[0].token_ids == answer.tokens[answer.num_prompt_tokens :].tolist()
    stats = llm.stats()
    recipe = json.loads((trained / "out" / "training.json").read_text())
    expected = recipe["figures"]["acceptance by position"]
    found = [n / stats.num_drafts for n in stats.num_accepted_per_pos]
    assert stats.num_drafts > 10
    # The replay multiplies in float: a step or two may differ.
    np.testing.assert_allclose(found[:2], expected[:2], atol=2 / stats.num_drafts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", __file__], "test_train_mtp.py is a file; give a folder"),
        (["--unroll", "0"], "unroll"),
        (["--dropout", "1"], "dropout"),
    ],
)
def test_what_can_not_end_well_is_said_before_anything_is_written(
    options, message, tmp_path, capsys
):
    assert cli.run(command(tmp_path, *options)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="label_weight"):
        MtpSettings(label_weight=2)
