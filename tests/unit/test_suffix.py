"""Suffix trees and their drafts against counting every occurrence, through growth and eviction."""

from collections import Counter, deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specfast._host import SuffixDrafter, SuffixTree, gumbel_noise
from specfast.proposers.suffix import SuffixProposer
from specfast.sampling_params import SamplingParams
from specfast.sequence import Finish
from specfast.speculative_config import SpeculativeConfig
from tests.unit.test_engine import GREEDY, SAMPLED, make_engine, run, tokens
from tests.unit.toy_model import ToyModel

DEPTH = 6
DOUBT = [4 / max(n, 1) ** 2 for n in range(DEPTH)]
POOL_DOUBT = [2 * d for d in DOUBT]
FLOOR = 0.05
PLENTY = 2**20
text_of = st.lists(st.integers(0, 2), max_size=40)


def continuations(documents, context, max_depth=DEPTH):
    """How often each token follows the context, by looking everywhere."""
    n = len(context)
    found = Counter(
        document[end]
        for document in documents
        for end in range(n, len(document))
        if document[end - n : end] == context
    )
    return found if n < max_depth else Counter()


def last_start(documents, context):
    """Where the context's newest occurrence starts, documents one after the other."""
    joined, starts = 0, [-1]
    for document in documents:
        for at in range(len(document) - len(context) + 1):
            if document[at : at + len(context)] == context:
                starts.append(joined + at)
        joined += len(document)
    return starts[-1]


@dataclass
class Source:
    """What the oracle drafts from: documents, and how far to doubt a match."""

    documents: list[list[int]]
    doubt: list[float]

    def informative(self, contexts):
        """The contexts, longest first, that occur more often than a longer one."""
        kept, before = [], 0
        for context in contexts:
            count = continuations(self.documents, context).total()
            if count != before:
                kept.append(context)
            before = count
        return kept


def estimates(sources, contexts):
    """-> [(token, estimate)], best first, in the float32 arithmetic of the drafter."""
    merged = [(-len(c), i, c) for i, cs in enumerate(contexts) for c in cs]
    found, left = {}, np.float32(1)
    for _, i, context in sorted(merged, key=lambda m: m[:2]):
        if left < 1 / 256:
            break
        documents, doubt = sources[i].documents, np.float32(sources[i].doubt[len(context)])
        counts = continuations(documents, context)
        share = left / (np.float32(counts.total()) + doubt)
        for token, count in counts.items():
            if count * 32 < counts.total():
                continue
            newest = -last_start(documents, [*context, token])
            estimate, *rank = found.get(token, (np.float32(0), i, newest))
            found[token] = (estimate + share * np.float32(count), *rank)
        left = share * doubt
    best = sorted(found, key=lambda t: (-found[t][0], *found[t][1:]))
    return [(t, found[t][0]) for t in best]


def oracle_draft(text, sources, depth, nodes):
    """The best-first tree by exhaustive search for the next node."""
    longest = max(DEPTH - depth, 1)
    suffixes = [text[len(text) - n :] for n in range(min(longest, len(text)), 0, -1)]
    open_, tree, order = [], [], 0

    def expand(contexts, parent, level, reach):
        nonlocal order
        if level == depth:
            return
        contexts = [s.informative(c) for s, c in zip(sources, contexts)]
        for token, estimate in estimates(sources, contexts):
            if reach * estimate >= np.float32(FLOOR):
                below = [[[*c, token] for c in [*cs, []]] for cs in contexts]
                open_.append((-reach * estimate, order, token, parent, level, estimate, below))
                order += 1

    expand([suffixes for _ in sources], -1, 0, np.float32(1))
    while open_ and len(tree) < nodes:
        best = min(open_, key=lambda c: c[:2])
        open_.remove(best)
        reach, _, token, parent, level, estimate, below = best
        tree.append((token, parent, estimate))
        expand(below, len(tree) - 1, level + 1, -reach)
    return tuple(list(column) for column in zip(*tree)) if tree else ([], [], [])


