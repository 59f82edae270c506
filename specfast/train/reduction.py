"""A reduced vocabulary: which tokens a draft knows, and what the others stand in for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specfast.train.data import Answer


def head_tokens(answers: Sequence[Answer], vocab_size: int, size: int) -> Tensor | None:
    """The `size` commonest tokens of the corpus, ascending, int32; None where that is all."""
    if not size or size >= vocab_size:
        return None
    counts = np.bincount(np.concatenate([a.tokens for a in answers]), minlength=vocab_size)
    best = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(best).astype(np.int32))


def nearest_rows(embedding: Tensor, d2t: Tensor) -> Tensor:
    """For every token the head's row of the nearest token (by cosine) that has one, int32 [V]."""
    directions = functional.normalize(embedding, dim=1)
    kept = directions[d2t].T.contiguous()
    nearest = torch.cat([(part @ kept).argmax(1) for part in directions.split(4096)]).int()
    nearest[d2t] = torch.arange(len(d2t), dtype=torch.int32)
    return nearest


def rows_of_tokens(d2t: Tensor | None, vocab_size: int) -> Tensor:
    """The inverse of d2t: [V] int64, -1 where a token has no row."""
    if d2t is None:
        return torch.arange(vocab_size)
    rows = torch.full((vocab_size,), -1)
    rows[d2t.long()] = torch.arange(len(d2t))
    return rows
