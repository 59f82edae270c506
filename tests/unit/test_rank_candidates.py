from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specfast import ops
from specfast import reference_sampling as reference
from tests.unit.exact import raw, same_bytes, strided
from tests.unit.sampling_ops import rank, sample

INF, NAN = math.inf, math.nan


def bits(ids: Tensor, scores: Tensor) -> Tensor:
    return torch.cat((ids, scores.view(torch.int32)), dim=1)


def draft_map(vocab: int, rng: torch.Generator) -> Tensor:
    """[V] distinct target ids, not in order."""
    return (torch.randperm(vocab, generator=rng) * 3 + 1).int()


@pytest.mark.parametrize("mapped", (False, True), ids=("same ids", "d2t"))
@pytest.mark.parametrize("temperature", (0.0, 0.5, 1.0, 3.0))
@pytest.mark.parametrize("vocab", (1, 17, 1000, 8300))
def test_ids_and_scores_are_the_references(vocab, temperature, mapped, rng):
    rows, m = 6, 9
    logits = 3 * torch.randn(rows, vocab, generator=rng)
    d2t = draft_map(vocab, rng) if mapped else None
    ids, scores = rank(logits, m, temperature, list(range(rows)), list(range(rows)), d2t)
    for row in range(rows):
        expected_ids, expected = reference.rank_candidates(
            logits[row], temperature, row, row, m, d2t
        )
        torch.testing.assert_close(scores[row].double(), expected, rtol=1e-6, atol=5e-6)
        assert ids[row].tolist() == expected_ids.tolist()


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_tiers_and_threads_give_the_same_bytes(temperature, rng):
    for vocab in (1, 17, 8200, 20_000):
        logits, d2t = torch.randn(7, vocab, generator=rng), draft_map(vocab, rng)
        same_bytes(lambda: bits(*rank(logits, 8, temperature, 5)))  # noqa: B023
        same_bytes(lambda: bits(*rank(logits[:1], 8, temperature, 5, 0, d2t)))  # noqa: B023


def test_rows_do_not_depend_on_their_neighbours(rng):
    rows = 12
    logits = torch.randn(rows, 9000, generator=rng)
    logits[3], logits[4] = NAN, -INF
    temperature = torch.tensor([0.0, 1.0, 0.4]).repeat(4)

    def run(order: Tensor, of: Tensor = logits) -> Tensor:
        return bits(*rank(of[order], 5, temperature[order], order, order + 9))

    whole = run(torch.arange(rows))
    for row in range(rows):
        assert raw(run(torch.tensor([row]))) == raw(whole[row])
    order = torch.randperm(rows, generator=rng)
    assert raw(run(order)) == raw(whole[order])
    every = torch.arange(rows)
    assert raw(bits(*rank(strided(logits), 5, temperature, every, every + 9))) == raw(whole)


@pytest.mark.parametrize("temperature", (0.0, 0.7, 1.0))
def test_the_best_is_what_the_target_would_take(temperature, rng):
    """The coupling: equal logits, seed and position give the same token, whoever drafts."""
    logits = 2 * torch.randn(200, 3000, generator=rng)
    seeds, positions = torch.arange(200), torch.arange(200) + 50
    tokens = sample(logits, temperature, seed=seeds, position=positions).tokens
    ids, _ = rank(logits, 3, temperature, seeds, positions)
    assert torch.equal(ids[:, 0], tokens)
    shifted, _ = rank(logits, 3, temperature, seeds, positions + 1)
    assert temperature == 0 or (shifted[:, 0] != tokens).any()


def test_noise_goes_by_target_id(rng):
    """Logits of a draft vocabulary that holds all that the target's row allows draw the same."""
    logits, d2t = torch.randn(40, 500, generator=rng), draft_map(500, rng)
    target = torch.full((40, 1600), -INF)
    target[:, d2t.long()] = logits
    tokens = sample(target, seed=torch.arange(40), position=3).tokens
    ids, scores = rank(logits, 4, 1.0, torch.arange(40), 3, d2t)
    assert torch.equal(ids[:, 0], tokens)
    same_ids, same_scores = rank(target, 4, 1.0, torch.arange(40), 3)
    assert torch.equal(ids, same_ids)
    assert raw(scores) == raw(same_scores)


def test_ties_go_to_the_lowest_target_id():
    logits = torch.tensor([[0.0, 1.0, -0.0, 1.0, 0.0]])
    ids, scores = rank(logits, 4, 0.0)
    assert ids.tolist() == [[1, 3, 0, 2]]
    assert scores.tolist() == [[1.0, 1.0, 0.0, 0.0]]
    d2t = torch.tensor([9, 7, 2, 5, 3], dtype=torch.int32)
    assert rank(logits, 4, 0.0, d2t=d2t)[0].tolist() == [[5, 7, 2, 3]]
    many = torch.zeros(1, 20_000)
    assert rank(many, 3, 0.0)[0].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_what_is_not_a_candidate(temperature):
    ids, scores = rank(torch.tensor([[NAN, -INF, 2.0, NAN]]), 3, temperature)
    assert ids.tolist() == [[2, -1, -1]]
    assert scores[0, 1:].tolist() == [-INF, -INF]
    assert rank(torch.full((1, 5), -INF), 2, temperature)[0].tolist() == [[-1, -1]]
    assert rank(torch.zeros(2, 5), 0, temperature)[0].shape == (2, 0)
    assert rank(torch.zeros(0, 5), 2, temperature)[0].shape == (0, 2)


def test_infinite_and_huge_logits(rng):
    ids, scores = rank(torch.tensor([[3e38, INF, -3e38]]), 3, 0.5)
    assert sorted(ids[0].tolist()) == [0, 1, 2]
    assert scores.isfinite().all()
    assert rank(torch.tensor([[3e38, INF, -3e38]]), 3, 0.0)[0].tolist() == [[1, 0, 2]]


def operands() -> dict[str, Tensor]:
    return {
        "logits": torch.randn(3, 17),
        "d2t": torch.arange(17, dtype=torch.int32),
        "temperature": torch.ones(3),
        "seeds": torch.zeros(3, dtype=torch.int64),
        "positions": torch.zeros(3, dtype=torch.int32),
        "ids": torch.zeros(3, 4, dtype=torch.int32),
        "scores": torch.zeros(3, 4),
    }


def test_opcheck():
    op = torch.ops.specfast.rank_candidates.default
    torch.library.opcheck(op, tuple(operands().values()))
    torch.library.opcheck(op, tuple({**operands(), "d2t": None}.values()))


WRONG = {
    "logits: dtype must be": {"logits": torch.zeros(3, 17).double()},
    "logits: needs a vocabulary": {"logits": torch.zeros(3, 0), "d2t": None},
    r"d2t: shape must be \[17\]": {"d2t": torch.zeros(16, dtype=torch.int32)},
    "d2t: dtype must be": {"d2t": torch.zeros(17, dtype=torch.int64)},
    "temperature: shape must be": {"temperature": torch.ones(2)},
    "seeds: dtype must be": {"seeds": torch.zeros(3)},
    "positions: shape must be": {"positions": torch.zeros(3, 1, dtype=torch.int32)},
    "ids: dtype must be": {"ids": torch.zeros(3, 4)},
    r"scores: shape must be \[3, 4\]": {"scores": torch.zeros(3, 5)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    with pytest.raises(RuntimeError, match=message):
        ops.rank_candidates(**{**operands(), **WRONG[message]})
