"""Every rule by exact enumeration: small vocabularies, random tables, all drafts and all coins.

What a step emits, continued by the target, must follow the target's joint law to 1e-12; each
control breaks one thing and must be far off.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
import torch

from specfast import reference, reference_verification
from specfast.reference_verification import DraftTree, Verdict, verify
from tests.unit.verification import (
    Shape,
    Tables,
    chain,
    distance,
    drawn_trees,
    emitted_law,
    outcomes,
    without,
)

SIBLINGS = Shape((-1, -1, -1), (True,) * 3, (0, 1, 2))
TREE = Shape((-1, -1, 0, 1), (True,) * 4, (0, 1, 0, 1))
DEEP_TREE = Shape((-1, -1, 0, 0, 2), (True,) * 5, (0, 1, 0, 1, 0))
MIXED = Shape((-1, -1, 0, 0, 1), (True, False, False, True, True), (0, 2, 1, 0, 0))
GUESSED = replace(DEEP_TREE, sampled=(False,) * 5)

# vocabulary, depth, shape, draft vocabulary
FAMILIES = {
    "no draft": (3, 1, Shape((), (), ()), None),
    "one draft": (4, 1, chain(1), None),
    "chain": (3, 3, chain(3), None),
    "point-mass chain": (4, 3, chain(3, sampled=False), None),
    "chain of both": (3, 3, Shape((-1, 0, 1), (True, False, True), (0, 1, 0)), None),
    "siblings": (4, 1, SIBLINGS, None),
    "all siblings there are": (3, 1, SIBLINGS, None),
    "tree": (3, 2, TREE, None),
    "deep tree": (3, 3, DEEP_TREE, None),
    "tree of four tokens": (4, 2, TREE, None),
    "point-mass tree": (3, 3, GUESSED, None),
    "mixed tree": (3, 2, MIXED, None),
    "reduced vocabulary, chain": (4, 2, chain(2), (0, 3)),
    "reduced vocabulary, tree": (4, 2, TREE, (1, 2, 3)),
}


def tables_of(family: str, seed: int = 0) -> Tables:
    vocab, depth, _, drafted = FAMILIES[family]
    return Tables(vocab, depth, seed, drafted)


def rule(by_token: bool):
    return lambda target, tree, accept: verify(target, tree, accept, by_token)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rejection_keeps_the_targets_law(family, by_token, seed):
    tables, shape = tables_of(family, seed), FAMILIES[family][2]
    assert distance(emitted_law(shape, tables, rule(by_token)), tables.joint()) < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_matching_keeps_the_targets_law(family):
    tables, shape = tables_of(family), FAMILIES[family][2]
    emitted: dict[tuple[int, ...], float] = defaultdict(float)
    for chance, tree in drawn_trees(shape, tables):
        rows = range(-1, len(tree.tokens))
        laws = [tables.p[shape.path_to(i, tree.tokens)].tolist() for i in rows]
        ok, nodes = [0] * len(laws), (list(tree.tokens), list(tree.parents))
        for decided in product(range(tables.vocab), repeat=len(laws)):
            weight = chance
            for law, token in zip(laws, decided):
                weight *= law[token]
            path, token, _ = reference.accept_path(list(decided), ok, 0, *nodes)
            emitted[(*(tree.tokens[i] for i in path), token)] += weight
    assert distance(tables.joint(emitted), tables.joint()) < 1e-12


def stop_after_unlikely(tree: DraftTree) -> DraftTree:
    """No children below a node that was unlikely: decided before they are drawn."""
    unlikely = {
        i for i, law in enumerate(tree.laws) if law is not None and law[tree.tokens[i]] < 0.3
    }
    return without(tree, {i for i, p in enumerate(tree.parents) if p in unlikely})


def drop_unlikely(tree: DraftTree) -> DraftTree:
    """Decided after it was drawn: the trap."""
    return without(
        tree,
        {i for i, law in enumerate(tree.laws) if law is not None and law[tree.tokens[i]] < 0.3},
    )


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", ["chain", "tree", "deep tree"])
def test_stopping_after_an_unlikely_draft_is_safe_and_dropping_it_is_not(family, by_token):
    tables, shape = tables_of(family), FAMILIES[family][2]
    safe = emitted_law(shape, tables, rule(by_token), stop_after_unlikely)
    assert distance(safe, tables.joint()) < 1e-12
    dropped = emitted_law(shape, tables, rule(by_token), drop_unlikely)
    assert distance(dropped, tables.joint()) > 1e-3


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_extended_may_depend_on_all_that_was_drawn(which, by_token):
    """On a later sibling too: it is judged as if its elder had no children."""

    def first_or_both(tree: DraftTree) -> DraftTree:
        return without(tree, {2 + which} if tree.tokens[1 - which] == 0 else set())

    tables, shape = tables_of("tree of four tokens"), FAMILIES["tree of four tokens"][2]
    law = emitted_law(shape, tables, rule(by_token), first_or_both)
    assert distance(law, tables.joint()) < 1e-12


def told_another_law(tree: DraftTree) -> DraftTree:
    flat = [
        None if law is None else 0.8 * law + 0.2 * (law > 0) / (law > 0).sum() for law in tree.laws
    ]
    return replace(tree, laws=flat)


class Forgetful(DraftTree):
    """Forgets that earlier siblings can't be drawn again."""

    def drawn_from(self, node):
        return self.laws[node]


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", ["chain", "siblings", "tree", "reduced vocabulary, tree"])
def test_a_wrong_draft_law_is_noticed(family, by_token):
    tables, shape = tables_of(family), FAMILIES[family][2]
    law = emitted_law(shape, tables, rule(by_token), told_another_law)
    assert distance(law, tables.joint()) > 1e-3


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", ["siblings", "tree of four tokens"])
def test_siblings_must_be_left_out_of_their_law(family, by_token):
    tables, shape = tables_of(family), FAMILIES[family][2]

    def forgetful(tree):
        return Forgetful(tree.tokens, tree.parents, tree.laws)

    law = emitted_law(shape, tables, rule(by_token), forgetful)
    assert distance(law, tables.joint()) > 1e-3


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", ["siblings", "tree", "point-mass tree"])
def test_rejected_siblings_must_leave_a_residual(family, by_token, monkeypatch):
    """The last rejection counts, those before it are forgotten."""
    original = reference_verification._Open.reject

    def reject(self, child):
        self.law = self.target
        original(self, child)

    monkeypatch.setattr(reference_verification._Open, "reject", reject)
    tables, shape = tables_of(family), FAMILIES[family][2]
    assert distance(emitted_law(shape, tables, rule(by_token)), tables.joint()) > 1e-3


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("family", ["one draft", "chain", "point-mass chain", "tree"])
def test_a_rejection_must_draw_from_the_residual(family, by_token):
    def no_residual(target, tree, accept):
        verdict = verify(target, tree, accept, by_token)
        last = verdict.path[-1] if verdict.path else -1
        return replace(verdict, law=target[1 + last])

    tables, shape = tables_of(family), FAMILIES[family][2]
    assert distance(emitted_law(shape, tables, no_residual), tables.joint()) > 1e-3


