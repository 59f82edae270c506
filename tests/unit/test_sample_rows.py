from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specfast import ops
from specfast import reference_sampling as reference
from tests.unit.exact import raw, same_bytes, strided
from tests.unit.sampling_ops import sample

INF, NAN = math.inf, math.nan
SETTINGS = {
    "plain": {},
    "cool": {"temperature": 0.3},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "narrow top_p": {"top_p": 1e-9},
    "wide top_p": {"top_p": 0.999},
    "min_p": {"min_p": 0.05},
    "tiny min_p": {"min_p": 1e-7},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    "greedy": {"temperature": 0.0, "top_k": 3},
}
# float32 scores may order two tokens otherwise than float64 ones that are this close.
CLOSE = 5e-6


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def setting(request) -> dict:
    return request.param


def mixed(rows: int, vocab: int, rng: torch.Generator) -> Tensor:
    """Rows of all kinds: flat to peaked, ties, -inf, huge, a NaN, nothing allowed."""
    logits = torch.randn(rows, vocab, generator=rng)
    for row, kind in enumerate(torch.arange(rows) % 8):
        if kind == 1:
            logits[row] *= 12
        elif kind == 2:
            logits[row] = (2 * logits[row]).round()
        elif kind == 3:
            logits[row, torch.rand(vocab, generator=rng) < 0.5] = -INF
        elif kind == 4:
            logits[row] *= 1e38
        elif kind == 5:
            logits[row, -1] = NAN
        elif kind == 6:
            logits[row] = -INF
    return logits


