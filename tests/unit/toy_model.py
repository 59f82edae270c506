"""A target that is all bookkeeping: its logits are a hash of exactly the tokens that a row can see.

It writes each row's token into the paged cache and reads back, slot by slot, what the row's block
table, position and ancestor bits make visible. So a wrong slot, table, bit, position, stale or
missing token changes the output, and nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from specfast.models.rows import Rows


@dataclass(frozen=True)
class ToyConfig:
    vocab_size: int = 40
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    max_position_embeddings: int = 256

    @property
    def head_size(self) -> int:
        return self.vocab_size


class ToyModel:
    """The law depends on the last `order` visible tokens (0: all)."""

    def __init__(self, config: ToyConfig = ToyConfig(), order: int = 0) -> None:
        self.config = config
        self.order = order
        self.weights = SimpleNamespace(d2t=None, arena=torch.zeros(2**14))

    def kv_dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def forward(self, rows: Rows, kv_cache: Tensor) -> Tensor:
        """-> [M, 1]: the hash of what each row sees."""
        slots = kv_cache[0, 0].view(-1)
        slots[rows.slots] = rows.token_ids.float() + 1
        hidden = np.zeros((len(rows.token_ids), 1), np.float64)
        indptr = rows.qo_indptr.tolist()
        for b in range(len(indptr) - 1):
            for row in range(indptr[b], indptr[b + 1]):
                hidden[row] = self._digest(self._visible(rows, b, row, slots, kv_cache.shape[3]))
        return torch.from_numpy(hidden)

    def forward_with_features(
        self, rows: Rows, kv_cache: Tensor, layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """The hash is the hidden state behind every layer."""
        hidden = self.forward(rows, kv_cache)
        return hidden, hidden.repeat(1, len(layers))

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        """-> [R, V]: seeded by the hash."""
        out = np.empty((len(index), self.config.vocab_size), np.float32)
        for r, digest in enumerate(hidden[index, 0].tolist()):
            rng = np.random.default_rng(int(digest))
            out[r] = 2.0 * rng.standard_normal(self.config.vocab_size)
        return torch.from_numpy(out)

    def _visible(self, rows: Rows, b: int, row: int, slots: Tensor, block_size: int) -> list[int]:
        position, base = int(rows.positions[row]), int(rows.node_base[b])
        bits = int(rows.node_bits[row]) & (2**64 - 1)
        ancestors = [base + i for i in range(64) if bits >> i & 1]
        logical = [*range(min(position + 1, base)), *ancestors]
        assert len(logical) == position + 1
        table = rows.block_tables[b].tolist()
        return [int(slots[table[p // block_size] * block_size + p % block_size]) for p in logical]

    def _digest(self, tokens: list[int]) -> int:
        digest = 17
        for token in tokens[-self.order :] if self.order else tokens:
            digest = (digest * 1_000_003 + token) % (2**52)
        return digest


class NoisyToy(ToyModel):
    """The toy's logits with noise of this size: a draft that is now and then right."""

    def __init__(self, size: float = 1.0, config: ToyConfig = ToyConfig(), order: int = 0) -> None:
        super().__init__(config, order)
        self.size = size

    def logits(self, hidden: Tensor, index: Tensor) -> Tensor:
        noise = super().logits(hidden + 1, index)
        return super().logits(hidden, index) + self.size * noise


class ToyTokenizer:
    """Token t is the letter chr(97 + t % 26) with its number; ids are their own prompt."""

    eos_token_ids: frozenset[int] = frozenset({0})
    vocab_size = 40

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1 + ord(c) % (self.vocab_size - 1) for c in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.piece(t) for t in ids)

    def detokenizer(self, skip_special_tokens: bool = True) -> ToyDetokenizer:
        return ToyDetokenizer()

    @staticmethod
    def piece(token_id: int) -> str:
        return f"<{token_id}>"


class ToyDetokenizer:
    def append(self, token_id: int) -> str:
        return ToyTokenizer.piece(token_id)

    def flush(self) -> str:
        return ""
