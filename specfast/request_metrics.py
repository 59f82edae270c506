"""One request's times and counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specfast.sequence import KVUse
from specfast.spec_record import SpeculativeDecodingRecord
from specfast.spec_stats import SpecStats
from specfast.tally import Tally

if TYPE_CHECKING:
    from specfast.outputs import StepOutput


@dataclass
class RequestMetrics:
    """One request's record; times are seconds of the monotonic clock, one a token in the order in
    which they came, all choices together.

    num_spec_tokens: the engine's number of drafts, 0 without speculation. arm: "plain" or
    "speculative" in a live A/B. kv_uses: its sequences', one a choice. step_seconds and
    propose_seconds: of the steps in which it got something, which it may have shared.
    """

    num_choices: int = 1
    num_spec_tokens: int = 0
    arm: str | None = None
    kv_uses: tuple[KVUse, ...] = ()
    arrival_time: float = field(default_factory=time.perf_counter)
    finish_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    step_seconds: float = 0.0
    propose_seconds: float = 0.0
    _drafted: list[int] = field(default_factory=list)  # a verify step each: the longest path
    _accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tally = Tally(self.num_spec_tokens > 0)

    def observe(
        self, output: StepOutput, now: float, step_seconds: float = 0, propose_seconds: float = 0
    ) -> None:
        """Counts one step of one of the request's sequences."""
        self.token_times.extend([now] * len(output.token_ids))
        self.step_seconds += step_seconds
        self.propose_seconds += propose_seconds
        self._tally.add(output)
        if output.num_draft_tokens:
            self._drafted.append(output.draft_depth)
            self._accepted.append(output.num_accepted)

    @property
    def stats(self) -> SpecStats:
        """As an engine's, of this request alone."""
        return replace(
            self._tally.stats(),
            step_seconds=self.step_seconds,
            propose_seconds=self.propose_seconds,
        )

    @property
    def num_prefix_query_tokens(self) -> int:
        """Tokens looked up in the prefix cache: of each choice, and anew after a preemption."""
        return sum(use.num_prefix_query_tokens for use in self.kv_uses)

    @property
    def num_prefix_hit_tokens(self) -> int:
        """Of those, found there and not computed."""
        return sum(use.num_prefix_hit_tokens for use in self.kv_uses)

    @property
    def max_kv_blocks(self) -> int:
        """The most KV blocks that each choice held in a step, drafts included, summed: a block
        that choices share counts for each.
        """
        return sum(use.max_blocks for use in self.kv_uses)

    @property
    def first_token_time(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    @property
    def num_drafts(self) -> int:
        return len(self._drafted)

    @property
    def num_draft_tokens(self) -> int:
        return self.stats.num_draft_tokens

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self._accepted)

    @property
    def speculative_decoding(self) -> SpeculativeDecodingRecord | None:
        """The record in vLLM's shape; as there, None for n > 1 and without speculation."""
        if self.num_choices > 1 or not self.num_spec_tokens:
            return None
        steps = tuple(self._drafted), tuple(self._accepted)
        return SpeculativeDecodingRecord(self.num_spec_tokens, *steps)