def tree_of(documents, open_document=(), max_bytes=PLENTY):
    tree = SuffixTree(DEPTH, max_bytes)
    for document in documents:
        tree.append(document)
        tree.end_document()
    tree.append(list(open_document))
    return tree


def draft(text, pool=None, depth=3, nodes=8, temperature=0.0, seed=0, floor=FLOOR, doubt=DOUBT):
    drafter = SuffixDrafter(doubt, POOL_DOUBT, floor)
    return drafter.draft(tree_of([], text), pool, depth, nodes, temperature, seed)


@given(text_of, st.integers(1, 5), st.integers(1, 12))
def test_a_draft_is_the_brute_force_one(text, depth, nodes):
    expected = oracle_draft(text, [Source([text], DOUBT)], depth, nodes)
    assert draft(text, None, depth, nodes) == expected


@given(text_of, st.lists(text_of, max_size=4), st.integers(1, 5), st.integers(1, 12))
def test_a_draft_with_a_pool_is_the_brute_force_one(text, pool, depth, nodes):
    sources = [Source([text], DOUBT), Source(pool, POOL_DOUBT)]
    expected = oracle_draft(text, sources, depth, nodes)
    assert draft(text, tree_of(pool), depth, nodes) == expected


@given(text_of, text_of, st.lists(text_of, max_size=3), st.integers(1, 5), st.integers(1, 12))
def test_a_draft_behind_drafts_is_the_brute_force_one(text, behind, pool, depth, nodes):
    sources = [Source([text], DOUBT), Source(pool, POOL_DOUBT)]
    expected = oracle_draft([*text, *behind], sources, depth, nodes)
    drafter = SuffixDrafter(DOUBT, POOL_DOUBT, FLOOR)
    found = drafter.draft(tree_of([], text), tree_of(pool), depth, nodes, 0.0, 0, behind)
    assert found == expected


class TreeMachine(RuleBasedStateMachine):
    """Appends, ends and evictions in any order leave the counts of what is still held."""

    MAX_TOKENS = 50

    def __init__(self):
        super().__init__()
        self.max_bytes = self.MAX_TOKENS * SuffixTree.MAX_BYTES_PER_TOKEN
        self.tree = SuffixTree(DEPTH, self.max_bytes)
        self.ended, self.open = deque(), []

    @rule(new=text_of)
    def append(self, new):
        self.tree.append(new)
        self.open += new
        while self.open and sum(map(len, self.ended)) + len(self.open) > self.MAX_TOKENS:
            oldest = self.ended[0] if self.ended else self.open
            oldest.pop(0)
            if not oldest and self.ended:
                self.ended.popleft()

    @rule()
    def end_document(self):
        self.tree.end_document()
        if self.open:
            self.ended.append(self.open)
        self.open = []

    @precondition(lambda self: self.ended)
    @rule()
    def drop_document(self):
        self.tree.drop_document()
        self.ended.popleft()

    @invariant()
    def counts_what_is_held(self):
        documents = [*self.ended, self.open]
        fresh = tree_of(self.ended, self.open, self.max_bytes)
        assert len(self.tree) == len(fresh) == sum(map(len, documents))
        assert self.tree.num_documents == len(self.ended)
        assert self.tree.num_nodes == fresh.num_nodes
        contexts = [[]] + [d[at : at + n] for d in documents for at in (0, 7) for n in (1, 3, 6)]
        for context in contexts:
            found = self.tree.continuations(context)
            counts = [count for _, count in found]
            assert dict(found) == continuations(documents, context)
            assert counts == sorted(counts, reverse=True)

    @invariant()
    def drafts_like_new(self):
        fresh = tree_of(self.ended, self.open, self.max_bytes)
        assert draft([0, 1, 0], self.tree) == draft([0, 1, 0], fresh)


TestTreeMachine = TreeMachine.TestCase


def test_a_string_never_spans_two_documents():
    tree = tree_of([[1, 2], [3, 4]])
    assert tree.continuations([1]) == [(2, 1)]
    assert tree.continuations([2]) == tree.continuations([2, 3]) == []


