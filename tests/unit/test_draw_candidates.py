from __future__ import annotations

import math

import pytest
import torch

from specfast import ops
from specfast import reference_verification as reference
from specfast.reference_verification import RowSettings
from tests.unit.exact import raw, same_bytes, strided
from tests.unit.sampling_ops import fit, rank, sample
from tests.unit.verification_ops import draw

INF, NAN = math.inf, math.nan
DRAWS = 40_000
PASSES, FAILS = 1e-3, 1e-9
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cool": {"temperature": 0.4},
    "filtered": {"temperature": 0.8, "top_k": 6, "top_p": 0.95, "min_p": 0.01},
}


def draft_map(vocab: int, rng: torch.Generator) -> torch.Tensor:
    """[V] distinct target ids, not in order."""
    return (torch.randperm(vocab, generator=rng) * 3 + 1).int()


@pytest.mark.parametrize("mapped", (False, True), ids=("same ids", "d2t"))
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", (1, 17, 8300))
def test_ids_are_the_references(vocab, settings, mapped, rng):
    settings = SETTINGS[settings]
    rows, m, clear = 12, 4, 0
    logits = 3 * torch.randn(rows, vocab, generator=rng)
    d2t = draft_map(vocab, rng) if mapped else None
    every = torch.arange(rows)
    ids, _ = draw(logits, m, every, every + 20, every % 5 - 1, every + 17, d2t, **settings)
    for row in range(rows):
        expected, gap = reference.draw_candidates(
            logits[row], RowSettings(**settings), row, row + 20, row % 5 - 1, row + 17, m, d2t
        )
        if gap > 1e-4:
            clear += 1
            assert ids[row].tolist() == expected + [-1] * (m - len(expected))
    assert clear >= rows - 2


@pytest.mark.parametrize("settings", SETTINGS)
def test_laws_are_what_was_drawn_from(settings, rng):
    settings = SETTINGS[settings]
    logits = 2 * torch.randn(8, 40, generator=rng)
    _, laws = draw(logits, 2, 1, 5, 0, 4, **settings)
    if settings.get("temperature") == 0.0:
        assert raw(laws) == raw(logits)
        return
    for row in range(8):
        expected = RowSettings(**settings).probs(logits[row])
        torch.testing.assert_close(laws[row].double().softmax(0), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS)
def test_tiers_and_threads_give_the_same_bytes(settings, rng):
    for vocab in (1, 17, 8200, 20_000):
        logits, d2t = torch.randn(5, vocab, generator=rng), draft_map(vocab, rng)

        def run():
            ids, laws = draw(logits, 3, 5, 9, 2, 7, d2t, **SETTINGS[settings])  # noqa: B023
            return torch.cat((ids, laws.view(torch.int32)), dim=1)

        same_bytes(run)


def test_rows_do_not_depend_on_their_neighbours(rng):
    logits = torch.randn(12, 9000, generator=rng)
    logits[3], logits[4] = NAN, -INF
    temperature = torch.tensor([0.0, 1.0, 0.4]).repeat(4)

    def run(order, of=logits):
        ids, laws = draw(
            of[order], 5, order, order + 9, order % 3, order + 5, temperature=temperature[order]
        )
        return torch.cat((ids, laws.view(torch.int32)), dim=1)

    whole = run(torch.arange(12))
    for row in range(12):
        assert raw(run(torch.tensor([row]))) == raw(whole[row])
    assert raw(run(torch.arange(12), strided(logits))) == raw(whole)


def test_draws_follow_their_law_without_replacement():
    """Plackett-Luce, over seeds, positions, nodes and roots alike."""
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0, -2.0])
    p = logits.double().softmax(0)
    pairs = p[:, None] * p[None, :] / (1 - p[:, None])
    pairs.fill_diagonal_(0)
    every = torch.arange(DRAWS)
    for key in ((every, 9, 0, 5), (3, every, 0, 5), (3, 9, every, 5), (3, 9, 0, every)):
        ids, _ = draw(logits.repeat(DRAWS, 1), 2, *key)
        counts = (ids[:, 0] * 5 + ids[:, 1]).bincount(minlength=25)
        assert fit(counts, pairs.flatten()) > PASSES
        assert fit(counts, torch.outer(p, p).flatten()) < FAILS


def test_draws_are_independent_of_the_targets_and_of_each_other():
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0]).repeat(DRAWS, 1)
    p = logits[0].double().softmax(0)
    product, seeds = torch.outer(p, p).flatten(), torch.arange(DRAWS)
    drawn = draw(logits, 1, seeds, 9, 0, 9)[0][:, 0]
    others = {
        "target": sample(logits, seed=seeds, position=9).tokens,
        "another node": draw(logits, 1, seeds, 9, 1, 9)[0][:, 0],
        "the root": draw(logits, 1, seeds, 9, -1, 9)[0][:, 0],
        "another step": draw(logits, 1, seeds, 9, 0, 8)[0][:, 0],
        "another position": draw(logits, 1, seeds, 10, 0, 9)[0][:, 0],
    }
    for name, other in others.items():
        counts = (drawn * 4 + other).bincount(minlength=16)
        assert fit(counts, product) > PASSES, name
    coupled = rank(logits, 1, 1.0, seeds, 9)[0][:, 0]
    assert fit((coupled * 4 + others["target"]).bincount(minlength=16), product) < FAILS


def test_what_can_not_be_drawn():
    ids, _ = draw(
        torch.tensor([[NAN, 0.0, 1.0], [-INF, -INF, -INF], [0.0, -INF, 1.0]]), 3, 0, 0, 0, 0
    )
    assert ids[:2].tolist() == [[-1] * 3] * 2
    assert sorted(ids[2].tolist()) == [-1, 0, 2]
    assert draw(torch.zeros(0, 5), 2, 0, 0, 0, 0)[0].shape == (0, 2)
    assert draw(torch.zeros(2, 5), 0, 0, 0, 0, 0)[0].shape == (2, 0)


def operands() -> dict[str, torch.Tensor]:
    def ints() -> torch.Tensor:
        return torch.zeros(3, dtype=torch.int32)

    return {
        "logits": torch.randn(3, 17),
        "temperature": torch.ones(3),
        "top_k": ints(),
        "top_p": torch.ones(3),
        "min_p": torch.zeros(3),
        "seeds": torch.zeros(3, dtype=torch.int64),
        "positions": ints(),
        "nodes": ints(),
        "roots": ints(),
        "ids": torch.zeros(3, 4, dtype=torch.int32),
        "laws": torch.zeros(3, 17),
        "d2t": torch.arange(17, dtype=torch.int32),
    }


def test_opcheck():
    a = operands()
    d2t = a.pop("d2t")
    op = torch.ops.specfast.draw_candidates.default
    logits, *rest = a.values()
    torch.library.opcheck(op, (logits, d2t, *rest))
    torch.library.opcheck(op, (logits, None, *rest))


WRONG = {
    "logits: needs a vocabulary": {"logits": torch.zeros(3, 0)},
    r"d2t: shape must be \[17\]": {"d2t": torch.zeros(16, dtype=torch.int32)},
    "nodes: dtype must be": {"nodes": torch.zeros(3)},
    "roots: shape must be": {"roots": torch.zeros(2, dtype=torch.int32)},
    "ids: dtype must be": {"ids": torch.zeros(3, 4)},
    r"laws: shape must be \[3, 17\]": {"laws": torch.zeros(3, 16)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    with pytest.raises(RuntimeError, match=message):
        ops.draw_candidates(**{**operands(), **WRONG[message]})
