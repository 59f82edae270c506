"""Proposers that misbehave: named, never believed, and no request pays for them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from specfast.proposers.base import Needs, Proposal
from specfast.sampling_params import SamplingParams
from tests.unit.test_engine import GREEDY, make_engine, run, target_stream, tokens
from tests.unit.toy_proposers import TreeProposer

PROMPTS = [[3, 1, 4], [5, 6, 7, 8, 9, 3]]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, **GREEDY)


class Misbehaving:
    """Does what it is told, until it is mended."""

    needs = Needs()

    def __init__(self, propose=None, observe=None, release=None):
        self.told = {"propose": propose, "observe": observe, "release": release}

    def mend(self):
        self.told = dict.fromkeys(self.told)

    def propose(self, batch):
        act = self.told["propose"] or Proposal.empty
        return act(len(batch))

    def observe(self, batch, proposal, forward, result):
        if act := self.told["observe"]:
            act()

    def release(self, seq):
        if act := self.told["release"]:
            act()

    def reset(self):
        pass


def trees(tokens, parents, length=None):
    """The same tree for every sequence."""

    def propose(batch_size):
        def rows(x, dtype=torch.int32):
            return torch.tensor([x] * batch_size, dtype=dtype)

        count = len(tokens) if length is None else length
        confidence = torch.ones(batch_size, len(tokens))
        return Proposal(rows(tokens), rows(parents), rows(count), confidence)

    return propose


def but(**changes):
    return lambda batch_size: replace(trees([1, 2], [-1, 0])(batch_size), **changes)


def chain(length):
    return trees([1 + i % 39 for i in range(length)], list(range(-1, length - 1)))


def boom(*_):
    raise RuntimeError("boom")


GARBAGE = {
    "past the vocabulary": (trees([1, 40], [-1, 0]), "vocabulary"),
    "negative": (trees([1, -5], [-1, 0]), "vocabulary"),
    "forward parent": (trees([1, 2], [1, -1]), "parents"),
    "own parent": (trees([1, 2], [-1, 1]), "parents"),
    "parent of nobody": (trees([1, 2], [-7, 0]), "parents"),
    "parent past the end": (trees([1, 2], [-1, 9]), "parents"),
    "negative length": (trees([1, 2], [-1, 0], -1), "lengths"),
    "length past the nodes": (trees([1, 2], [-1, 0], 3), "lengths"),
    "too many": (trees([1] * 40, [-1] * 40), "lengths"),
    "more than 64": (trees([1] * 65, [-1] * 65), "64 nodes"),
    "too deep": (chain(5), "depth"),
    "dtype": (but(tokens=torch.ones(2, 2)), "tokens must be"),
    "wrong batch": (lambda n: trees([1], [-1])(n + 1), "tokens must be"),
    "empty batch": (lambda n: Proposal.empty(0), "tokens must be"),
    "narrow parents": (but(parents=-torch.ones(2, 1, dtype=torch.int32)), "parents must be"),
    "wide confidence": (but(confidence=torch.ones(2, 7)), "confidence must be"),
    "listed": (but(tokens=[[1, 2]] * 2), "tokens must be"),
    "listed confidence": (but(confidence=[[1.0, 1.0]] * 2), "confidence must be"),
    "no confidence": (but(confidence=None), "confidence must be"),
    "gradient": (but(confidence=torch.ones(2, 2, requires_grad=True)), "confidence must be"),
    "elsewhere": (but(confidence=torch.ones(2, 2, device="meta")), "confidence must be"),
    "strided": (but(tokens=torch.ones(2, 2, dtype=torch.int32).t()[:, ::2]), "must be"),
    "nothing": (lambda n: None, "must return a Proposal"),
}


def failing_run(proposer, caplog, match, policy="fixed"):
    """-> the outputs; one warning a request, which names the proposer and the fault."""
    engine = make_engine(proposer, k=4, policy=policy)
    requests = [engine.add_request(p, PARAMS) for p in PROMPTS]
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == len(PROMPTS)
    assert all(re.search(f"Misbehaving.*{match}", w) for w in warnings)
    return [r.output() for r in requests]


def check(outputs):
    assert all(o.finished and o.metrics.finish_time for o in outputs)
    streams = [target_stream(p, PARAMS, 8)[len(p) :] for p in PROMPTS]
    assert tokens(outputs) == [[s] for s in streams]


@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_never_reaches_the_target(case, policy, caplog):
    garbage, word = GARBAGE[case]
    check(failing_run(Misbehaving(propose=garbage), caplog, word, policy))


@pytest.mark.parametrize("method", ["propose", "observe", "release"])
def test_an_exception_loses_no_request_and_no_block(method, caplog):
    check(failing_run(Misbehaving(**{method: boom}), caplog, "RuntimeError: boom"))


class FailsFor(TreeProposer):
    """Knows the streams, and fails wherever one prompt is in the batch."""

    def __init__(self, streams, prompt):
        super().__init__(streams)
        self.prompt, self.asked = prompt, 0

    def propose(self, batch):
        if any(s.token_ids[: len(self.prompt)] == self.prompt for s in batch.seqs):
            self.asked += 1
            raise RuntimeError("boom")
        return super().propose(batch)


def test_only_the_request_that_fails_is_switched_off(caplog):
    streams = {tuple(p): target_stream(p, PARAMS, 8) for p in PROMPTS}
    proposer = FailsFor(streams, PROMPTS[0])
    outputs = run(make_engine(proposer, k=4), PROMPTS, PARAMS)
    check(outputs)
    assert proposer.asked == 2, "with its batch, then alone; then never again"
    assert [bool(o.metrics.num_accepted_tokens) for o in outputs] == [False, True]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_a_later_request_is_drafted_for_again(caplog):
    proposer = Misbehaving(propose=boom)
    engine = make_engine(proposer, k=4)
    check(run(engine, PROMPTS, PARAMS))
    proposer.told["propose"] = chain(2)
    later = run(engine, PROMPTS, PARAMS)
    check(later)
    assert all(o.metrics.num_draft_tokens for o in later)
    assert not engine._guard._blamed and not engine.budget._switched_off, "of those that are gone"


def test_siblings_that_repeat_are_harmless():
    engine = make_engine(Misbehaving(propose=trees([7, 7, 7], [-1, -1, -1])), k=4)
    engine.budget.plan = lambda seqs: np.full((len(seqs), 2), 3, np.int32)
    check(run(engine, PROMPTS, PARAMS))


@pytest.mark.parametrize("failing", range(3))
def test_the_others_keep_their_own_trees(failing):
    prompts = [*PROMPTS, [7, 7, 2]]
    streams = {tuple(p): target_stream(p, PARAMS, 8) for p in prompts}
    proposer = FailsFor(streams, prompts[failing])
    proposer.wrong = 0
    outputs = run(make_engine(proposer, k=4), prompts, PARAMS)
    assert tokens(outputs) == [[streams[tuple(p)][len(p) :]] for p in prompts]
    for row, metrics in enumerate(o.metrics for o in outputs):
        assert metrics.num_draft_tokens == metrics.num_accepted_tokens
        assert (metrics.num_drafts > 1) == (row != failing)


class WritesInto:
    """Overwrites an array of the batch that it is handed."""

    needs = Needs()

    def __init__(self, name):
        self.name = name

    def propose(self, batch):
        getattr(batch, self.name)[...] = 9
        return chain(4)(len(batch))

    def observe(self, batch, proposal, forward, result):
        pass

    def release(self, seq):
        pass

    def reset(self):
        pass


@pytest.mark.parametrize("name", ("starts", "num_tokens", "draft_limits"))
def test_a_proposer_cannot_write_into_the_batch(name, caplog):
    check(run(make_engine(WritesInto(name), k=4), PROMPTS, PARAMS))
    assert all("read-only" in r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert len(caplog.records) >= len(PROMPTS)