def test_a_repetition_goes_on_and_a_long_match_is_trusted():
    found, parents, confidence = draft([5, 1, 2, 1, 2, 1, 2], depth=3)
    assert (found[:3], parents[:3]) == ([1, 2, 1], [-1, 0, 1])
    assert confidence[0] > 0.85


def test_the_more_frequent_continuation_comes_first_and_the_newer_of_equals():
    often = [7, 1, 7, 2, 7, 1, 9, 7]
    assert draft(often, depth=1)[0][:2] == [1, 2]
    assert draft([7, 1, 7, 2, 7], depth=1)[0] == [2, 1]
    assert draft([7, 2, 7, 1, 7], depth=1)[0] == [1, 2]


def test_the_text_counts_more_than_the_pool():
    tokens, _, confidence = draft([3, 4, 5, 3, 4], tree_of([[3, 4, 6]]), depth=1)
    assert tokens == [5, 6] and confidence[0] > confidence[1]
    assert draft([3, 4], tree_of([[3, 4, 6]]), depth=1)[0] == [6]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_siblings_are_ranked_with_the_noise_of_their_position(temperature):
    """Confidence is the softmax of (log estimate / T + G) / 1.5, the unseen as one more."""
    text = [7, 1, 7, 2, 7, 3, 7, 1, 7]
    doubt = [d * (1 + 2 * temperature) for d in DOUBT]
    plain = dict(zip(*draft(text, depth=1, floor=0, doubt=doubt)[::2]))
    orders = set()
    for seed in range(40):
        tokens, _, confidence = draft(text, depth=1, temperature=temperature, seed=seed)
        noise = dict(zip(plain, gumbel_noise(seed, len(text), list(plain))))
        score = {t: (np.log(p) / temperature + noise[t]) / 1.5 for t, p in plain.items()}
        rest = (np.log(1 - sum(plain.values())) / temperature + np.euler_gamma) / 1.5
        total = sum(map(np.exp, [*score.values(), rest]))
        expected = {t: np.exp(s) / total for t, s in score.items() if np.exp(s) / total >= FLOOR}
        assert tokens == sorted(expected, key=expected.get, reverse=True)
        assert confidence == pytest.approx([expected[t] for t in tokens], rel=1e-4)
        orders.add(tuple(tokens))
    assert len(orders) > 2, "the noise never mattered"


def test_noise_belongs_to_a_drafts_own_position():
    """Behind its first token a draft is ranked as the text itself would be one token later."""
    text = [7, 7, 1, 7, 2, 7, 3, 7, 1, 7]
    for seed in range(20):
        tokens, parents, _ = draft(text, depth=2, nodes=64, temperature=1.0, seed=seed)
        for node, parent in enumerate(parents):
            if parent < 0 and tokens[node] == 7:
                below = [t for t, p in zip(tokens, parents) if p == node]
                noise = dict(zip(range(9), gumbel_noise(seed, len(text) + 1, list(range(9)))))
                one, two = [t for t in below if t in (2, 3)], sorted((2, 3), key=noise.get)[::-1]
                assert one == two[: len(one)], "2 and 3 are equally frequent: the noise decides"


def test_noise_behind_other_drafts_belongs_to_the_position_behind_them():
    text, drafter = [7, 2, 7, 3, 7, 2, 7, 3, 1], SuffixDrafter(DOUBT, POOL_DOUBT, 0.0)
    firsts = set()
    for seed in range(20):
        tokens, _, _ = drafter.draft(tree_of([], text), None, 1, 8, 1.0, seed, [7])
        noise = dict(zip((2, 3), gumbel_noise(seed, len(text) + 1, [2, 3])))
        assert tokens == sorted((2, 3), key=noise.get)[::-1], "2 and 3 are equally frequent"
        firsts.add(tokens[0])
    assert firsts == {2, 3}


