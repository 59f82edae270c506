"""specfast train medusa: the whole command on the tiny target, and each part in plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specfast import LLM, SamplingParams, cli
from specfast.models.loader import load
from specfast.models.medusa import MedusaConfig
from specfast.proposers.candidate_tree import best_paths
from specfast.train.acceptance import chain_acceptance
from specfast.train.batches import FeatureBatch
from specfast.train.data import AnswerStore
from specfast.train.frozen import Frozen
from specfast.train.medusa import MedusaSettings, medusa_losses
from specfast.train.medusa_heads import (
    NUM_RANKED,
    Heads,
    accuracies_of,
    answer_rows,
    ranks_of,
    rights_in,
)

HEADS, H, V = 3, 32, 50


def command(folder, *more):
    prompts = folder / "prompts.jsonl"
    rows = [{"turns": [f"How many apples are {n} apples and {n + 3} apples?"]} for n in range(40)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("train", "medusa", "tiny", "--prompts", str(prompts), "--out", str(folder / "out")),
        *("--num-heads", "3", "--draft-vocab-size", "512", "--max-answer-tokens", "24"),
        *("--steps", "100", "--learning-rate", "0.02", "--sampled-share", "0", "--seed", "7"),
        *("--threads", "1", *more),
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert cli.run(command(folder)) == 0
    return folder


def test_the_folder_is_the_published_layout_with_what_was_measured(trained):
    tensors = load_file(trained / "out" / "model.safetensors")
    d2t = tensors.pop("d2t")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        f"{j}.0.linear.{kind}": shape
        for j in range(3)
        for kind, shape in (("weight", (192, 192)), ("bias", (192,)))
    }
    assert all(t.dtype == torch.bfloat16 and t.abs().max() > 0 for t in tensors.values())
    assert d2t.dtype == torch.int32 and len(d2t) == 512 and (d2t.diff() > 0).all()
    values = json.loads((trained / "out" / "config.json").read_text())
    config = MedusaConfig.from_hf(values)
    assert values["base_model_name_or_path"] == "tiny"
    assert [len(head) for head in config.medusa_accuracies] == [NUM_RANKED] * 3
    first = [head[0] for head in config.medusa_accuracies]
    assert first[0] > 0.4 and first == sorted(first, reverse=True)
    assert len(config.medusa_choices) == 64
    assert list(config.medusa_choices[:20]) == best_paths(np.array(config.medusa_accuracies), 20)


def test_card_and_recipe_tell_how_it_came_about(trained):
    recipe = json.loads((trained / "out" / "training.json").read_text())
    assert recipe["recipe"]["medusa"]["num_heads"] == 3
    assert recipe["recipe"]["corpus"]["seed"] == 7 and recipe["recipe"]["loop"]["steps"] == 100
    assert recipe["figures"]["parameters"] == 3 * (192 * 192 + 192)
    chain, tree = (recipe["figures"][f"acceptance length, {x}"] for x in ("k = 3", "tree of 16"))
    assert 1.3 < chain < tree
    assert "specfast train medusa tiny" in (trained / "out" / "README.md").read_text()


@pytest.mark.parametrize("nodes", [None, 16])
def test_the_engine_accepts_what_the_replay_said(trained, nodes):
    """Over the held-out answers, greedily: as many steps for as many tokens."""
    answers = AnswerStore(trained / "out.work" / "answers").load()
    recipe = json.loads((trained / "out" / "training.json").read_text())["figures"]
    held = answers[::32]
    spec = {"method": "medusa", "model": str(trained / "out"), "num_speculative_tokens": 3}
    spec |= {"max_tree_nodes": nodes, "policy": "fixed"}
    llm = LLM("tiny", speculative_config=spec)
    prompts = [a.tokens[: a.num_prompt_tokens].tolist() for a in held]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [
        a.tokens[a.num_prompt_tokens :].tolist() for a in held
    ]
    stats = llm.stats()
    steps = stats.num_drafts + stats.num_plain_steps - len(held)  # a prefill each
    length = (stats.num_emitted_tokens - len(held)) / steps
    told = recipe["acceptance length, tree of 16" if nodes else "acceptance length, k = 3"]
    assert length == pytest.approx(told, abs=1e-9)


def test_the_same_command_again_changes_nothing(trained):
    before = (trained / "out" / "model.safetensors").read_bytes()
    assert cli.run(command(trained)) == 0
    assert (trained / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "more, message",
    [
        (("--num-heads", "0"), "num_heads must be an integer from 1"),
        (("--label-weight", "2"), "label_weight must lie in"),
        (("--feature-cache-gb", "-1"), "must not be below 0"),
    ],
)
def test_what_can_not_end_well_is_refused(more, message, tmp_path, capsys):
    assert cli.run(command(tmp_path, *more)) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.work").exists()


# --- the parts ---


def some_batch(lengths=((3, 9), (5, 6), (2, 12)), seed=0):
    """Texts of (prompt, whole) tokens; features say which text and row they are of."""
    rng = torch.Generator().manual_seed(seed)
    width = max(whole for _, whole in lengths)
    tokens = torch.zeros(len(lengths), width, dtype=torch.int64)
    features = torch.zeros(len(lengths), width - 1, H, dtype=torch.bfloat16)
    law, num_rows = torch.full_like(tokens, -1), 0
    for b, (prompt, whole) in enumerate(lengths):
        tokens[b, :whole] = torch.randint(V, (whole,), generator=rng)
        features[b, : whole - 1] = torch.randn(whole - 1, H, generator=rng)
        features[b, : whole - 1, 0] = b
        features[b, : whole - 1, 1] = torch.arange(whole - 1)
        law[b, prompt:whole] = num_rows + torch.arange(whole - prompt)
        num_rows += whole - prompt
    starts = torch.tensor([prompt for prompt, _ in lengths])
    top_ids = torch.stack([torch.randperm(V, generator=rng)[:4] for _ in range(num_rows)])
    top_ids[:, 0] = tokens[law >= 0]
    logits = -torch.rand(num_rows, 4, generator=rng).cumsum(1)
    return FeatureBatch(tokens, features, law, starts, top_ids, logits)


def frozen_of(d2t=None, seed=1):
    rng = torch.Generator().manual_seed(seed)
    embedding = torch.randn(V, H, generator=rng)
    row_of = torch.arange(V)
    if d2t is not None:
        row_of = torch.full((V,), -1)
        row_of[d2t] = torch.arange(len(d2t))
    return Frozen(embedding, embedding if d2t is None else embedding[d2t], d2t, row_of)


def random_module(num_layers=2):
    torch.manual_seed(3)
    heads = Heads(H, HEADS, num_layers)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    return heads


D2T = torch.arange(1, V, 2)


def test_head_j_learns_the_token_j_after_the_next_one():
    batch = some_batch()
    features, places = answer_rows(batch, HEADS)
    expected = []
    for b, (prompt, whole) in enumerate(((3, 9), (5, 6), (2, 12))):
        for row in range(prompt - 1, whole - 2):  # it decided token row + 1, of the answer
            width = batch.tokens.shape[1]
            ahead = [row + 2 + j for j in range(HEADS)]
            expected.append((b, row, [b * width + a if a < whole else -1 for a in ahead]))
    assert features[:, :2].tolist() == [[b, row] for b, row, _ in expected]
    assert places.T.tolist() == [ahead for *_, ahead in expected]


def test_heads_start_as_the_targets_own_and_learn_from_there():
    heads, batch = Heads(H, HEADS, 2), some_batch()
    features, _ = answer_rows(batch, HEADS)
    assert all(torch.equal(hidden, features) for hidden in heads(features))
    sum(medusa_losses(heads, frozen_of(), batch, MedusaSettings())).backward()
    assert all(p.grad.abs().max() > 0 for p in heads.parameters())


@pytest.mark.parametrize("d2t", [None, D2T], ids=["all", "reduced"])
def test_losses_are_those_of_plain_loops(d2t):
    """With the law of the token that each head speaks of, over tokens that have a row."""
    heads, frozen, batch = random_module(), frozen_of(d2t), some_batch()
    settings = MedusaSettings(label_weight=0.25)
    losses = medusa_losses(heads, frozen, batch, settings)
    features, places = answer_rows(batch, HEADS)
    for j, hidden in enumerate(heads(features)):
        wanted, count = 0.0, 0
        for row, place in zip(hidden.double(), places[j].tolist()):
            if place < 0:
                continue
            law = int(batch.law.flatten()[place])
            log_q = (row @ frozen.rows.double().T).log_softmax(0)
            share = batch.top_logits[law].double().softmax(0) * 0.75
            share[0] += 0.25
            for token, weight in zip(batch.top_ids[law].tolist(), share.tolist()):
                at = int(frozen.row_of[token])
                wanted -= weight * float(log_q[at].detach()) if at >= 0 else 0.0
            count += 1
        assert float(losses[j]) == pytest.approx(wanted / count, rel=1e-5)


def test_heads_that_no_text_is_long_enough_for_are_left_out():
    batch = some_batch(lengths=((3, 5), (4, 6)))
    assert len(medusa_losses(random_module(), frozen_of(), batch, MedusaSettings())) == 1


@pytest.mark.parametrize("d2t", [None, D2T], ids=["all", "reduced"])
def test_ranks_are_those_of_plain_sorting(d2t):
    heads, frozen, batch = random_module(), frozen_of(d2t), some_batch()
    ranks = ranks_of(heads, frozen, batch, HEADS)
    features, places = answer_rows(batch, HEADS)
    ids = torch.arange(V) if d2t is None else d2t
    for j, hidden in enumerate(heads(features)):
        for row, place, rank in zip(hidden, places[j].tolist(), ranks[j].tolist()):
            if place < 0:
                assert rank == -1
                continue
            best = ids[(row @ frozen.rows.T).argsort(descending=True)][:NUM_RANKED].tolist()
            token = int(batch.tokens.flatten()[place])
            assert rank == (best.index(token) if token in best else NUM_RANKED)
    assert len(set(ranks.flatten().tolist())) > 4


def test_accuracies_count_what_there_was_to_be_right_about():
    ranks = [np.array([[0, 1, 8], [2, 0, -1]]), np.array([[0, -1, -1]])]
    found = accuracies_of(ranks)
    assert found[0][:3] == [2 / 3, 0, 1 / 3] and sum(found[0]) == pytest.approx(1)
    assert found[1][:2] == [0.5, 0.5]
    assert sum(found[2]) == 0


def test_a_tree_is_right_as_far_as_it_holds_the_path():
    ranks = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 8], [3, 0, 0], [0, 1, -1]])
    paths = [(0,), (0, 0), (0, 1), (1,), (0, 1, 0)]
    assert rights_in(ranks, paths).tolist() == [
        [True, True, True],
        [True, False, False],
        [True, True, False],
        [False, False, False],
        [True, True, False],
    ]
    chain = rights_in(ranks, [(0,), (0, 0), (0, 0, 0)])
    same = np.logical_and.accumulate(ranks == 0, 1)
    assert np.array_equal(chain, same)
    assert math.isclose(chain_acceptance([chain]).length, chain_acceptance([ranks == 0]).length)


def test_the_target_named_by_a_folder_keeps_no_path(trained):
    """What is saved says nothing of where it was made."""
    text = "".join((trained / "out" / f).read_text() for f in ("config.json", "training.json"))
    assert str(trained) not in text
    assert load("tiny")[0].config.hidden_size == 192