@pytest.mark.parametrize("vocab", (1, 3, 16, 65, 1000, 8192, 8209))
def test_tokens_are_the_references(vocab, setting, rng):
    rows = 24
    scale = torch.tensor([1.0, 4.0, 20.0]).repeat(rows // 3)[:, None]
    logits = scale * torch.randn(rows, vocab, generator=rng)
    got = sample(logits, seed=list(range(rows)), position=list(range(7, rows + 7)), **setting)
    assert not got.status.any()
    for row in range(rows):
        settings = {"temperature": 1.0, **setting, "seed": row, "position": row + 7}
        token, margin = reference.sample_row(logits[row], **settings)
        assert int(got.tokens[row]) == token or margin < CLOSE


def test_tiers_and_threads_give_the_same_bytes(setting, rng):
    for vocab in (1, 17, 8200, 20_000):
        logits = mixed(19, vocab, rng)
        same_bytes(lambda: sample(logits, seed=5, num_logprobs=3, **setting).bits())  # noqa: B023
        same_bytes(lambda: sample(logits[:1], seed=5, num_logprobs=0, **setting).bits())  # noqa: B023


def test_rows_do_not_depend_on_their_neighbours(rng):
    """Alone, permuted, strided, and beside rows of every other kind and setting."""
    settings = [{"temperature": 1.0, **s} for s in SETTINGS.values()]
    rows = 8 * len(settings)
    columns = {
        name: torch.tensor([settings[r % len(settings)].get(name, off) for r in range(rows)])
        for name, off in {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}.items()
    }
    columns |= {"seed": torch.arange(rows), "position": torch.arange(rows) * 3}
    logits = mixed(rows, 9000, rng)

    def run(order: Tensor, of: Tensor = logits) -> Tensor:
        picked = {name: values[order] for name, values in columns.items()}
        return sample(of[order], num_logprobs=2, **picked).bits()

    whole = run(torch.arange(rows))
    for row in range(rows):
        assert raw(run(torch.tensor([row]))) == raw(whole[row])
    order = torch.randperm(rows, generator=rng)
    assert raw(run(order)) == raw(whole[order])
    assert raw(sample(strided(logits), num_logprobs=2, **columns).bits()) == raw(whole)


def test_noise_belongs_to_seed_and_position():
    logits = torch.zeros(600, 5000)
    same = sample(logits, seed=3, position=4).tokens
    assert (same == same[0]).all()
    assert len(sample(logits, seed=3, position=torch.arange(600)).tokens.unique()) > 500
    assert len(sample(logits, seed=torch.arange(600), position=4).tokens.unique()) > 500
    high = sample(logits, seed=torch.arange(600) << 32, position=4).tokens
    assert len(high.unique()) > 500


@pytest.mark.parametrize(
    ("logits", "token"),
    (
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([-0.0, 0.0, -1.0], 0),
        ([0.0, -0.0], 0),
        ([-INF, -5.0, -5.0], 1),
        ([0.0, INF, INF], 1),
        ([1e-45, 3e-45, 0.0], 1),
        ([-3e-45, -1e-45], 1),
        ([-3e38], 0),
    ),
)
def test_greedy(logits, token):
    rows = torch.tensor([logits])
    for temperature in (0.0, 0.99e-5, -1.0, NAN):
        got = sample(rows, temperature, top_k=2, top_p=0.1)
        assert (got.tokens.tolist(), got.status.tolist()) == ([token], [0])


def test_greedy_finds_a_lone_peak_anywhere():
    for vocab in (1, 16, 255, 257, 8193):
        logits = torch.full((1, vocab), -1.0)
        for token in {0, vocab // 2, vocab - 1}:
            logits[0, token] = 1.0
            assert sample(logits, 0.0).tokens.tolist() == [token]
            logits[0, token] = -1.0


def test_temperature_boundary():
    """The float32 nearest to 1e-5 still draws; below it rows are greedy."""
    boundary = torch.tensor(1e-5)
    below = torch.nextafter(boundary, torch.tensor(0.0))
    logits, seeds = torch.zeros(64, 50), torch.arange(64)
    assert len(sample(logits, boundary, seed=seeds).tokens.unique()) > 30
    assert not sample(logits, below, seed=seeds).tokens.any()


def test_a_huge_temperature_is_uniform_over_the_finite():
    logits = torch.tensor([[5e4, -INF, -1e30, 0.0]]).repeat(400, 1)
    for temperature in (3e38, INF):
        counts = sample(logits, temperature, seed=torch.arange(400)).tokens.bincount(minlength=4)
        assert counts[1] == 0
        assert counts[[0, 2, 3]].min() > 90


@pytest.mark.parametrize(
    ("logits", "status"),
    (
        ([0.0, NAN, 1.0], ops.ROW_NAN),
        ([NAN, -INF], ops.ROW_NAN),
        ([-INF, -INF], ops.ROW_NO_SUPPORT),
        ([-INF, -3e38], 0),
        ([INF, 0.0], 0),
    ),
)
def test_status(logits, status, setting):
    got = sample(torch.tensor([logits]), num_logprobs=1, **setting)
    assert got.status.tolist() == [status]
    if status:
        assert got.tokens.tolist() == [-1]
        assert got.logprob_ids.tolist() == [[-1, -1]]
        assert got.logprobs.tolist() == [[-INF, -INF]]
    else:
        assert got.tokens.tolist() == [int(torch.tensor(logits).argmax())]


def test_huge_and_tiny_logits_stay_finite_and_in_order(setting):
    huge = torch.tensor([[1e38, -1e38, 3e38, -INF]]).repeat(50, 1)
    got = sample(huge, seed=torch.arange(50), num_logprobs=4, **setting)
    assert not got.status.any()
    assert got.logprobs.isfinite()[:, :4].all()
    assert (got.logprob_ids[:, 4] == -1).all()
    subnormal = torch.full((200, 3), 1e-44)
    drawn = sample(subnormal, 1.0, seed=torch.arange(200)).tokens.bincount(minlength=3)
    assert drawn.min() > 40


def drawn_set(logits: list[float], **settings) -> set[int]:
    """Every token that 600 seeds draw."""
    rows = torch.tensor([logits]).repeat(600, 1)
    return set(sample(rows, seed=torch.arange(600), **settings).tokens.tolist())


def test_ties_at_a_boundary_keep_the_lowest_ids():
    assert drawn_set([0.0] * 9, top_k=4) == {0, 1, 2, 3}
    assert drawn_set([0.0] * 9, top_p=0.5) == {0, 1, 2, 3, 4}
    assert drawn_set([0.0, 1.0, 0.0, 1.0, 0.0], top_k=3) == {0, 1, 3}
    assert drawn_set([-0.0, 0.0, -0.0], top_k=2) == {0, 1}
    assert drawn_set([0.0] * 8, top_k=4, top_p=0.5) == {0, 1}


def test_limits_of_the_filters():
    assert drawn_set([0.0, 0.1, 0.2], top_k=7) == {0, 1, 2}
    assert drawn_set([0.0, 0.1, 0.2], top_k=-1, top_p=2.0, min_p=-1.0) == {0, 1, 2}
    assert drawn_set([0.0, 0.1, 0.2], top_p=NAN, min_p=NAN) == {0, 1, 2}
    for top_p in (0.0, 1e-45, -1.0):
        assert drawn_set([0.0, 0.2, 0.2], top_p=top_p) == {1}
    assert drawn_set([0.0, 0.2, 0.2], min_p=1.0) == {1, 2}
    assert drawn_set([0.0, 0.2, 0.2], min_p=50.0) == {1, 2}
    assert drawn_set([-INF, 0.0, -INF], top_k=2, top_p=0.9, min_p=0.1) == {1}


def test_filters_look_beyond_the_neighbourhood_of_the_peak():
    """Supports whose boundary lies far below the peak, over several slices."""
    logits = torch.zeros(20_000)
    logits[19_999] = 9.0  # and yet most of the mass lies at 0
    logits[:10_000] -= torch.arange(10_000) % 2 * 3.0
    kept = reference.support(logits, top_p=0.95)
    assert 1000 < kept.sum() < 19_000
    rows = logits.repeat(400, 1)
    for settings in ({"top_p": 0.95}, {"top_k": 700}, {"min_p": 1e-5}):
        kept = reference.support(logits, **settings)
        tokens = sample(rows, seed=torch.arange(400), **settings).tokens.long()
        assert kept[tokens].all()
        assert len(tokens.unique()) > 20


logit = st.one_of(
    st.integers(-6, 6).map(float),
    st.floats(-40, 40, width=32),
    st.sampled_from((-INF, -0.0, 1e-40, 3e38, -3e38)),
)


@given(
    logits=st.lists(logit, min_size=1, max_size=70),
    temperature=st.sampled_from((0.02, 0.7, 1.0, 2.5, 1e9)),
    top_k=st.integers(-1, 80),
    top_p=st.floats(0, 1.125, width=32),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1, width=32)),
    seed=st.integers(0, 2**62),
)
def test_any_row_agrees_with_the_reference(logits, temperature, top_k, top_p, min_p, seed):
    row = torch.tensor(logits)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    seeds = [seed + i for i in range(8)]
    got = sample(row.repeat(8, 1), temperature, seed=seeds, position=9, **filters)
    if (row == -INF).all():
        assert got.status.tolist() == [ops.ROW_NO_SUPPORT] * 8
        return
    kept = reference.support(reference.tempered(row, temperature), **filters)
    for i, token in enumerate(got.tokens.tolist()):
        assert kept[token]
        expected, margin = reference.sample_row(row, temperature, seeds[i], 9, **filters)
        assert token == expected or margin < CLOSE


