"""Verification: which drafts of a step count, and the token after them.

Accepted: a draft that counts. Recovered token: the one after a rejection. Bonus token: the one
after the last accepted draft where nothing was rejected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specfast import ops
from specfast.models.runner import Forward
from specfast.proposers.base import Proposal
from specfast.sampler import RowParams, Sampler
from specfast.sequence import Batch
from specfast.speculative_config import SpeculativeConfig

logger = logging.getLogger(__name__)


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


def make_verifier(config: SpeculativeConfig | None) -> Verifier:
    """The configured rule; matching where nothing is drafted."""
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
