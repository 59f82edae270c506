"""The parts of a target that its heads draft with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.models.decoder import Model
from specfast.train.reduction import rows_of_tokens


@dataclass(frozen=True)
class Frozen:
    """What the head uses of its target: embedding [V, H] and the rows [Vd, H] of its vocabulary,
    in the type that they are multiplied in; d2t [Vd] (None: all); row_of [V], -1 for none.
    """

    embedding: Tensor
    rows: Tensor
    d2t: Tensor | None
    row_of: Tensor

    @classmethod
    def of(cls, model: Model, d2t: Tensor | None, dtype: torch.dtype, device: str) -> Frozen:
        vocab_size = model.config.vocab_size
        tokens = torch.arange(vocab_size) if d2t is None else d2t
        rows = model.weights.head_rows(tokens).to(device, dtype)
        row_of = rows_of_tokens(d2t, vocab_size).to(device)
        return cls(model.weights.embedding.to(device, dtype), rows, d2t, row_of)