@pytest.mark.parametrize(("depth", "max_bytes"), [(1, PLENTY), (6, 6 * 448), (6, 0)])
def test_sizes_that_make_no_sense(depth, max_bytes):
    with pytest.raises(ValueError, match="max_depth|max_bytes"):
        SuffixTree(depth, max_bytes)


def test_no_document_to_drop():
    with pytest.raises(IndexError, match="no document"):
        tree_of([], [1, 2]).drop_document()


def test_memory_is_capped_and_what_is_left_is_exact():
    cap = 4000 * SuffixTree.MAX_BYTES_PER_TOKEN
    tree, rng = SuffixTree(24, cap), np.random.default_rng(0)
    text = rng.integers(0, 300, 20000).tolist()
    for start in range(0, len(text), 500):
        tree.append(text[start : start + 500])
        assert tree.num_bytes <= cap
    assert len(tree) == 4000 and tree.num_appended == 20000
    fresh = SuffixTree(24, cap)
    fresh.append(text[-4000:])
    assert tree.num_nodes == fresh.num_nodes
    for at in range(16000, 19000, 111):
        context = text[at : at + 2]
        assert dict(tree.continuations(context)) == dict(fresh.continuations(context))


@dataclass
class FakeSequence:
    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int = 0
    params: SamplingParams = SamplingParams(temperature=0.0)
    seed: int = 0
    finish: Finish | None = None


@dataclass
class FakeBatch:
    seqs: list[FakeSequence]
    draft_limits: np.ndarray = field(default_factory=lambda: np.array([[5, 12]], np.int32))


def proposer(**options):
    options = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return SuffixProposer(SpeculativeConfig("suffix", **options), None)


def drafts(proposal):
    return proposal.to_trees()


def finish(proposer, seq_id, token_ids, reason="stop"):
    seq = FakeSequence(seq_id, token_ids, finish=Finish(reason))
    proposer.release(seq)


@given(st.lists(text_of, min_size=1, max_size=6), st.data())
def test_trees_are_valid_within_any_limits(texts, data):
    limit = st.integers(0, 9).flatmap(lambda d: st.tuples(st.just(d), st.integers(d, 20)))
    limits = np.array([data.draw(limit) for _ in texts], np.int32)
    laws = [SamplingParams(temperature=t) for t in (0.0, 1.0)]
    seqs = [
        FakeSequence(i, [0, *text], params=laws[i % 2], seed=2**64 - 1)
        for i, text in enumerate(texts)
    ]
    batch = FakeBatch(seqs, limits)
    p = proposer(max_cached_requests=2)
    finish(p, 99, texts[0])
    proposal = p.propose(batch)
    proposal.check(limits, 3)
    for tree in proposal.to_trees():
        assert len(set(zip(tree.parents, tree.tokens))) == len(tree), "siblings repeat"
        assert all(0 < c <= 1 for c in tree.confidence)


@pytest.mark.parametrize("depth", range(1, 8))
def test_limits_are_used_to_the_full(depth):
    """By a text that only repeats as far as its depth, by one that branches all its nodes."""
    p, rng = proposer(min_token_prob=0.0), np.random.default_rng(0)
    seqs = [FakeSequence(0, [1, 2, 3] * 9), FakeSequence(1, rng.integers(0, 3, 90).tolist())]
    for nodes in (depth, depth + 1, 20):
        limits = np.array([[depth, nodes]] * 2, np.int32)
        chain, tree = p.propose(FakeBatch(seqs, limits)).to_trees()
        assert chain.tokens == ([1, 2, 3] * 3)[:depth]
        assert len(tree) == min(nodes, sum(3**d for d in range(1, depth + 1)))