def block_verdicts(target, tree) -> list[tuple[float, Verdict]]:
    """Block verification as published: independent coins for all prefixes, the longest counts."""
    k, pi = len(tree.tokens), [1.0]
    for i, (token, law) in enumerate(zip(tree.tokens, tree.laws)):
        pi.append(min(1.0, pi[i] * float(target[i][token] / law[token])))
    rests = [(pi[i] * target[i] - tree.laws[i]).clamp_min(0) for i in range(k)]
    h = [float(r.sum() / (r.sum() + 1 - pi[i])) for i, r in enumerate(rests)] + [pi[k]]
    found, left = [], 1.0
    for length in range(k, -1, -1):
        chance = left * (h[length] if length else 1.0)
        law = target[k] if length == k else rests[length] / rests[length].sum()
        found.append((chance, Verdict(list(range(length)), law, length < k)))
        left -= chance
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_through_traversal_is_block_verification(seed):
    tables = Tables(3, 3, seed)
    for _, tree in drawn_trees(chain(3), tables):
        target = [tables.p[tuple(tree.tokens[:i])] for i in range(4)]
        for chance, expected in block_verdicts(target, tree):
            found = [
                (weight, verdict)
                for weight, verdict in outcomes(lambda accept: verify(target, tree, accept))  # noqa: B023
                if verdict.path == expected.path
            ]
            assert sum(w for w, _ in found) == pytest.approx(chance, abs=1e-12)
            if chance > 1e-12:
                torch.testing.assert_close(found[0][1].law, expected.law, rtol=1e-9, atol=1e-12)


def recursive_law(p, tree: DraftTree) -> torch.Tensor:
    """Of the first token under recursive rejection sampling of siblings, as published."""
    out, left, q = torch.zeros_like(p), 1.0, tree.laws[0]
    for token in tree.tokens:
        h = min(1.0, float(p[token] / q[token]))
        out[token] += left * h
        left *= 1 - h
        if left < 1e-15:
            return out
        rest = (p - q).clamp_min(0)
        p, q = rest / rest.sum(), q.clone()
        q[token] = 0
        q /= q.sum()
    return out + left * p


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
def test_a_tree_of_depth_1_is_recursive_rejection_sampling(by_token):
    tables = Tables(4, 1, 3)
    two = Shape((-1, -1), (True, True), (0, 1))
    for _, tree in drawn_trees(two, tables):
        target = [tables.p[()], tables.p[()], tables.p[()]]
        out = torch.zeros(4, dtype=torch.float64)
        for weight, verdict in outcomes(lambda accept: verify(target, tree, accept, by_token)):  # noqa: B023
            if verdict.path:
                out[tree.tokens[verdict.path[0]]] += weight
            else:
                out += weight * verdict.law
        torch.testing.assert_close(out, recursive_law(tables.p[()], tree), rtol=0, atol=1e-12)


def mean_accepted(tables, shape, by_token) -> float:
    total = 0.0
    for chance, tree in drawn_trees(shape, tables):
        target = [tables.p[shape.path_to(i, tree.tokens)] for i in range(-1, len(tree.tokens))]
        for weight, verdict in outcomes(lambda accept: verify(target, tree, accept, by_token)):  # noqa: B023
            total += chance * weight * len(verdict.path)
    return total


@pytest.mark.parametrize("family", ["chain", "tree", "deep tree"])
def test_the_block_rule_accepts_more(family):
    tables, shape = tables_of(family), FAMILIES[family][2]
    assert mean_accepted(tables, shape, False) > mean_accepted(tables, shape, True) + 1e-4


def test_nothing_left_falls_back_to_the_target():
    """Equal laws and a coin that falls against all odds: the target's own law, not token 0."""
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    tree = DraftTree([1], [-1], [p])
    verdict = verify([p, p], tree, lambda node, h: False)
    assert verdict.path == [] and torch.equal(verdict.law, p)
