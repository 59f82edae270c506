"""Retrieval and a drafter together: what is cheap first, what is better where it pays, grafted.

Retrieval drafts at no cost. The drafter is asked where it promises more tokens for the time, its
own included, than what retrieval found. Where it is asked, retrieval goes on behind the drafter's
likeliest path and fills what room is left with its own tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from specfast.kv_cache import KVCache
from specfast.models.loader import kind_of
from specfast.proposers.base import MIN_SURVIVAL, Proposal
from specfast.proposers.draft_model import DraftModelProposer
from specfast.proposers.draft_tree import (
    DraftTree,
    expected,
    graft,
    likeliest_leaf,
    likely,
    num_foretold,
)
from specfast.proposers.registry import proposer_class
from specfast.proposers.suffix import SuffixProposer
from specfast.proposers.track_record import Average, CostClock, Promises, Watchdog
from specfast.speculative_config import SpeculativeConfig
from specfast.validation import require

if TYPE_CHECKING:
    from specfast.models.runner import Forward
    from specfast.proposers.target import ModelProposer, Target
    from specfast.sequence import Batch, Sequence
    from specfast.verifier import VerifyResult

DRAFTER, RETRIEVAL = 0, 1  # source_names
PRIOR_ACCEPTED, PRIOR_COST = 1.0, 0.3  # of the drafter, before anything was seen


class HybridProposer:
    """Suffix retrieval with a model or a head that drafts, or with Token Recycling where none is
    given.
    """

    options: ClassVar[frozenset[str]] = SuffixProposer.options | DraftModelProposer.options

    def __init__(self, config: SpeculativeConfig, target: Target) -> None:
        require(
            config.verification == "match",
            "The method 'hybrid' grafts trees of two sources; it takes verification 'match' only.",
        )
        self._retrieval = SuffixProposer(config, target)
        method = kind_of(config.model) if config.model else "recycle"
        self._drafter = proposer_class(method)(config, target)
        self.source_names = (method, "suffix")
        self.needs = self._drafter.needs
        self._forget()

    def attach(self, cache: KVCache) -> None:
        cast("ModelProposer", self._drafter).attach(cache)

    def propose(self, batch: Batch) -> Proposal:
        """One tree a sequence, within its limits."""
        retrieved = self._retrieval.propose(batch).to_trees()
        asks = [self._asks_drafter(s, tree) for s, tree in zip(batch.seqs, retrieved)]
        drafted = self._ask_drafter(batch, np.array(asks, bool))
        trees = []
        for seq, (depth, nodes), own, found in zip(
            batch.seqs, batch.draft_limits.tolist(), drafted, retrieved
        ):
            self._asked[seq.seq_id] = found, own
            trees.append(self._grafted(seq, own, found, depth, nodes))
        self._clock.proposed()
        return Proposal.trees(trees)

    def observe(
        self, batch: Batch, proposal: Proposal, forward: Forward, result: VerifyResult
    ) -> None:
        """Scores both sources by what the target said, whoever's nodes were verified."""
        self._clock.observed()
        for row, seq in enumerate(batch.seqs):
            if (trees := self._asked.pop(seq.seq_id, None)) is None:
                continue
            said = [token for token, _ in result.decided(row, proposal)]
            found, own = trees
            self._found.add(expected(found), num_foretold(found, said))
            if own.tokens:
                self._score_drafter(seq, num_foretold(own, said))
        self._drafter.observe(batch, proposal, forward, result)
        self._retrieval.observe(batch, proposal, forward, result)

    def release(self, seq: Sequence) -> None:
        self._asked.pop(seq.seq_id, None)
        self._watchdogs.pop(seq.seq_id, None)
        self._retrieval.release(seq)
        self._drafter.release(seq)

    def reset(self) -> None:
        self._retrieval.reset()
        self._drafter.reset()
        self._forget()

    def _forget(self) -> None:
        self._asked: dict[int, tuple[DraftTree, DraftTree]] = {}
        self._watchdogs: dict[int, Watchdog] = {}
        self._found = Promises()
        self._drafted = Average(PRIOR_ACCEPTED)
        self._clock = CostClock(PRIOR_COST)

    def _asks_drafter(self, seq: Sequence, found: DraftTree) -> bool:
        """Whether it would bring more tokens for the time than what was found."""
        if not self._watchdogs.setdefault(seq.seq_id, Watchdog()).is_awake():
            return False
        by_retrieval = 1 + self._found.kept_share * expected(found)
        return (1 + self._drafted.value) / (1 + self._clock.draft_cost) > by_retrieval

    def _ask_drafter(self, batch: Batch, asks: np.ndarray) -> list[DraftTree]:
        limits = np.where(asks[:, None], batch.draft_limits, 0)
        if not (limits.any() or self.needs.takes_in(batch)):
            return [DraftTree() for _ in batch.seqs]
        with self._clock.drafting():
            return self._drafter.propose(replace(batch, draft_limits=limits)).to_trees()

    def _grafted(
        self, seq: Sequence, own: DraftTree, found: DraftTree, depth: int, nodes: int
    ) -> DraftTree:
        """The drafter's tree, what retrieval knows behind its likeliest leaf, what it found."""
        if not own.tokens:
            return replace(found, sources=[RETRIEVAL] * len(found))
        sources = [DRAFTER] * len(own)
        tree = DraftTree(list(own.tokens), list(own.parents), list(own.confidence), sources)
        leaf, path, reach = likeliest_leaf(own)
        if len(path) < depth and len(tree) < nodes:
            behind = self._retrieval.continuation(
                seq, depth - len(path), nodes - len(tree), behind=path
            )
            graft(
                tree,
                likely(behind, MIN_SURVIVAL / max(reach, MIN_SURVIVAL)),
                leaf,
                nodes,
                RETRIEVAL,
            )
        graft(tree, found, -1, nodes, RETRIEVAL)
        return tree

    def _score_drafter(self, seq: Sequence, num_accepted: int) -> None:
        self._drafted.add(num_accepted)
        if watchdog := self._watchdogs.get(seq.seq_id):
            watchdog.saw(num_accepted)
