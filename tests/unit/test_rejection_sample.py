from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specfast import ops
from specfast import reference_verification as reference
from specfast.reference_verification import DraftTree, RowSettings
from tests.unit.exact import raw, same_bytes
from tests.unit.sampling_ops import sample
from tests.unit.verification_ops import Trees, Verified, draw, i32, reject

INF, NAN = math.inf, math.nan
RULES = pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
SETTINGS = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "cold": {"temperature": 0.05},
    "filtered": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
}


@dataclass
class Case:
    """A batch of random trees, drawn honestly; some nodes are guesses behind drawn siblings."""

    logits: Tensor
    trees: Trees
    seeds: list[int]
    roots: list[int]
    laws: Tensor
    vocab_map: Tensor | None
    settings: dict

    def run(self, by_token: bool = False, **changes) -> Verified:
        values = {"laws": self.laws, "vocab_map": self.vocab_map, **self.settings, **changes}
        return reject(self.logits, self.trees, self.roots, self.seeds, by_token, **values)

    def tree(self, b: int) -> DraftTree:
        """One sequence as the reference takes it."""
        vocab, rows = self.logits.shape[1], self.trees.law_row[b]
        ids = torch.arange(vocab) if self.vocab_map is None else self.vocab_map.long()
        zero = torch.zeros(vocab, dtype=torch.float64)
        laws = [
            None if r < 0 else zero.index_copy(0, ids, self.laws[r].double().softmax(0))
            for r in rows
        ]
        return DraftTree(self.trees.tokens[b], self.trees.parents[b], laws)

    def rows(self, b: int) -> Tensor:
        base = int(self.trees.row_base[b])
        return self.logits[base : base + 1 + len(self.trees.tokens[b])]


