"""Suffix decoding: drafts what followed the text's end before, the more frequent the sooner.

Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
2024 (arXiv 2411.04975). The estimate is our own: matches of all lengths count, longer ones more.
"""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from typing import TYPE_CHECKING, ClassVar

from specfast._host import SuffixDrafter, SuffixTree
from specfast.proposers.base import MIN_SURVIVAL, Needs, Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from specfast.proposers.target import Target
    from specfast.sequence import Batch, Sequence

MAX_TREE_DEPTH = 24  # at least, where not set: so that a match may have MIN_LONGEST_MATCH tokens
MIN_LONGEST_MATCH = 16

MAX_TEXT_BYTES = 2**26
MAX_POOL_BYTES = 2**28


def text_doubt(num_matched: int) -> float:
    """How far to doubt a match of so many tokens in the sequence's own text.

    One occurrence is expected to go on as before with probability 1 / (1 + doubt). Fitted, as
    pool_doubt, on 135 answers of the demo model to training prompts.
    """
    return 4.0 / num_matched**1.5


def pool_doubt(num_matched: int) -> float:
    """The same in the pool: others' answers tell less."""
    return 12.0 / num_matched


class SuffixProposer:
    """Drafts a tree from counts of what followed the longest matches of the text's end.

    Each sequence has a suffix tree over its prompt and output. With a pool
    (suffix_decoding_max_cached_requests > 0) there is one more, over the outputs of the requests
    that finished last: users of one engine then see, by its speed alone, what others were told, so
    it is off unless asked for.

    A tree holds committed tokens only, so that nothing has to be undone when drafts are rejected.
    It keeps the newest tokens where the text outgrows MAX_TEXT_BYTES.
    """

    needs: ClassVar[Needs] = Needs()
    options: ClassVar[frozenset[str]] = frozenset(
        {
            "max_tree_nodes",
            "suffix_decoding_max_tree_depth",
            "suffix_decoding_max_cached_requests",
            "suffix_decoding_min_token_prob",
        }
    )

    def __init__(self, config: SpeculativeConfig, target: Target) -> None:
        deepest = max(MAX_TREE_DEPTH, config.num_speculative_tokens + MIN_LONGEST_MATCH)
        self._max_depth = config.suffix_decoding_max_tree_depth or deepest
        self._max_cached = config.suffix_decoding_max_cached_requests or 0
        floor = config.suffix_decoding_min_token_prob
        lengths = [1, *range(1, self._max_depth)]  # of no match at all there is no estimate
        self._drafter = SuffixDrafter(
            [text_doubt(n) for n in lengths],
            [pool_doubt(n) for n in lengths],
            MIN_SURVIVAL if floor is None else floor,
            config.is_coupled,
        )
        self.reset()

    def propose(self, batch: Batch) -> Proposal:
        """One tree a sequence, within its limits; empty where nothing matches."""
        return Proposal.trees(
            [
                self.continuation(seq, *limit)
                for seq, limit in zip(batch.seqs, batch.draft_limits.tolist())
            ]
        )

    def continuation(
        self, seq: Sequence, depth: int, nodes: int, behind: Seqs[int] = ()
    ) -> DraftTree:
        """What followed the sequence's end, or the drafts `behind` it, within these limits."""
        if depth == 0:
            return DraftTree()
        text, law = self._synced(seq), (seq.params.temperature, seq.seed)
        return DraftTree(*self._drafter.draft(text, self._pool, depth, nodes, *law, behind))

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """Nothing to record: the sequence's tokens say it all."""

    def release(self, seq: Sequence) -> None:
        """Forgets a sequence; what it said goes to the pool, if it came to a proper end."""
        self._texts.pop(seq.seq_id, None)
        if self._pool is None or not seq.finish or seq.finish.reason not in ("stop", "length"):
            return
        # The prompt's end tells how an answer begins.
        self._pool.append(seq.token_ids[max(0, seq.num_prompt_tokens - self._max_depth) :])
        self._pool.end_document()
        if self._pool.num_documents > self._max_cached:
            self._pool.drop_document()

    def reset(self) -> None:
        self._texts: dict[int, SuffixTree] = {}
        self._pool = SuffixTree(self._max_depth, MAX_POOL_BYTES) if self._max_cached else None

    def _synced(self, seq: Sequence) -> SuffixTree:
        """The sequence's tree, brought to its committed tokens; only new ones are copied."""
        text = self._texts.get(seq.seq_id)
        if text is None or text.num_appended > len(seq.token_ids):
            text = self._texts[seq.seq_id] = SuffixTree(self._max_depth, MAX_TEXT_BYTES)
        if text.num_appended < len(seq.token_ids):
            text.append(seq.token_ids[text.num_appended :])
        return text
