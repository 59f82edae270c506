"""Token Recycling: what the target found likely behind a token is drafted behind it again.

Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models
with Token Recycling", 2024 (arXiv 2408.08696). Here the tree isn't fixed: it grows by its likeliest
node first, and ends where a node would be reached too seldom to pay for its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from specfast._host import Adjacency
from specfast.proposers.base import MIN_SURVIVAL, Needs, Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from specfast.models.runner import Forward
    from specfast.proposers.target import Target
    from specfast.sequence import Batch, Sequence
    from specfast.verifier import VerifyResult

NUM_SUCCESSORS = 8


class RecycleProposer:
    """Drafts trees from one adjacency that all requests of the engine feed and use.

    A prompt enters it once, by its own pairs of tokens; after that every row that the target
    computes, those of rejected drafts included, replaces its token's successors.
    """

    needs: ClassVar[Needs] = Needs(top_k=NUM_SUCCESSORS)
    options: ClassVar[frozenset[str]] = frozenset({"max_tree_nodes"})

    def __init__(self, config: SpeculativeConfig, target: Target) -> None:
        self._adjacency = Adjacency(target.model.config.vocab_size, NUM_SUCCESSORS)
        self._known: set[int] = set()  # sequences whose prompt has entered
        self._is_coupled = config.is_coupled

    def propose(self, batch: Batch) -> Proposal:
        """One tree a sequence, within its limits."""
        trees = [self._draft(s, *limits) for s, limits in zip(batch.seqs, batch.draft_limits)]
        return Proposal.trees(trees)

    def observe(
        self, batch: Batch, proposal: Proposal, forward: Forward, result: VerifyResult
    ) -> None:
        """Takes the likeliest tokens of every row; rows on the accepted path come last and stay."""
        assert forward.top is not None
        tokens = _row_tokens(batch, proposal, forward)
        order = np.argsort(_is_committed(forward, result), kind="stable")
        self._adjacency.replace(
            tokens[order], forward.top.token_ids.numpy()[order], forward.top.logits.numpy()[order]
        )

    def release(self, seq: Sequence) -> None:
        self._known.discard(seq.seq_id)

    def reset(self) -> None:
        self._adjacency.clear()
        self._known.clear()

    def _draft(self, seq: Sequence, depth: int, nodes: int) -> DraftTree:
        if nodes == 0:
            return DraftTree()
        if seq.seq_id not in self._known:
            self._known.add(seq.seq_id)
            self._adjacency.follow(seq.token_ids[: seq.num_prompt_tokens])
        position = len(seq.token_ids)
        return DraftTree(
            *self._adjacency.draft(
                seq.token_ids[-1], depth, nodes, MIN_SURVIVAL,
                seq.params.temperature, seq.seed, position, self._is_coupled,
            )
        )  # fmt: skip


def _row_tokens(batch: Batch, proposal: Proposal, forward: Forward) -> np.ndarray:
    """The token that each logit row was computed for [R]: a sequence's last one, or a draft."""
    tokens = np.empty(len(forward.row_seq), np.int32)
    positions, drafts = forward.decided_positions.numpy(), proposal.tokens.numpy()
    for b, (base, count) in enumerate(zip(forward.row_base.tolist(), proposal.lengths.tolist())):
        if base >= 0:
            tokens[base] = batch.seqs[b].token_ids[positions[base] - 1]
            tokens[base + 1 : base + 1 + count] = drafts[b, :count]
    return tokens


def _is_committed(forward: Forward, result: VerifyResult) -> np.ndarray:
    """[R] bool: the row stands behind the last token or an accepted draft."""
    committed = np.zeros(len(forward.row_seq), bool)
    paths, counts = result.path.numpy(), result.num_accepted.tolist()
    for b, base in enumerate(forward.row_base.tolist()):
        if base >= 0:
            committed[base] = True
            committed[base + 1 + paths[b, : counts[b]]] = True
    return committed