@given(st.lists(st.tuples(st.integers(0, 2), text_of, st.integers(0, 4)), max_size=12))
def test_state_never_matters(events):
    """Growth, catching up late, release, shrinking: each draft is that of a new proposer."""
    used, seqs = proposer(), {}
    for seq_id, new, event in events:
        seq = seqs.setdefault(seq_id, FakeSequence(seq_id, [0]))
        seq.token_ids += new
        if event == 1:
            used.release(seqs.pop(seq_id))
        elif event == 2:
            used.reset()
        elif event == 3:
            del seq.token_ids[max(1, len(seq.token_ids) // 2) :]
        if event >= 3:
            batch = FakeBatch([seq])
            assert drafts(used.propose(batch)) == drafts(proposer().propose(batch))


def test_requests_are_apart_unless_a_pool_is_asked_for():
    other = FakeBatch([FakeSequence(1, [9, 8, 7])])
    apart = proposer()
    finish(apart, 0, [9, 8, 7, 6, 5, 4])
    assert apart.propose(other).num_nodes == 0
    shared = proposer(max_cached_requests=1, min_token_prob=0.01)
    finish(shared, 0, [9, 8, 7, 6, 5, 4])
    assert drafts(shared.propose(other))[0].tokens[:3] == [6, 5, 4]


def test_the_pool_holds_the_last_requests_only_and_none_that_failed():
    p, other = proposer(max_cached_requests=2), FakeBatch([FakeSequence(9, [1, 2])])
    for seq_id, token in enumerate((3, 4, 5)):
        finish(p, seq_id, [1, 2, token])
    assert set(drafts(p.propose(other))[0].tokens) == {4, 5}
    for reason in ("abort", "error"):
        finish(p, 7, [1, 2, 6], reason)
    assert set(drafts(p.propose(other))[0].tokens) == {4, 5}
    p.reset()
    assert p.propose(other).num_nodes == 0


def test_an_answer_is_pooled_with_the_end_of_its_prompt():
    p = proposer(max_cached_requests=1, max_tree_depth=9, min_token_prob=0.01)
    prompt, answer = [*range(20, 40), 1, 2, 3, 4], [5, 6]
    p.release(FakeSequence(0, prompt + answer, len(prompt), finish=Finish("length")))
    assert drafts(p.propose(FakeBatch([FakeSequence(1, [3, 4])])))[0].tokens[:2] == [5, 6]
    assert p.propose(FakeBatch([FakeSequence(2, [30])])).num_nodes == 0


def test_a_lower_floor_drafts_more():
    batch = FakeBatch([FakeSequence(0, [1, 2, 3, 2, 1, 2, 3, 1, 2, 3])])
    lengths = [
        proposer(min_token_prob=p).propose(batch).num_nodes for p in (0.0, 0.1, 0.3, 0.9, 1.0)
    ]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[2] > lengths[4] == 0


@pytest.mark.parametrize("cached", [0, 3], ids=["apart", "pool"])
@pytest.mark.parametrize("nodes", [4, 32], ids=["narrow", "wide"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_bytes_are_those_of_plain_decoding(sampling, nodes, cached):
    params = SamplingParams(max_tokens=40, ignore_eos=True, **sampling)
    prompts = [[3, 1, 4, 1, 5], [2, 7], [3, 1, 4, 1, 5, 9], [8] * 12, [2, 7]]
    model = ToyModel(order=1)
    config = {"max_num_seqs": 2, "max_num_batched_tokens": 48}
    plain = tokens(run(make_engine(model=model, **config), prompts, params))
    p = proposer(max_cached_requests=cached)
    engine = make_engine(p, model=model, k=4, **config)
    engine.budget.nodes = nodes
    assert tokens(run(engine, prompts, params)) == plain
    stats = engine.metrics.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_uncoupled_drafts_do_not_see_the_targets_noise():
    pool = tree_of([[1, 2, 5], [1, 2, 6], [1, 2, 5], [1, 2, 7], [1, 2, 4]])

    def tokens(coupled, seed):
        drafter = SuffixDrafter(DOUBT, POOL_DOUBT, 0.0, coupled=coupled)
        return drafter.draft(tree_of([], [1, 2]), pool, 1, 2, 1.0, seed)[0]

    assert len({tuple(tokens(False, seed)) for seed in range(20)}) == 1
    assert len({tuple(tokens(True, seed)) for seed in range(20)}) > 1
