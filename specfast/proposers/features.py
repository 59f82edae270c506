"""The target's hidden states of the tokens that a step committed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specfast.models.runner import Forward
from specfast.sequence import Batch, Sequence
from specfast.verifier import VerifyResult


def committed_rows(
    batch: Batch, forward: Forward, result: VerifyResult
) -> Iterator[tuple[Sequence, int, np.ndarray]]:
    """Of each sequence that goes on drafting: the position of the first token whose KV the step
    left behind, and the rows of forward.features of it and those after it. To be called once the
    step is committed, as in observe.
    """
    path = result.path.numpy()
    for b, seq in enumerate(batch.seqs):
        if seq.finish or not seq.params.speculation.enabled:
            continue
        base = int(batch.node_base[b])
        nodes = path[b, : max(0, seq.num_computed_tokens - base)]
        first, num_tail = int(forward.first_row[b]), int(batch.num_tokens[b])
        tail = np.arange(first, first + num_tail)
        yield seq, int(batch.starts[b]), np.concatenate([tail, first + num_tail + nodes])
