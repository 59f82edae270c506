"""Medusa: heads on the target's hidden state, one for each of the next tokens, draft a tree."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seqs
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from specfast.models.medusa import MedusaConfig, MedusaHeads, load_medusa
from specfast.proposers.base import Needs, Proposal
from specfast.proposers.candidate_tree import CandidateTree, best_paths
from specfast.proposers.candidates import NUM_RANKED, ParentRows, Ranking
from specfast.proposers.features import committed_rows
from specfast.proposers.track_record import FitCheck
from specfast.speculative_config import MAX_NODES, SpeculativeConfig
from specfast.validation import require

if TYPE_CHECKING:
    from specfast.models.runner import Forward
    from specfast.proposers.target import Target
    from specfast.sequence import Batch, Sequence
    from specfast.verifier import VerifyResult

logger = logging.getLogger(__name__)


class MedusaProposer:
    """Drafts from the hidden state that decided each sequence's last token.

    That state depends on the tokens alone, so it outlives a preemption; where a prefix hit brought
    the token before the last there is none, and no drafts until the step after.
    """

    options: ClassVar[frozenset[str]] = frozenset({"model", "draft_dtype", "max_tree_nodes"})

    def __init__(
        self,
        config: SpeculativeConfig,
        target: Target,
        loaded: tuple[MedusaConfig, MedusaHeads] | None = None,
    ) -> None:
        """loaded: heads at hand instead of config.model."""
        about, self.heads = loaded or _load(config, target)
        self._accuracies = accuracies_of(about)[: self.heads.num_heads]
        self._tree = _tree(self._accuracies, about, config)
        self.needs = Needs(layers=(target.model.config.num_layers,))
        self._is_coupled = config.is_coupled
        self._fit = FitCheck(f"The Medusa heads {config.model}")
        self._features: dict[int, tuple[int, Tensor]] = {}  # seq_id -> its length then, [H]

    @torch.inference_mode()
    def propose(self, batch: Batch) -> Proposal:
        """Trees within the limits; none for a sequence whose hidden state isn't known."""
        rows = self._known(batch)
        proposal = self._drafted(batch, rows) if len(rows) else Proposal.empty(len(batch))
        self._fit.proposed(proposal)
        return proposal

    def observe(
        self, batch: Batch, proposal: Proposal, forward: Forward, result: VerifyResult
    ) -> None:
        """Keeps the last committed row of each sequence that is computed but for its last token."""
        self._fit.observe(proposal, result)
        found = [
            (seq, int(rows[-1]))
            for seq, _, rows in committed_rows(batch, forward, result)
            if seq.num_uncomputed_tokens == 1
        ]
        features = forward.features[[row for _, row in found]]  # a copy: the rest may go
        for (seq, _), feature in zip(found, features):
            self._features[seq.seq_id] = len(seq.token_ids), feature

    def release(self, seq: Sequence) -> None:
        self._features.pop(seq.seq_id, None)

    def reset(self) -> None:
        self._features.clear()

    def _known(self, batch: Batch) -> np.ndarray:
        """Those to draft for whose hidden state is that of their tokens now."""
        return np.array(
            [
                row
                for row, seq in enumerate(batch.seqs)
                if batch.draft_limits[row, 1]
                and self._features.get(seq.seq_id, (0,))[0] == len(seq.token_ids)
            ],
            np.int64,
        )

    def _drafted(self, batch: Batch, rows: np.ndarray) -> Proposal:
        seqs = [batch.seqs[row] for row in rows]
        limits = batch.draft_limits[rows]
        ids, shares = self._candidates(seqs, min(int(limits[:, 0].max()), self.heads.num_heads))
        tree = self._tree
        tokens, confidence = (c[tree.heads, :, tree.ranks].T.copy() for c in (ids, shares))
        greedy = np.array([s.params.greedy for s in seqs])
        confidence[greedy] = self._accuracies[tree.heads, tree.ranks]
        parents = np.tile(tree.parents, (len(rows), 1))
        lengths = np.full(len(rows), len(tree), np.int32)
        whole = Proposal(*map(torch.from_numpy, (tokens, parents, lengths, confidence)))
        drafted = whole.kept(tree.kept(tokens >= 0, limits))
        order = np.full(len(batch), len(rows))  # the others get the empty tree at the end
        order[rows] = np.arange(len(rows))
        return Proposal.joined([drafted, Proposal.empty(1)]).only(order)

    def _candidates(self, seqs: Seqs[Sequence], num_heads: int) -> tuple[np.ndarray, np.ndarray]:
        """-> target ids (-1: none) and their shares [heads, sequences, NUM_RANKED], by the heads
        needed; the rest is empty.
        """
        features = torch.stack([self._features[s.seq_id][1] for s in seqs])
        logits = self.heads.logits(features, num_heads).flatten(0, 1)
        row_seq = np.tile(np.arange(len(seqs)), num_heads)
        lengths = np.array([len(s.token_ids) for s in seqs], np.int32)
        positions = lengths[row_seq] + np.arange(num_heads, dtype=np.int32).repeat(len(seqs))
        roots = np.full(len(row_seq), -1, np.int32)
        ranking = Ranking(seqs, self.heads.d2t, self._is_coupled)
        found = ranking.children(logits, ParentRows(row_seq, roots, torch.from_numpy(positions)))
        shape = self.heads.num_heads, len(seqs), NUM_RANKED
        ids, shares = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
        for whole, part in zip((ids, shares), found):
            whole[:num_heads, :, : part.shape[1]] = part.reshape(num_heads, len(seqs), -1)
        return ids, shares


def _load(config: SpeculativeConfig, target: Target) -> tuple[MedusaConfig, MedusaHeads]:
    """As many heads as drafts may be deep."""
    require(
        config.model is not None,
        "speculative_config: the method 'medusa' needs a model: a folder, a hub id, or the name of "
        "heads that the package carries.",
    )
    assert config.model
    depth = config.num_speculative_tokens
    about, heads = load_medusa(config.model, target.model, depth, config.draft_dtype or "auto")
    if heads.num_heads < depth:
        logger.info("%s has %d heads: drafts are no deeper.", config.model, heads.num_heads)
    return about, heads


def _tree(accuracies: np.ndarray, about: MedusaConfig, config: SpeculativeConfig) -> CandidateTree:
    """The nodes that the heads' folder allows, or the chain of first candidates; as many as a
    lower limit on the depth could leave.
    """
    allowed = about.medusa_choices
    if config.max_tree_nodes is None:
        allowed = tuple((0,) * n for n in range(1, len(accuracies) + 1))
    return CandidateTree.of(
        best_paths(accuracies, MAX_NODES, None if allowed is None else frozenset(allowed))
    )


def accuracies_of(config: MedusaConfig) -> np.ndarray:
    """[heads, NUM_RANKED] float32: measured with the heads, or a guess."""
    found = np.zeros((config.medusa_num_heads, NUM_RANKED), np.float32)
    for row, head in zip(found, config.medusa_accuracies or _guess(config.medusa_num_heads)):
        row[: len(head)] = head[:NUM_RANKED]
    return found


def _guess(num_heads: int) -> list[list[float]]:
    """Heads of which nothing is known: each is right four times for five of the one before, and its
    next candidates a quarter as often as its first, an eighth, ...
    """
    ranks = [1.0, *(0.25 / rank for rank in range(1, NUM_RANKED))]
    return [[0.6 * 0.8**head * share for share in ranks] for head in range(num_heads)]
