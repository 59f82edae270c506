"""How close a decision of the target was."""

from __future__ import annotations

import numpy as np
import torch

from specfast import ops
from specfast.kv_cache import KVCache, kv_shape_of
from specfast.models.decoder import Model
from specfast.models.rows import Rows
from specfast.sampler import resolve_seed
from specfast.sampling_params import SamplingParams

BLOCK_SIZE = 16


@torch.inference_mode()
def top_two_margin(
    model: Model, token_ids: list[int], params: SamplingParams, kv_dtype: str
) -> float:
    """Score of the best less that of the second best token after token_ids, computed plainly.

    Scores are logits, and at temperature > 0 logits / T plus the position's noise, before filters.
    """
    n = len(token_ids)
    cache = KVCache(kv_shape_of(model, kv_dtype), -(-n // BLOCK_SIZE), BLOCK_SIZE)
    hidden = model.forward(_rows(token_ids), cache.data)
    logits = model.logits(hidden, torch.tensor([n - 1]))
    ids, scores = torch.empty(1, 2, dtype=torch.int32), torch.empty(1, 2)
    ops.rank_candidates(
        logits,
        torch.tensor([params.temperature]),
        torch.from_numpy(np.array([resolve_seed(params)], np.uint64).view(np.int64)),
        torch.tensor([n], dtype=torch.int32),
        ids,
        scores,
    )
    return float(scores[0, 0] - scores[0, 1])


def _rows(token_ids: list[int]) -> Rows:
    n = len(token_ids)
    blocks = torch.arange(-(-n // BLOCK_SIZE), dtype=torch.int32)
    return Rows(
        token_ids=torch.tensor(token_ids, dtype=torch.int32),
        positions=torch.arange(n, dtype=torch.int32),
        slots=torch.arange(n),
        node_bits=torch.zeros(n, dtype=torch.int64),
        status=torch.zeros(n, dtype=torch.int32),
        qo_indptr=torch.tensor([0, n], dtype=torch.int32),
        block_tables=blocks[None],
        node_base=torch.tensor([n], dtype=torch.int32),
        kv_start=torch.zeros(1, dtype=torch.int32),
    )
