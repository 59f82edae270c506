"""Sequence.append: the one place where a stop is decided."""

import itertools

import pytest

from specfast.sampling_params import SamplingParams
from specfast.sequence import Sequence, StopRule

EOS = 0
PIECES = {0: "</s>", 1: "a", 2: "b", 3: "ab", 4: " c", 5: "abc"}


class Pieces:
    """One piece a token, held back by `lag` tokens, as a byte-level detokenizer may."""

    def __init__(self, lag: int = 0) -> None:
        self.lag, self.held = lag, []

    def append(self, token_id: int) -> str:
        self.held.append(PIECES[token_id])
        return self.held.pop(0) if len(self.held) > self.lag else ""

    def flush(self) -> str:
        text, self.held = "".join(self.held), []
        return text


def run(tokens, max_length=100, lag=0, **params):
    seq = Sequence(
        0, [1, 2], SamplingParams(**params), 0, StopRule(frozenset({EOS}), max_length), Pieces(lag)
    )
    for token in tokens:
        if seq.append(token, accepted=True):
            break
    return seq


def test_eos_ends_and_leaves_no_text():
    seq = run([1, 2, EOS, 3])
    assert (seq.finish.reason, seq.finish.detail) == ("stop", None)
    assert seq.output_token_ids == [1, 2, EOS] and seq.text == "ab"


def test_ignored_eos_goes_on_and_is_text():
    seq = run([1, EOS, 2], ignore_eos=True)
    assert seq.finish is None and seq.text == "a</s>b"


def test_stop_token_id_ends_even_with_ignored_eos():
    seq = run([1, 4, 2], stop_token_ids=[4], ignore_eos=True)
    assert (seq.finish.reason, seq.finish.detail) == ("stop", 4)
    assert seq.text == "a" and seq.output_token_ids == [1, 4]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_stop_string_across_tokens_cuts_the_text_before_it(lag):
    seq = run([1, 1, 2, 4, 1, 1, 1], stop="b c", lag=lag)
    assert (seq.finish.reason, seq.finish.detail) == ("stop", "b c")
    assert seq.text == "aa"


def test_stop_string_may_be_kept():
    assert run([1, 1, 2, 4], stop=["b c"], include_stop_str_in_output=True).text == "aab c"


def test_the_earliest_of_several_stop_strings_wins():
    seq = run([5, 5], stop=["c", "ab"])
    assert seq.finish.detail == "ab" and seq.text == ""


def test_length_and_stop_at_once_is_a_stop():
    assert run([1, EOS], max_length=4).finish.reason == "stop"
    assert run([1, 2], max_length=4, stop="b").finish.reason == "stop"
    assert run([1, 2], max_length=4, stop="b", lag=5).finish.reason == "stop"
    assert run([1, 1], max_length=4, stop="b").finish.reason == "length"


@pytest.mark.parametrize("stops", [("abab",), ("ba", "bc"), ("abc",), ("ca",)])
def test_settled_text_never_takes_back(stops):
    for tokens in itertools.product([1, 2, 3, 5], repeat=4):
        seq = Sequence(0, [1], SamplingParams(stop=stops), 0, StopRule(frozenset(), 100), Pieces())
        shown = ""
        for token in tokens:
            ended = seq.append(token, accepted=False)
            assert seq.settled_text.startswith(shown)
            shown = seq.settled_text
            if ended:
                break
        assert not any(s in shown for s in stops)
        if seq.finish is None:
            seq.end("abort")
            assert seq.settled_text == "".join(PIECES[t] for t in tokens)


def test_a_stop_string_ends_at_the_token_that_completes_it_whatever_comes_before():
    for tokens in itertools.product([1, 2, 4], repeat=5):
        whole = "".join(PIECES[t] for t in tokens)
        seq = run(tokens, stop="b c")
        if "b c" in whole:
            assert seq.text == whole[: whole.index("b c")]
            shorter = "".join(PIECES[t] for t in seq.output_token_ids[:-1])
            assert "b c" not in shorter
        else:
            assert seq.finish is None and seq.text == whole