def random_case(
    batch: int, vocab: int, settings: dict, mapped: bool = False, guesses: float = 0.2,
    max_nodes: int = 7, seed: int = 0,
) -> Case:  # fmt: skip
    rng, gen = random.Random(seed), torch.Generator().manual_seed(seed)
    parents = [
        [rng.randint(max(-1, i - 3), i - 1) for i in range(rng.randint(0, max_nodes))]
        for _ in range(batch)
    ]
    logits = 2 * torch.randn(sum(1 + len(p) for p in parents), vocab, generator=gen)
    kept = torch.randperm(vocab, generator=gen)[: max(1, 2 * vocab // 3)] if mapped else None
    draft = logits if kept is None else logits[:, kept]
    draft = draft + 0.7 * torch.randn(draft.shape, generator=gen)
    trees, laws, base = Trees([], [], []), [], 0
    seeds = [rng.getrandbits(62) for _ in range(batch)]
    roots = [rng.randint(0, 100) for _ in range(batch)]
    for b, of_parents in enumerate(parents):
        tokens, law_row = [-1] * len(of_parents), [-1] * len(of_parents)
        depth = {-1: 0}
        for i, parent in enumerate(of_parents):
            depth[i] = depth[parent] + 1
        for parent in sorted(set(of_parents)):
            children = [i for i, p in enumerate(of_parents) if p == parent]
            row = draft[base + 1 + parent][None]
            where = (seeds[b], roots[b] + depth[parent], parent, roots[b])
            d2t = None if kept is None else kept.int()
            ids, law = draw(row, len(children), *where, d2t, **settings)
            laws.append(law)
            found = [t for t in ids[0].tolist() if t >= 0]
            for child in children:
                if found and rng.random() >= guesses:
                    tokens[child], law_row[child] = found.pop(0), len(laws) - 1
                    continue
                found = []
                taken = {tokens[i] for i in children}
                free = [t for t in range(min(vocab, 64)) if t not in taken]
                tokens[child] = rng.choice(free) if free else 0
        trees.tokens.append(tokens)
        trees.parents.append(of_parents)
        trees.law_row.append(law_row)
        base += 1 + len(of_parents)
    stacked = torch.cat(laws) if laws else torch.zeros(1, draft.shape[1])
    vocab_map = None if kept is None else kept.int()
    return Case(logits, trees, seeds, roots, stacked, vocab_map, settings)


@pytest.mark.parametrize("mapped", [False, True], ids=["same ids", "vocab_map"])
@RULES
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", [2, 17, 300, 8300])
def test_any_tree_agrees_with_the_reference(vocab, settings, by_token, mapped):
    batch = 12 if vocab == 8300 else 60
    case = random_case(batch, vocab, SETTINGS[settings], mapped)
    got, clear = case.run(by_token), 0
    for b in range(batch):
        path, token, margin = reference.rejection_sample(
            case.rows(b), RowSettings(**case.settings), case.tree(b), case.seeds[b],
            case.roots[b], by_token,
        )  # fmt: skip
        if margin > 1e-4:
            clear += 1
            assert got.of(b) == (path, token, 0)
    assert clear > 0.9 * batch


@RULES
def test_point_masses_need_no_laws(by_token):
    case = random_case(60, 17, {}, guesses=1.0)
    with_laws, without = case.run(by_token), case.run(by_token, laws=None)
    assert raw(with_laws.bits()) == raw(without.bits())
    assert with_laws.num_accepted.sum() > 0


@RULES
def test_a_greedy_target_matches(by_token):
    case = random_case(60, 6, {})
    for b, tokens in enumerate(case.trees.tokens):
        decided = case.rows(b).argmax(1).tolist()
        for i, parent in enumerate(case.trees.parents[b]):
            if (b + i) % 3:
                tokens[i] = decided[1 + parent]
    got = case.run(by_token, temperature=0.0)
    tokens = sample(case.logits, 0.0).tokens
    out = torch.full_like(got.path, -1), *torch.zeros(3, 60, dtype=torch.int32)
    ops.accept_path(
        tokens, torch.zeros_like(tokens), case.trees.row_base, case.trees.padded(case.trees.tokens),
        case.trees.padded(case.trees.parents), case.trees.lengths, *out,
    )  # fmt: skip
    assert raw(got.bits()) == raw(Verified(*out).bits())
    assert got.num_accepted.max() > 1


@RULES
def test_without_a_rejection_the_target_decides_by_its_own_noise(by_token):
    case = random_case(80, 9, SETTINGS["filtered"])
    got, bonus, plain = case.run(by_token), 0, 0
    for b in range(80):
        path, token, _ = got.of(b)
        last = path[-1] if path else -1
        if last in case.trees.parents[b]:
            continue  # a child of it was rejected
        row = case.rows(b)[1 + last][None]
        at = int(case.trees.positions(case.roots)[int(case.trees.row_base[b]) + 1 + last])
        expected = sample(row, seed=case.seeds[b], position=at, **case.settings).tokens
        assert token == int(expected)
        bonus, plain = bonus + bool(path), plain + (not case.trees.tokens[b])
    assert bonus > 10 and plain > 2


def test_equal_laws_are_always_accepted():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(2)).repeat(4000, 1)
    seeds = torch.arange(2000)
    ids, laws = draw(logits[:2000], 1, seeds, 5, -1, 5)
    trees = Trees([[t] for t in ids[:, 0].tolist()], [[-1]] * 2000, [[i] for i in range(2000)])
    for by_token in (True, False):
        got = reject(logits, trees, [5] * 2000, seeds, by_token, laws)
        assert got.num_accepted.sum() == 2000


def test_a_law_that_gives_its_draft_nothing_is_not_believed():
    """It can't have been drawn, so it is judged as the point mass that it is."""
    case = random_case(60, 17, {}, guesses=1.0)
    law = torch.zeros(1, 17)
    for b, tokens in enumerate(case.trees.tokens):
        law[0] = 0
        law[0, tokens] = -INF
        single = Trees([tokens], [case.trees.parents[b]], [[0] * len(tokens)])
        args = (case.rows(b), single, [case.roots[b]], [case.seeds[b]])
        if len(tokens) < 17:
            assert raw(reject(*args, laws=law).bits()) == raw(reject(*args).bits())


@RULES
@pytest.mark.parametrize("settings", SETTINGS)
def test_tiers_and_threads_give_the_same_bytes(settings, by_token):
    for vocab in (2, 17, 8200, 20_000):
        for mapped in (False, True):
            case = random_case(5, vocab, SETTINGS[settings], mapped, seed=3)
            same_bytes(lambda: case.run(by_token).bits())  # noqa: B023


@RULES
def test_sequences_do_not_depend_on_their_neighbours(by_token):
    case = random_case(20, 9000, SETTINGS["filtered"])
    whole = case.run(by_token)
    for b in range(20):
        trees = Trees([case.trees.tokens[b]], [case.trees.parents[b]], [case.trees.law_row[b]])
        alone = reject(
            case.rows(b), trees, [case.roots[b]], [case.seeds[b]], by_token, case.laws,
            **case.settings,
        )  # fmt: skip
        assert alone.of(0) == whole.of(b)


def verdict(logits, tokens, parents, by_token, row_status=None, seed=0):
    trees = Trees([tokens], [parents], [[-1] * len(tokens)])
    status = None if row_status is None else i32(row_status)
    return reject(torch.tensor(logits), trees, [3], [seed], by_token, row_status=status).of(0)


SURE_0, SURE_1, BAD = [0.0, -INF], [-INF, 0.0], [NAN, 0.0]


@RULES
def test_a_status_counts_on_the_path_and_its_last_row_alone(by_token):
    assert verdict([BAD, SURE_0], [0], [-1], by_token) == ([], -1, ops.ROW_NAN)
    assert verdict([SURE_0, BAD], [0], [-1], by_token) == ([0], -1, ops.ROW_NAN)
    assert verdict([SURE_0, BAD], [1], [-1], by_token) == ([], 0, 0)
    assert verdict([SURE_0, [-INF, -INF]], [0], [-1], by_token) == ([0], -1, ops.ROW_NO_SUPPORT)
    # the child of a row that is no good can't be judged
    chain = ([0, 0], [-1, 0])
    assert verdict([SURE_0, BAD, SURE_1], *chain, by_token) == ([0], -1, ops.ROW_NAN)
    assert verdict([SURE_0, SURE_0, SURE_1], *chain, by_token, [0, 1, 0]) == ([0], -1, 1)
    assert verdict([SURE_1, BAD, BAD], *chain, by_token) == ([], 1, 0)
    # a sibling's row is nobody's affair
    assert verdict([SURE_1, BAD, SURE_0], [0, 1], [-1, -1], by_token, [0, 7, 0]) == ([1], 0, 0)


@RULES
def test_padding_sequences(by_token):
    trees = Trees([[0], [0], []], [[-1], [-1], []], [[-1], [-1], []])
    logits = torch.tensor([SURE_0, SURE_1, SURE_1])
    got = reject(
        torch.cat((logits, logits[:2])), trees, [0] * 3, [0] * 3, by_token, row_base=i32([-1, 0, 2])
    )
    assert [got.of(b) for b in range(3)] == [([], -1, 0), ([0], 1, 0), ([], 1, 0)]
    empty = reject(torch.zeros(0, 4), Trees([], [], []), [], [], by_token)
    assert empty.path.shape == (0, 0)


def operands() -> dict[str, object]:
    return {
        "logits": torch.zeros(3, 4),
        "temperature": torch.ones(3),
        "top_k": i32([0] * 3),
        "top_p": torch.ones(3),
        "min_p": torch.zeros(3),
        "seeds": torch.zeros(3, dtype=torch.int64),
        "positions": i32([5, 6, 7]),
        "row_status": i32([0] * 3),
        "row_base": i32([0]),
        "roots": i32([5]),
        "draft_tokens": i32([[1, 2]]),
        "parents": i32([[-1, 0]]),
        "lengths": i32([2]),
        "draft_laws": torch.zeros(2, 3),
        "law_row": i32([[0, 1]]),
        "vocab_map": i32([0, 1, 2]),
        "by_token": False,
        "path": i32([[0, 0]]),
        "num_accepted": i32([0]),
        "next_tokens": i32([0]),
        "status": i32([0]),
    }


def test_opcheck():
    op = torch.ops.specfast.rejection_sample.default
    torch.library.opcheck(op, tuple(operands().values()))
    none = dict.fromkeys(("draft_laws", "law_row", "vocab_map"))
    torch.library.opcheck(op, tuple({**operands(), **none}.values()))


WRONG = {
    "logits: dtype must be": {"logits": torch.zeros(3, 4).double()},
    "seeds: shape must be": {"seeds": torch.zeros(2, dtype=torch.int64)},
    "row_status: shape must be": {"row_status": i32([0, 0])},
    "roots: shape must be": {"roots": i32([0, 0])},
    r"lengths\[0\] must be": {"lengths": i32([3])},
    r"row_base\[0\] = 1 and lengths\[0\] = 2 reach past the 3 rows": {"row_base": i32([1])},
    r"draft_tokens\[0, 1\] must be in \[0, V = 4\), got 4": {"draft_tokens": i32([[1, 4]])},
    r"parents\[0, 1\] must be in \[-1, 1\), got 1": {"parents": i32([[-1, 1]])},
    "draft_laws and law_row: give both": {"law_row": None},
    "vocab_map: maps draft_laws": {"draft_laws": None, "law_row": None},
    r"draft_laws: shape must be \[\*, 4\]": {"vocab_map": None},
    r"law_row\[0, 1\] must be in \[-1, 2\), got 2": {"law_row": i32([[0, 2]])},
    r"vocab_map\[2\] must be in \[0, V = 4\), got 4": {"vocab_map": i32([0, 1, 4])},
    "vocab_map: shape must be": {"vocab_map": i32([0, 1])},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_refused_tensor_is_named(message):
    with pytest.raises(RuntimeError, match=message):
        ops.rejection_sample(**{**operands(), **WRONG[message]})


def test_more_nodes_than_bits_are_refused():
    wide = {name: i32([[-1] * 65]) for name in ("draft_tokens", "parents", "path", "law_row")}
    with pytest.raises(RuntimeError, match="at most 64 nodes"):
        ops.rejection_sample(**{**operands(), **wide, "lengths": i32([0])})
