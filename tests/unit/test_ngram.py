"""The n-gram proposer against a brute-force search, through growth, truncation and reuse."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specfast._host import NgramIndex
from specfast.proposers.ngram import NgramProposer, survival
from specfast.speculative_config import SpeculativeConfig

MIN_N, MAX_N = 2, 4
tokens = st.lists(st.integers(0, 2), max_size=40)


def brute_force(text, min_n, max_n, k):
    """-> (draft, match length), by trying every earlier end of every suffix."""
    for n in range(min(max_n, len(text) - 1), min_n - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                draft = list(text)
                for i in range(k):
                    draft.append(draft[end + i])
                return draft[len(text) :], n
    return [], 0


def index_of(text, min_n=MIN_N, max_n=MAX_N):
    index = NgramIndex(min_n, max_n)
    index.append(text)
    return index


@given(tokens, st.integers(1, 3), st.integers(0, 3), st.integers(0, 9))
def test_draft_is_the_brute_force_one(text, min_n, more, k):
    index = index_of(text, min_n, min_n + more)
    assert index.draft(k) == brute_force(text, min_n, min_n + more, k)


class IndexMachine(RuleBasedStateMachine):
    """Any mix of appends and truncations leaves the index of a text built at once."""

    def __init__(self):
        super().__init__()
        self.index, self.text = NgramIndex(MIN_N, MAX_N), []

    @rule(new=tokens)
    def append(self, new):
        self.index.append(new)
        self.text += new

    @rule(keep=st.floats(0, 1))
    def truncate(self, keep):
        del self.text[int(keep * len(self.text)) :]
        self.index.truncate(len(self.text))

    @invariant()
    def like_new(self):
        new = index_of(self.text)
        assert len(self.index) == len(self.text)
        assert self.index.num_ngrams == new.num_ngrams
        assert self.index.draft(5) == new.draft(5) == brute_force(self.text, MIN_N, MAX_N, 5)


TestIndexMachine = IndexMachine.TestCase


def test_large_text_survives_growth_and_truncation():
    text = np.random.default_rng(0).integers(0, 300, 5000).tolist()
    index = index_of(text)
    index.truncate(1234)
    assert index.num_ngrams == index_of(text[:1234]).num_ngrams
    index.append(text[1234:])
    assert index.num_ngrams == index_of(text).num_ngrams
    for start in range(0, 4000, 97):
        index.append(text[start : start + 4])
        whole = text[start + 4 : start + 9]
        assert index.draft(5) == (whole, 4)
        index.truncate(len(text))


def test_truncating_to_nothing_leaves_nothing():
    index = index_of([1, 2, 3] * 200)
    index.truncate(0)
    assert (len(index), index.num_ngrams, index.draft(5)) == (0, 0, ([], 0))
    with pytest.raises(IndexError):
        index.truncate(1)


def test_the_last_match_wins_and_a_repetition_goes_on():
    assert index_of([1, 2, 7, 1, 2, 8, 1, 2]).draft(3) == ([8, 1, 2], 2)
    assert index_of([5, 1, 2, 1, 2, 1, 2]).draft(5) == ([1, 2, 1, 2, 1], 4)


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 2), (3, 2), (-1, -1)])
def test_lengths_that_make_no_sense(min_n, max_n):
    with pytest.raises(ValueError, match="min_n"):
        NgramIndex(min_n, max_n)


@dataclass
class FakeSequence:
    seq_id: int
    token_ids: list[int]


@dataclass
class FakeBatch:
    seqs: list[FakeSequence]
    draft_limits: np.ndarray = field(default_factory=lambda: np.array([[5, 5]], np.int32))


def proposer(**config):
    return NgramProposer(SpeculativeConfig("ngram", **config), None)


def drafts(proposal):
    return [row[:n].tolist() for row, n in zip(proposal.tokens, proposal.lengths)]


def test_proposal_is_a_chain_within_the_limits():
    seqs = [FakeSequence(i, [1, 2, 3, 4, 5, 1, 2, 3]) for i in range(4)]
    seqs.append(FakeSequence(4, [1, 2, 3, 4, 5]))
    limits = np.array([[5, 5], [3, 5], [5, 2], [0, 5], [5, 5]], np.int32)
    proposal = proposer().propose(FakeBatch(seqs, limits))
    assert drafts(proposal) == [[4, 5, 1, 2, 3], [4, 5, 1], [4, 5], [], []]
    assert proposal.parents[0].tolist() == [-1, 0, 1, 2, 3]
    expected = torch.tensor([survival(3), survival(4), survival(5)])
    assert torch.equal(proposal.confidence[1, :3], expected)


def test_no_match_and_no_sequences_give_the_empty_proposal():
    p = proposer()
    assert p.propose(FakeBatch([FakeSequence(0, [1, 2, 3])])).num_nodes == 0
    assert p.propose(FakeBatch([], np.zeros((0, 2), np.int32))).num_nodes == 0


def test_confidence_grows_with_the_match():
    assert all(0 < survival(n) < survival(n + 1) < 1 for n in range(1, 20))


@given(st.lists(st.tuples(st.integers(0, 2), tokens, st.integers(0, 3)), max_size=12))
def test_state_never_matters(events):
    """Growth, catching up late, release and preemption: each draft is that of a new proposer."""
    used, seqs = proposer(), {}
    for seq_id, new, event in events:
        seq = seqs.setdefault(seq_id, FakeSequence(seq_id, [0]))
        seq.token_ids += new
        if event == 1:
            used.release(seqs.pop(seq_id))
        elif event == 2:
            used.reset()
        elif event == 3:
            batch = FakeBatch([seq])
            assert drafts(used.propose(batch)) == drafts(proposer().propose(batch))


def test_release_of_a_stranger_is_safe():
    proposer().release(FakeSequence(99, [1]))


def test_a_sequence_that_came_back_shorter():
    p, seq = proposer(), FakeSequence(0, [1, 2, 3, 4, 1, 2, 3])
    p.propose(FakeBatch([seq]))
    del seq.token_ids[6:]
    assert drafts(p.propose(FakeBatch([seq]))) == [[3, 4, 1, 2, 3]]
