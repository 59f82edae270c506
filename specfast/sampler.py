"""From logits to decided tokens: the one place where the target's law and its noise are defined."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast._host import philox
from specfast.models.runner import Forward
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence

_FORK = 4  # Philox purpose; 0 target, 1 accept, 2 residual, 3 draft


def resolve_seed(params: SamplingParams) -> int:
    """The request's seed as 64 unsigned bits; without one, 64 bits of OS entropy."""
    return secrets.randbits(64) if params.seed is None else params.seed % 2**64


def fork_seed(seed: int, choice: int) -> int:
    """The seed of choice i of n; choice 0 keeps the request's."""
    if choice == 0:
        return seed
    low, high, _, _ = philox(seed, (choice, _FORK, 0, 0))
    return low | high << 32


def forked(params: SamplingParams, number: int) -> SamplingParams:
    """For the request of this number among some alike: a seed of its own, if they have one."""
    if params.seed is None or not number:
        return params
    return replace(params, seed=fork_seed(resolve_seed(params), number))


class RowParams(NamedTuple):
    """How each row is drawn from, in the order of the ops: all [R]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor

    @classmethod
    def of(cls, seqs: Seqs[Sequence], row_seq: np.ndarray) -> RowParams:
        """row_seq [R]: the sequence of each row."""
        params = [seq.params for seq in seqs]

        def per_row(values: list, dtype: type) -> Tensor:
            return torch.from_numpy(np.array(values, dtype).take(row_seq, axis=-1))

        temperature, top_p, min_p = per_row(
            [[p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params]],
            np.float32,
        )
        top_k = per_row([p.top_k for p in params], np.int32)
        seeds = per_row([s.seed for s in seqs], np.uint64).view(torch.int64)
        return cls(temperature, top_k, top_p, min_p, seeds)


class Sampler:
    """Decides a token for every row of a forward, each by its sequence's parameters and its
    position.
    """

    def sample(self, batch: Batch, forward: Forward) -> tuple[Tensor, Tensor]:
        """-> tokens, status [R] int32."""
        tokens, status = torch.zeros(2, len(forward.row_seq), dtype=torch.int32)
        params = RowParams.of(batch.seqs, forward.row_seq)
        ops.sample_rows(forward.logits, *params, forward.decided_positions, tokens, status)
        return tokens, status


@dataclass(frozen=True)
class Drafts:
    """What rejection has to be told of sampled drafts. ids [R, m] int32: target ids in the order
    drawn, -1 where the law's support ends; laws [R, Vd] float32, as Proposal.draft_laws takes them.
    """

    ids: Tensor
    laws: Tensor


def draw_drafts(
    logits: Tensor,
    seqs: Seqs[Sequence],
    row_seq: np.ndarray,
    parents: np.ndarray,
    depths: np.ndarray,
    m: int = 1,
    vocab_map: Tensor | None = None,
) -> Drafts:
    """Draws m children without replacement from each row of draft logits [R, Vd], each by its
    sequence's own parameters, by noise that is independent of the target's.

    row_seq, parents, depths [R]: the sequence that a row is for, and the node whose children it
    draws, which must be that node's index in the proposal (-1: the root) at its number of ancestors
    (root: 0). vocab_map [Vd] int32: target ids.
    """
    params = RowParams.of(seqs, row_seq)
    roots = np.array([len(s.token_ids) for s in seqs], np.int32).take(row_seq)
    positions, nodes = (torch.from_numpy(x.astype(np.int32)) for x in (roots + depths, parents))
    ids = torch.empty(len(logits), m, dtype=torch.int32)
    laws = torch.empty_like(logits)
    ops.draw_candidates(
        logits, *params, positions, nodes, torch.from_numpy(roots), ids, laws, vocab_map
    )
    return Drafts(ids, laws)
