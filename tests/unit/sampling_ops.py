"""What the sampling tests share: ops with one parameter for all rows, and a goodness of fit."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specfast import ops


def column(value: float | list | Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(value, dtype=dtype).expand(rows).contiguous()


@dataclass(frozen=True)
class Sampled:
    """What `sample_rows` writes for R rows."""

    tokens: Tensor
    status: Tensor
    logprob_ids: Tensor
    logprobs: Tensor

    def bits(self) -> Tensor:
        """[R, n] int32: every output, bit by bit."""
        outputs = [getattr(self, f.name).view(torch.int32) for f in fields(self)]
        return torch.cat([o.reshape(len(self.tokens), -1) for o in outputs], dim=1)


def sample(
    logits: Tensor,
    temperature: float | list | Tensor = 1.0,
    top_k: int | list | Tensor = 0,
    top_p: float | list | Tensor = 1.0,
    min_p: float | list | Tensor = 0.0,
    seed: int | list | Tensor = 0,
    position: int | list | Tensor = 0,
    num_logprobs: int | None = None,
) -> Sampled:
    """Each parameter: one value for all rows, or [R]. Without num_logprobs those are empty."""
    rows = len(logits)
    tokens, status = torch.full((2, rows), 77, dtype=torch.int32)
    width = 0 if num_logprobs is None else 1 + num_logprobs
    ids, logprobs = torch.full((rows, width), 77, dtype=torch.int32), torch.zeros(rows, width)
    ops.sample_rows(
        logits,
        column(temperature, rows, torch.float32),
        column(top_k, rows, torch.int32),
        column(top_p, rows, torch.float32),
        column(min_p, rows, torch.float32),
        column(seed, rows, torch.int64),
        column(position, rows, torch.int32),
        tokens,
        status,
        *((ids, logprobs) if width else ()),
    )
    return Sampled(tokens, status, ids, logprobs)


def rank(
    logits: Tensor,
    m: int,
    temperature: float | list | Tensor = 1.0,
    seed: int | list | Tensor = 0,
    position: int | list | Tensor = 0,
    d2t: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """-> ids, scores [R, m]."""
    rows = len(logits)
    ids, scores = torch.full((rows, m), 77, dtype=torch.int32), torch.zeros(rows, m)
    ops.rank_candidates(
        logits,
        column(temperature, rows, torch.float32),
        column(seed, rows, torch.int64),
        column(position, rows, torch.int32),
        ids,
        scores,
        d2t,
    )
    return ids, scores


def fit(counts: Tensor, probs: Tensor) -> float:
    """The chi-square p-value of counts [n] under probs [n] (float64); rare cells are pooled."""
    expected = probs.double() * counts.sum()
    order = expected.argsort(descending=True)
    expected, counts = expected[order], counts.double()[order]
    if counts[expected == 0].any():
        return 0.0
    common = int((expected >= 8).sum())
    pool = lambda x: torch.cat((x[:common], x[common:].sum()[None]))  # noqa: E731
    expected, counts = pool(expected), pool(counts)
    cells = expected > 0
    statistic = ((counts - expected)[cells].square() / expected[cells]).sum()
    freedom = torch.tensor(float(cells.sum()) - 1).double()
    return float(torch.special.gammaincc(freedom / 2, statistic / 2)) if freedom > 0 else 1.0
