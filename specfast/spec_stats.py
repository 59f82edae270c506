"""What speculation did, as values: counted after the cut at a stop, of an engine, a request, a
workload label or a proposer.

acceptance_rate = accepted / drafted (of a tree: / its depth); acceptance_length = emitted tokens
per verify step, the bonus included; positions are depths, 0 first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class SpecStats:
    """Counters since the start; the difference of two is what happened between them.

    num_plain_steps: steps of a sequence without drafts; num_gated_steps: of those, where it might
    have drafted and the engine planned nothing. num_drafts: verify steps, those of a sequence that
    had drafts; num_drafted_emitted_tokens: emitted by those; num_draft_positions: depths drafted,
    in a chain as many as drafts; num_refusals: verify steps in which the target said another token
    than the longest path of drafts; num_rollbacks: verify steps that dropped a draft, in a tree
    nearly all. num_accepted_per_pos[i]: verify steps that accepted a draft at depth i;
    num_drafts_per_depth[i]: verify steps whose longest path had i + 1 drafts.
    """

    num_steps: int = 0
    num_emitted_tokens: int = 0
    num_plain_steps: int = 0
    num_gated_steps: int = 0
    num_drafts: int = 0
    num_drafted_emitted_tokens: int = 0
    num_draft_tokens: int = 0
    num_draft_positions: int = 0
    num_accepted_tokens: int = 0
    num_refusals: int = 0
    num_rollbacks: int = 0
    num_accepted_per_pos: tuple[int, ...] = ()
    num_drafts_per_depth: tuple[int, ...] = ()
    propose_seconds: float = 0.0
    step_seconds: float = 0.0

    def __add__(self, other: SpecStats) -> SpecStats:
        return self._combined(other, 1)

    def __sub__(self, earlier: SpecStats) -> SpecStats:
        return self._combined(earlier, -1)

    def _combined(self, other: SpecStats, sign: int) -> SpecStats:
        values: dict[str, Any] = {}
        for name in _FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, tuple):
                pairs = zip_longest(mine, theirs, fillvalue=0)
                values[name] = tuple(n + sign * m for n, m in pairs)
            else:
                values[name] = mine + sign * theirs
        return SpecStats(**values)

    @property
    def acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_draft_positions)

    @property
    def acceptance_length(self) -> float:
        """Emitted per verify step."""
        return _ratio(self.num_drafted_emitted_tokens, self.num_drafts)

    @property
    def acceptance_per_pos(self) -> tuple[float, ...]:
        """Accepted there / verify steps: unconditional."""
        return tuple(_ratio(n, self.num_drafts) for n in self.num_accepted_per_pos)

    @property
    def conditional_acceptance_per_pos(self) -> tuple[float, ...]:
        """Accepted there / accepted at the position before it. A step that drafted no further
        counts as one that refused.
        """
        before = (self.num_drafts, *self.num_accepted_per_pos)
        return tuple(_ratio(n, m) for n, m in zip(self.num_accepted_per_pos, before))

    @property
    def num_sequence_steps(self) -> int:
        """Steps of a sequence in which it could emit, with and without drafts."""
        return self.num_drafts + self.num_plain_steps

    @property
    def tokens_per_iteration(self) -> float:
        """Emitted per step of a sequence, with and without drafts."""
        return _ratio(self.num_emitted_tokens, self.num_sequence_steps)

    @property
    def k_chosen(self) -> tuple[int, ...]:
        """Steps of a sequence by the depth drafted, 0 first."""
        return (self.num_plain_steps, *self.num_drafts_per_depth)

    @property
    def gated_share(self) -> float:
        return _ratio(self.num_gated_steps, self.num_sequence_steps)

    @property
    def num_rolled_back_tokens(self) -> int:
        """Drafts verified for nothing: refused, on a side branch, or behind a stop."""
        return self.num_draft_tokens - self.num_accepted_tokens

    @property
    def draft_time_fraction(self) -> float:
        return _ratio(self.propose_seconds, self.step_seconds)


_FIELDS = tuple(f.name for f in fields(SpecStats))


@dataclass(frozen=True)
class SourceStats:
    """What one proposer drafted, of those that share an engine's trees.

    num_drafts: verify steps in which it had a node; num_draft_positions: depths of a tree at which
    it had one, summed. A step with nodes of two counts for both.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_draft_positions: int = 0
    num_accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_draft_positions)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
