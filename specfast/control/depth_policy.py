"""How deep to draft for each request, from what its past steps brought."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from specfast.control.decided import Decided
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence

DECAY = 0.98  # of what was seen, a step
PRIOR_REACH, PRIOR_STEPS = 0.6, 4.0  # of each depth, given the one before; worth so many drafts
PRIOR_ACCEPTED = 2.0  # tokens by which a request's own luck is shrunk
EXPLORE_EVERY = 16  # steps between looks at every depth


# How deep steps draft [k + 1], and the rows that it adds to each [k + 1] -> seconds [k + 1].
StepSeconds = Callable[[np.ndarray, np.ndarray], np.ndarray]


class DepthPolicy(Protocol):
    """Plans depths, and learns from what came of them."""

    def depths(
        self, seqs: Seqs[Sequence], asked: np.ndarray, seconds: StepSeconds | None
    ) -> np.ndarray:
        """[B] int, at most asked [B]. seconds: what steps take; None: not known yet."""

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """A step that drafted, batch.draft_limits deep."""

    def release(self, seq: Sequence) -> None:
        """Forgets a finished sequence; safe for one never seen."""


class FixedDepth:
    """As deep as asked."""

    def depths(
        self, seqs: Seqs[Sequence], asked: np.ndarray, seconds: StepSeconds | None
    ) -> np.ndarray:
        return asked

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Learns nothing."""

    def release(self, seq: Sequence) -> None:
        """Keeps nothing."""


@dataclass
class _Ladder:
    k: int
    at_this_k: list[int] = field(default_factory=list)  # accepted, step by step


class SimpleDepth:
    """One less after a step that accepted less than min(2, k); one more after three steps in a row
    at this k that each accepted k - 1 or more (and at least 1). Steps without a proposal don't
    count.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._ladders: dict[int, _Ladder] = {}

    def depths(
        self, seqs: Seqs[Sequence], asked: np.ndarray, seconds: StepSeconds | None
    ) -> np.ndarray:
        own = [self._ladders[s.seq_id].k if s.seq_id in self._ladders else self._k for s in seqs]
        return np.minimum(own, asked)

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        accepted = result.num_accepted.tolist()
        for row in np.flatnonzero(proposal.lengths.numpy()).tolist():
            ladder = self._ladders.setdefault(batch.seqs[row].seq_id, _Ladder(self._k))
            self._climb(ladder, accepted[row])

    def release(self, seq: Sequence) -> None:
        self._ladders.pop(seq.seq_id, None)

    def _climb(self, ladder: _Ladder, num_accepted: int) -> None:
        ladder.at_this_k.append(num_accepted)
        step = 0
        if num_accepted < min(2, ladder.k):
            step = -1
        elif len(ladder.at_this_k) >= 3 and min(ladder.at_this_k[-3:]) >= max(1, ladder.k - 1):
            step = 1
        if (k := min(max(ladder.k + step, 1), self._k)) != ladder.k:
            ladder.k = k
            ladder.at_this_k.clear()


@dataclass
class _Luck:
    """Tokens accepted of one request, and those expected of any."""

    accepted: float = 0.0
    expected: float = 0.0

    @property
    def value(self) -> float:
        return (self.accepted + PRIOR_ACCEPTED) / (self.expected + PRIOR_ACCEPTED)


NO_LUCK = _Luck()


class MeasuredDepth:
    """The depths with which the whole batch is expected to emit most tokens a second, drafting
    included: first one for all, then less for requests whose drafts are worth less than they cost.
    """

    def __init__(self, k: int) -> None:
        self._planned, self._reached, self._kept = np.zeros((3, k))
        self._luck: dict[int, _Luck] = {}
        self._steps = 0

    def depths(
        self, seqs: Seqs[Sequence], asked: np.ndarray, seconds: StepSeconds | None
    ) -> np.ndarray:
        self._steps += 1
        if seconds is None or self._steps % EXPLORE_EVERY == 0:
            return asked
        gains = self._gains(seqs, asked)
        rows = len(seqs) * np.append(0.0, np.cumsum(self._kept_share()))
        emitted = len(seqs) + np.append(0.0, np.cumsum(gains.sum(axis=0)))
        taken = seconds(np.arange(len(rows)), rows)
        best = int(np.argmax(emitted[1:] / taken[1:])) + 1
        if len(seqs) == 1:
            return np.minimum(asked, best)
        cost = np.diff(taken)[:best] / len(seqs) * emitted[best] / taken[best]  # in tokens
        net = np.cumsum(gains[:, :best] - cost, axis=1)
        own = np.where(net.max(axis=1) > 0, net.argmax(axis=1) + 1, 1)
        return np.minimum(asked, own)

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Depths that were planned count, whether or not something was proposed there."""
        depth, planned = np.arange(len(self._reached)), batch.draft_limits[:, 0]
        accepted, reach = result.num_accepted.numpy(), self._reach()
        is_node = np.arange(proposal.tokens.shape[1]) < proposal.lengths.numpy()[:, None]
        nodes = proposal.node_depths[is_node]
        for total, values in (
            (self._planned, (depth < planned[:, None]).sum(axis=0)),
            (self._reached, (depth < accepted[:, None]).sum(axis=0)),
            (self._kept, np.bincount(nodes, minlength=len(depth))),
        ):
            total *= DECAY
            total += values
        for row in np.flatnonzero(planned).tolist():
            luck = self._luck.setdefault(batch.seqs[row].seq_id, _Luck())
            luck.accepted = DECAY * luck.accepted + float(accepted[row])
            luck.expected = DECAY * luck.expected + float(reach[: planned[row]].sum())

    def release(self, seq: Sequence) -> None:
        self._luck.pop(seq.seq_id, None)

    def _gains(self, seqs: Seqs[Sequence], asked: np.ndarray) -> np.ndarray:
        """Tokens that each depth is expected to bring each sequence [B, k]."""
        own = [self._luck.get(s.seq_id, NO_LUCK).value for s in seqs]
        gains = np.minimum(np.array(own)[:, None] * self._reach(), 1.0)
        return gains * (np.arange(gains.shape[1]) < asked[:, None])

    def _reach(self) -> np.ndarray:
        """How often a draft at each depth is accepted, where that depth is planned [k]."""
        prior = PRIOR_REACH ** np.arange(1, len(self._reached) + 1)
        return (self._reached + PRIOR_STEPS * prior) / (self._planned + PRIOR_STEPS)

    def _kept_share(self) -> np.ndarray:
        """Nodes verified at each depth, where it is planned [k]."""
        return (self._kept + PRIOR_STEPS) / (self._planned + PRIOR_STEPS)