@pytest.mark.parametrize("vocab", (1, 5, 1000, 20_000))
@pytest.mark.parametrize("scale", (1e-3, 1.0, 10.0))
def test_logprobs(vocab, scale, rng):
    logits = scale * torch.randn(9, vocab, generator=rng)
    num = min(6, vocab)
    got = sample(logits, 0.7, top_k=3, seed=1, num_logprobs=num)
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert torch.equal(got.logprob_ids[:, 0], got.tokens)
    assert torch.equal(got.logprob_ids[:, 1:].long(), logits.topk(num).indices)
    chosen = expected.gather(1, got.logprob_ids.long())
    torch.testing.assert_close(got.logprobs.double(), chosen, rtol=1e-6, atol=6e-6)
    assert (got.logprobs <= 0).all()


def test_logprobs_past_the_end_and_in_ties():
    got = sample(torch.tensor([[1.0, -INF, 1.0]]), 0.0, num_logprobs=4)
    assert got.logprob_ids.tolist() == [[0, 0, 2, -1, -1]]
    assert got.logprobs[0, 3:].tolist() == [-INF, -INF]
    torch.testing.assert_close(got.logprobs[0, :3], torch.full((3,), -math.log(2)))


def test_no_rows():
    assert sample(torch.zeros(0, 4), num_logprobs=1).tokens.tolist() == []


def operands(rows: int = 3, vocab: int = 17) -> dict[str, Tensor]:
    i32 = lambda *shape: torch.zeros(*shape, dtype=torch.int32)  # noqa: E731
    return {
        "logits": torch.randn(rows, vocab),
        "temperature": torch.ones(rows),
        "top_k": i32(rows),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "seeds": torch.zeros(rows, dtype=torch.int64),
        "positions": i32(rows),
        "tokens": i32(rows),
        "status": i32(rows),
        "logprob_ids": i32(rows, 2),
        "logprobs": torch.zeros(rows, 2),
    }


def test_opcheck():
    op, given_all = torch.ops.specfast.sample_rows.default, tuple(operands().values())
    torch.library.opcheck(op, given_all)
    torch.library.opcheck(op, (*given_all[:-2], None, None))


WRONG = {
    "logits: dtype must be": {"logits": torch.zeros(3, 17).bfloat16()},
    "logits: needs a vocabulary, got 0": {"logits": torch.zeros(3, 0)},
    "logits: rows must be dense": {"logits": torch.zeros(17, 3).T},
    r"temperature: shape must be \[3\], got \[4\]": {"temperature": torch.ones(4)},
    "top_k: dtype must be": {"top_k": torch.zeros(3, dtype=torch.int64)},
    "top_p: must be contiguous": {"top_p": torch.ones(6)[::2]},
    "min_p: shape must be": {"min_p": torch.zeros(3, 1)},
    "seeds: dtype must be": {"seeds": torch.zeros(3, dtype=torch.int32)},
    "positions: dtype must be": {"positions": torch.zeros(3)},
    "tokens: dtype must be": {"tokens": torch.zeros(3, dtype=torch.int64)},
    "status: shape must be": {"status": torch.zeros(2, dtype=torch.int32)},
    "logprob_ids and logprobs: give both or neither": {"logprobs": None},
    "logprob_ids: the first column": {"logprob_ids": torch.zeros(3, 0, dtype=torch.int32)},
    r"logprobs: shape must be \[3, 2\]": {"logprobs": torch.zeros(3, 3)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    with pytest.raises(RuntimeError, match=message):
        ops.sample_rows(**{**operands(), **WRONG[message]})
