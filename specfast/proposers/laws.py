"""What a proposal says its drafts were drawn from: looked at before rejection believes it."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from specfast.proposers.base import Proposal


def check_laws(proposal: Proposal, vocab_size: int) -> None:
    """ValueError for laws that no drafts of this proposal can have been drawn from."""
    laws, law_row, vocab_map = proposal.draft_laws, proposal.law_row, proposal.vocab_map
    if laws is None or law_row is None:
        if laws is not law_row or vocab_map is not None:
            raise ValueError("draft_laws and law_row belong together, and vocab_map to them.")
        return
    for name, t in (("draft_laws", laws), ("law_row", law_row), ("vocab_map", vocab_map)):
        if t is not None:
            check_in_memory(t, name)
    check_column(law_row, "law_row", torch.int32, proposal.tokens.shape)
    if vocab_map is not None:
        check_column(vocab_map, "vocab_map", torch.int32, (laws.shape[-1],))
        ids = vocab_map.numpy()
        if not len(ids) or ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(f"vocab_map must hold ids of the target's vocabulary of {vocab_size}.")
    width = vocab_size if vocab_map is None else len(vocab_map)
    check_column(laws, "draft_laws", torch.float32, (laws.shape[0], width))
    _check_nodes(proposal, laws, law_row.numpy())


def joined_laws(
    parts: Seqs[Proposal], width: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """draft_laws, law_row and vocab_map of one proposer's proposals for parts of a batch."""
    laws: list[Tensor] = []
    rows: list[Tensor] = []
    count, vocab_map = 0, None
    for part in parts:
        row = torch.full_like(part.tokens, -1) if part.law_row is None else part.law_row
        rows.append(
            pad(torch.where(row < 0, row, row + count), (0, width - row.shape[1]), value=-1)
        )
        if part.draft_laws is not None:
            laws.append(part.draft_laws)
            count, vocab_map = count + len(part.draft_laws), part.vocab_map
    return (torch.cat(laws), torch.cat(rows), vocab_map) if laws else (None, None, None)


def check_in_memory(t: object, name: str) -> None:
    """ValueError for what the ops, or numpy, could not read."""
    if not isinstance(t, Tensor) or t.requires_grad or t.device.type != "cpu":
        raise ValueError(f"{name} must be a tensor in memory, without gradient.")


def check_column(t: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """ValueError for another dtype, shape or layout."""
    if t.dtype != dtype or tuple(t.shape) != tuple(shape) or not t.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} of shape {list(shape)}, not {t.dtype} of shape "
            f"{list(t.shape)}."
        )


def _check_nodes(proposal: Proposal, laws: Tensor, law_row: np.ndarray) -> None:
    within = np.arange(law_row.shape[1]) < proposal.lengths.numpy()[:, None]
    if ((law_row < -1) | (law_row >= len(laws)))[within].any():
        raise ValueError("law_row must be -1 (a point mass) or a row of draft_laws.")
    b, node = np.nonzero(within & (law_row >= 0))
    used = law_row[b, node].astype(np.int64)
    if not (laws.amax(1)[torch.from_numpy(used)] > -torch.inf).all():
        raise ValueError("draft_laws must be numbers, with one above -inf in each row.")
    family = b * (law_row.shape[1] + 1) + proposal.parents.numpy()[b, node] + 1
    token = proposal.tokens.numpy()[b, node].astype(np.int64)
    if len(np.unique(family << 32 | token)) < len(family):
        raise ValueError("siblings that were drawn must be distinct.")
    if len(np.unique(family << 32 | used)) > len(np.unique(family)):
        raise ValueError("siblings that were drawn must share a row of draft_laws.")
