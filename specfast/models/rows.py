"""The rows of one forward: tail tokens and draft nodes of a batch, and where their KV lies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """M rows of B sequences; int32 unless said, as `ops.tree_attention` takes them.

    token_ids, positions [M] (rotary and logical position alike); slots [M] int64; node_bits [M]
    int64; status [M]: or-ed into by the forward, 0 before; qo_indptr [B + 1]; block_tables [B, W];
    node_base, kv_start [B].
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    node_bits: Tensor
    status: Tensor
    qo_indptr: Tensor
    block_tables: Tensor
    node_base: Tensor
    kv_start: Tensor
