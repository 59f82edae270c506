"""Native multi-token prediction: the blocks that a target was trained with draft for it.

One block drafts as an EAGLE head does, fed with its own output behind the first draft. Of several,
block m foretells token i + m + 2 from what block m - 1 made of slot i: a chain, a block a draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from specfast.models.mtp import MtpBlock, load_mtp
from specfast.models.runner import Layout
from specfast.proposers.base import MIN_SURVIVAL, Proposal
from specfast.proposers.candidates import ParentRows
from specfast.proposers.feature_proposer import FeatureProposer
from specfast.proposers.target import Target
from specfast.sequence import Batch
from specfast.speculative_config import SpeculativeConfig
from specfast.validation import require


class MtpProposer(FeatureProposer):
    """Of several blocks each has a KV layer. What block m > 0 made of the last m slots rested on
    drafts: so those slots are fed again, with the tokens that came.
    """

    options: ClassVar[frozenset[str]] = frozenset({"model", "draft_dtype", "max_tree_nodes"})

    def __init__(
        self, config: SpeculativeConfig, target: Target, blocks: tuple[MtpBlock, ...] | None = None
    ) -> None:
        """config.model: where the blocks lie, by default the target's own checkpoint; blocks: some
        at hand instead.
        """
        name = config.model or target.config.model
        blocks = blocks or load_mtp(name, target.model, config.draft_dtype or "auto")
        require(
            len(blocks) == 1 or config.max_tree_nodes is None,
            "This model's MTP blocks draft a depth each, in a chain; leave max_tree_nodes out.",
        )
        super().__init__(config, target, blocks[0])
        self._blocks = blocks[: config.num_speculative_tokens]
        self.num_kept = len(self._blocks) - 1
        assert self.needs.kv
        self.needs = replace(self.needs, kv=replace(self.needs.kv, num_layers=len(self._blocks)))
        self._draws = config.verification == "rejection"

    def draft(self, tails: Batch, layout: Layout, hidden: Tensor) -> Proposal:
        """Every block runs over all slots, so that its KV has no gap."""
        if len(self._blocks) == 1:
            return super().draft(tails, layout, hidden)
        chooser, chains = self.grower.choose(tails.seqs), _Chains(tails)
        rows, num_rows = layout.rows, 0
        for depth, block in enumerate(self._blocks):
            fed = replace(rows, token_ids=chains.tokens_after(depth + 1))
            cache = self._kv.cache.data[depth : depth + 1]
            hidden, normed = block.forward(hidden, fed, cache)
            going = chains.going(depth)[layout.row_seq]
            if going.any():
                seqs = layout.row_seq[going]
                logits = block.logits(normed[layout.logit_rows[torch.from_numpy(going)]])
                positions = torch.from_numpy((tails.node_base[seqs] + 1 + depth).astype(np.int32))
                nodes = np.full(len(seqs), depth - 1, np.int32)
                ids, confidence = chooser.children(logits, ParentRows(seqs, nodes, positions))
                chains.add(seqs, ids[:, 0], confidence[:, 0], num_rows, keeps_all=self._draws)
                num_rows += len(seqs)
        return chains.proposal(chooser.origin)


Origin = Callable[[np.ndarray], dict[str, Any]]


class _Chains:
    """The drafts of each sequence so far."""

    def __init__(self, tails: Batch) -> None:
        self._tails = tails
        size = len(tails)
        self._drafts: list[list[int]] = [[] for _ in range(size)]
        self._confidence: list[list[float]] = [[] for _ in range(size)]
        self._rows: list[list[int]] = [[] for _ in range(size)]
        self._survival = np.ones(size)

    def tokens_after(self, ahead: int) -> Tensor:
        """Of each slot i of the tails the token i + ahead, committed or drafted (0: neither, in a
        slot that will be fed again).
        """
        found: list[int] = []
        ends = self._tails.node_base.tolist()
        for seq, start, end, drafts in zip(
            self._tails.seqs, self._tails.starts.tolist(), ends, self._drafts
        ):
            known = chain(seq.token_ids[start + ahead :], drafts, repeat(0))
            found += islice(known, end - start)
        return torch.tensor(found, dtype=torch.int32)

    def going(self, depth: int) -> np.ndarray:
        """[B] bool: has a draft at every depth before, and may have one at this."""
        lengths = np.array([len(d) for d in self._drafts])
        return (lengths == depth) & (self._tails.draft_limits[:, 0] > depth)

    def add(
        self,
        seqs: np.ndarray,
        ids: np.ndarray,
        confidence: np.ndarray,
        first_row: int,
        keeps_all: bool,
    ) -> None:
        """One candidate for each of these sequences; one that hardly survives ends its chain,
        unless all that are drawn count.
        """
        for i, b in enumerate(seqs.tolist()):
            self._survival[b] *= min(float(confidence[i]), 1.0)
            if ids[i] >= 0 and (keeps_all or self._survival[b] >= MIN_SURVIVAL):
                self._drafts[b].append(int(ids[i]))
                self._confidence[b].append(float(confidence[i]))
                self._rows[b].append(first_row + i)

    def proposal(self, origin: Origin) -> Proposal:
        proposal = Proposal.chains(self._drafts, self._confidence)
        rows = np.full(proposal.tokens.shape, -1, np.int32)
        for b, own in enumerate(self._rows):
            rows[b, : len(own)] = own
        return replace(proposal, **origin(rows)) if proposal.num_nodes else proposal
