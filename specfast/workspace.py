"""Bytes of the workspace that an op of these sizes needs on CUDA; 0 in a build without CUDA."""

from __future__ import annotations

from specfast.ops import _ops


def sample_rows(rows: int, vocabulary: int, logprobs: int | None = None) -> int:
    """logprobs: how many likeliest tokens, beside the chosen one; None: no log-probabilities."""
    return _ops.sample_rows_workspace(rows, vocabulary, logprobs)


def rank_candidates(rows: int, vocabulary: int, m: int) -> int:
    return _ops.rank_candidates_workspace(rows, vocabulary, m)


def draw_candidates(rows: int, vocabulary: int, m: int) -> int:
    return _ops.draw_candidates_workspace(rows, vocabulary, m)


def rejection_sample(
    rows: int, vocabulary: int, sequences: int, laws: int = 0, law_vocabulary: int = 0
) -> int:
    """laws: the rows of draft_laws."""
    return _ops.rejection_sample_workspace(rows, vocabulary, sequences, laws, law_vocabulary)


def typical_sample(rows: int, vocabulary: int, sequences: int) -> int:
    return _ops.typical_sample_workspace(rows, vocabulary, sequences)


def tree_attention(
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: int,
    context: int,
    window: int = 0,
) -> int:
    """With which it is fastest; less will do, but not none at all once `context` is past 512.

    context: the positions that a sequence's block table covers.
    """
    return _ops.tree_attention_workspace(
        rows, heads, kv_heads, head_dim, sequences, context, window
    )
