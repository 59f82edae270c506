"""Medusa heads that can be trained: what they read and are to say, and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from specfast.train.batches import FeatureBatch
from specfast.train.frozen import Frozen

NUM_RANKED = 8  # candidates of a head that are told apart, as many as the proposer ranks
_ROWS = 512  # whose logits are held at a time


class Block(nn.Module):
    """h + silu(W h + b), which starts as h."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        return h + functional.silu(self.linear(h))


class Heads(nn.Module):
    """One a depth; the target's own matrix makes logits of what they give. State dict and loader
    agree on names.
    """

    def __init__(self, size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        for head in range(num_heads):
            self.add_module(str(head), nn.Sequential(*(Block(size) for _ in range(num_layers))))

    def forward(self, features: Tensor) -> list[Tensor]:
        """features [R, H] -> [R, H] a head."""
        return [head(features) for head in self.children()]

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What model.safetensors holds."""
        return {name: t.detach().cpu().to(dtype) for name, t in self.state_dict().items()}


def answer_rows(batch: FeatureBatch, num_heads: int) -> tuple[Tensor, Tensor]:
    """The hidden states that decided an answer's token with one more after it: features [R, F]; and
    where head j's token lies in the flattened [B, T] batch [heads, R], -1 past the answer's end.
    """
    width = batch.tokens.shape[1]
    at = torch.arange(width - 1, device=batch.tokens.device)
    decided = functional.pad(batch.law, (0, num_heads + 1), value=-1)
    is_read = (at + 1 >= batch.starts[:, None]) & (decided[:, 2 : width + 1] >= 0)
    text, row = is_read.nonzero(as_tuple=True)
    ahead = row + 2 + torch.arange(num_heads, device=row.device)[:, None]
    places = torch.where(decided[text, ahead] >= 0, text * width + ahead, -1)
    return batch.features[text, row].float(), places


@torch.no_grad()
def ranks_of(heads: Heads, frozen: Frozen, batch: FeatureBatch, num_heads: int) -> Tensor:
    """[heads, R]: which candidate of head j is the text's token; NUM_RANKED: none, -1: past the
    end. Rows as in answer_rows.
    """
    features, places = answer_rows(batch, num_heads)
    wanted = frozen.row_of[batch.tokens.flatten()[places.clamp(min=0)]]
    found = torch.full_like(places, -1)
    for head, hidden in enumerate(heads(features)):
        parts = zip(hidden.to(frozen.rows.dtype).split(_ROWS), wanted[head].split(_ROWS))
        count = min(NUM_RANKED, len(frozen.rows))
        tops = [((part @ frozen.rows.T).topk(count).indices == w[:, None]) for part, w in parts]
        is_it = torch.cat(tops)
        rank = torch.where(is_it.any(1), is_it.int().argmax(1), NUM_RANKED)
        found[head] = torch.where(places[head] >= 0, rank, -1)
    return found


def accuracies_of(ranks: Sequence[np.ndarray]) -> list[list[float]]:
    """[heads][NUM_RANKED]: how often each candidate is the token. ranks: [N, heads] a text."""
    rows = np.concatenate(ranks)
    counted = [column[column >= 0] for column in rows.T]
    return [
        (np.bincount(column, minlength=NUM_RANKED + 1)[:NUM_RANKED] / max(1, len(column))).tolist()
        for column in counted
    ]


def rights_in(ranks: np.ndarray, paths: Sequence[tuple[int, ...]]) -> np.ndarray:
    """[N, heads] bool: the tree of these paths holds the text as far as head j's token. ranks
    [N, heads].
    """
    nodes = set(paths)
    rows = ranks.tolist()
    found = [[tuple(row[: j + 1]) in nodes for j in range(len(row))] for row in rows]
    return np.array(found, bool).reshape(ranks.shape)
