"""From logits to decided tokens: the one place where the target's law and its noise are defined."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast._host import philox
from specfast.config import SamplingParams
from specfast.models.runner import Forward
from specfast.sequence import Batch

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


class Sampler:
    """Decides a token for every row of a forward, each by its sequence's parameters and its
    position.
    """

    def sample(self, batch: Batch, forward: Forward) -> tuple[Tensor, Tensor]:
        """-> tokens, status [R] int32."""
        params = [seq.params for seq in batch.seqs]
        row_seq = forward.row_seq

        def per_row(values: list, dtype: type) -> Tensor:
            return torch.from_numpy(np.array(values, dtype).take(row_seq, axis=-1))

        temperature, top_p, min_p = per_row(
            [[p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params]],
            np.float32,
        )
        num_rows = len(row_seq)
        tokens, status = torch.zeros(2, num_rows, dtype=torch.int32)
        ops.sample_rows(
            forward.logits,
            temperature,
            per_row([p.top_k for p in params], np.int32),
            top_p,
            min_p,
            per_row([s.seed for s in batch.seqs], np.uint64).view(torch.int64),
            forward.decided_positions,
            tokens,
            status,
        )
        return tokens, status
