"""Verification: which drafts of a step count, and the token after them.

Accepted: a draft that counts. Recovered token: the one after a rejection. Bonus token: the one
after the last accepted draft where nothing was rejected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast._host import philox
from specfast.models.runner import Forward
from specfast.proposers.base import Proposal
from specfast.sampler import RowParams, Sampler
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import SpeculativeConfig
from specfast.synthetic import SyntheticAcceptance

logger = logging.getLogger(__name__)
_DECREE = 5  # Philox purpose; a position is tested at most once, so it needs no step in its key


@dataclass(frozen=True)
class VerifyResult:
    """path [B, N] int32: accepted nodes, then -1; num_accepted [B] (drafts only); next_tokens [B]:
    the recovered or bonus token, -1 for a partial prefill; errors: a message a sequence, or
    None.
    """

    path: Tensor
    num_accepted: Tensor
    next_tokens: Tensor
    errors: tuple[str | None, ...]

    def decided(self, row: int, proposal: Proposal) -> Iterator[tuple[int, bool]]:
        """The tokens that sequence `row` may emit, in order, with whether each was a draft."""
        nodes = self.path.numpy()[row, : int(self.num_accepted[row])]
        for token in proposal.tokens.numpy()[row, nodes].tolist():
            yield token, True
        if (token := int(self.next_tokens[row])) >= 0:
            yield token, False


class Verifier(Protocol):
    """One target pass in, one decided path a sequence out."""

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        """Judges the proposal by the forward that computed its nodes."""


class MatchVerifier:
    """The target decides a token a row by its own noise; a draft counts iff it is the token decided
    at its parent. So the output is the target's own stream.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        tokens, row_status = self.sampler.sample(batch, forward)
        outputs = _outputs(proposal)
        ops.accept_path(
            tokens, row_status | forward.row_status, forward.row_base,
            proposal.tokens, proposal.parents, proposal.lengths, *outputs,
        )  # fmt: skip
        return _result(outputs, forward)


class RejectionVerifier:
    """A draft counts by chance, so that the output follows the target's law, though it is another
    draw from it. Nodes without a law are point masses.
    """

    def __init__(self, by_token: bool) -> None:
        self.by_token = by_token

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        outputs = _outputs(proposal)
        ops.rejection_sample(
            forward.logits, *RowParams.of(batch.seqs, forward.row_seq), forward.decided_positions,
            forward.row_status, forward.row_base, _roots(batch),
            proposal.tokens, proposal.parents, proposal.lengths, self.by_token, *outputs,
            proposal.draft_laws, proposal.law_row, proposal.vocab_map,
        )  # fmt: skip
        return _result(outputs, forward)


class TypicalVerifier:
    """A draft counts iff the target finds it likely enough: faster, and not the target's law."""

    def __init__(self, threshold: float, alpha: float) -> None:
        self.threshold, self.alpha = threshold, alpha
        logger.warning(
            "verification='typical' is lossy: at temperatures above 0 the output does not follow "
            "the model's law. 'match' and 'rejection' keep it."
        )

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        outputs = _outputs(proposal)
        ops.typical_sample(
            forward.logits, *RowParams.of(batch.seqs, forward.row_seq), forward.decided_positions,
            forward.row_status, forward.row_base,
            proposal.tokens, proposal.parents, proposal.lengths, self.threshold, self.alpha,
            *outputs,
        )  # fmt: skip
        return _result(outputs, forward)


class SyntheticVerifier:
    """Drafts count by decree, whatever they say: a step at its full cost, and text that means
    nothing. The path goes down first children; the token after it is the target's own.
    """

    def __init__(self, sampler: Sampler, acceptance: SyntheticAcceptance) -> None:
        self.sampler, self.acceptance = sampler, acceptance
        logger.warning(
            "synthetic_acceptance is set: drafts are accepted by decree, and requests that "
            "speculate get invalid text. It is for trying controllers and cost models."
        )

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        tokens, row_status = self.sampler.sample(batch, forward)
        row_status |= forward.row_status
        path, num_accepted, next_tokens, status = outputs = _outputs(proposal)
        next_tokens.fill_(-1)
        for b, root in enumerate(forward.row_base.tolist()):
            if root < 0:
                continue
            parents = proposal.parents[b, : int(proposal.lengths[b])].tolist()
            nodes = self._accepted(batch.seqs[b], parents)
            path[b, : len(nodes)] = torch.tensor(nodes, dtype=torch.int32)
            rows = [root, *(root + 1 + node for node in nodes)]
            num_accepted[b], next_tokens[b] = len(nodes), tokens[rows[-1]]
            status[b] = int(np.bitwise_or.reduce(row_status.numpy()[rows]))
        return _result(outputs, forward)

    def _accepted(self, seq: Sequence, parents: list[int]) -> list[int]:
        """The first child of each node before, as far as chance lets it."""
        nodes: list[int] = []
        for depth, rate in enumerate(self.acceptance.conditional):
            parent = nodes[-1] if nodes else -1
            if parent not in parents or draw(seq.seed, len(seq.token_ids) + depth) >= rate:
                break
            nodes.append(parents.index(parent))
        return nodes


def draw(seed: int, position: int) -> float:
    """Uniform in [0, 1): a matter of the request and the position alone."""
    return philox(seed, (0, _DECREE, position, 0))[0] / 2**32


def make_verifier(config: SpeculativeConfig | None) -> Verifier:
    """The configured rule; matching where nothing is drafted."""
    if config and config.synthetic:
        return SyntheticVerifier(Sampler(), config.synthetic)
    if config is None or config.verification == "match":
        return MatchVerifier(Sampler())
    if config.verification == "rejection":
        return RejectionVerifier(config.rejection_rule == "token")
    assert config.typical_threshold and config.typical_alpha
    return TypicalVerifier(config.typical_threshold, config.typical_alpha)


def _roots(batch: Batch) -> Tensor:
    """[B] int32: the position of each sequence's first undecided token."""
    return torch.tensor([len(s.token_ids) for s in batch.seqs], dtype=torch.int32)


def _outputs(proposal: Proposal) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """path, num_accepted, next_tokens and status for an op to fill."""
    num_accepted, next_tokens, status = torch.zeros(3, len(proposal.lengths), dtype=torch.int32)
    return torch.full_like(proposal.tokens, -1), num_accepted, next_tokens, status


def _result(outputs: tuple[Tensor, ...], forward: Forward) -> VerifyResult:
    path, num_accepted, next_tokens, status = outputs
    errors = tuple(map(_describe, (status | forward.tail_status).tolist()))
    return VerifyResult(path, num_accepted, next_tokens, errors)


def _describe(status: int) -> str | None:
    if not status:
        return None
    if status & (ops.ROW_NAN | ops.ROW_NON_FINITE_KV):
        return "The model's output is not a number here: its weights, or this prompt, overflow."
    return "No token is allowed at this position: every logit is -inf."
