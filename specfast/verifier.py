"""Verification by matching: the target decides a token a row, and a draft is accepted iff it is
that token.

Accepted: a draft that equals the target's own decision at its parent. Recovered token: the target's
decision where no child matched. Bonus token: its decision after the last accepted draft. All come
from the same rows by the same noise, so the output is the target's own stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops
from specfast.models.runner import Forward
from specfast.proposers.base import Proposal
from specfast.sampler import Sampler
from specfast.sequence import Batch


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


class Verifier:
    """One target pass in, one decided path a sequence out."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def verify(self, batch: Batch, proposal: Proposal, forward: Forward) -> VerifyResult:
        tokens, row_status = self.sampler.sample(batch, forward)
        path = torch.full_like(proposal.tokens, -1)
        num_accepted, next_tokens, status = torch.zeros(3, len(batch), dtype=torch.int32)
        ops.accept_path(
            tokens, row_status | forward.row_status, forward.row_base,
            proposal.tokens, proposal.parents, proposal.lengths,
            path, num_accepted, next_tokens, status,
        )  # fmt: skip
        errors = tuple(map(_describe, (status | forward.tail_status).tolist()))
        return VerifyResult(path, num_accepted, next_tokens, errors)


def _describe(status: int) -> str | None:
    if not status:
        return None
    if status & (ops.ROW_NAN | ops.ROW_NON_FINITE_KV):
        return "The model's output is not a number here: its weights, or this prompt, overflow."
    return "No token is allowed at this position: every logit is -inf."
