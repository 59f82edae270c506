"""What happened, counted after the cut at a stop: in aggregate, and a record a request.

acceptance_rate = accepted / drafted (of a tree: / its depth); acceptance_length = emitted tokens
per verify step, the bonus included; positions are depths, 0 first, and their rates are
unconditional (accepted there / drafts).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seqs
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

from specfast.outputs import StepOutput


@dataclass(frozen=True)
class SpecStats:
    """Counters since the start; the difference of two is what happened between them.

    num_drafts: verify steps of a sequence that had drafts; num_accepted_per_pos[i]: of those, how
    many accepted a draft at depth i; num_draft_positions: depths drafted, in a chain as many as
    drafts; num_plain_steps: steps of a sequence without drafts; num_drafted_emitted_tokens: emitted
    by those with.
    """

    num_steps: int = 0
    num_emitted_tokens: int = 0
    num_plain_steps: int = 0
    num_drafts: int = 0
    num_drafted_emitted_tokens: int = 0
    num_draft_tokens: int = 0
    num_draft_positions: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_pos: tuple[int, ...] = ()
    propose_seconds: float = 0.0
    step_seconds: float = 0.0

    def __add__(self, other: SpecStats) -> SpecStats:
        return self._combined(other, 1)

    def __sub__(self, earlier: SpecStats) -> SpecStats:
        return self._combined(earlier, -1)

    def _combined(self, other: SpecStats, sign: int) -> SpecStats:
        values = {
            f.name: getattr(self, f.name) + sign * getattr(other, f.name)
            for f in fields(self)
            if f.name != "num_accepted_per_pos"
        }
        pairs = zip_longest(self.num_accepted_per_pos, other.num_accepted_per_pos, fillvalue=0)
        return SpecStats(**values, num_accepted_per_pos=tuple(n + sign * m for n, m in pairs))

    @property
    def acceptance_rate(self) -> float:
        positions = self.num_draft_positions
        return self.num_accepted_tokens / positions if positions else 0.0

    @property
    def acceptance_length(self) -> float:
        """Emitted per verify step that had drafts."""
        return self.num_drafted_emitted_tokens / self.num_drafts if self.num_drafts else 0.0

    @property
    def acceptance_per_pos(self) -> tuple[float, ...]:
        return tuple(n / max(self.num_drafts, 1) for n in self.num_accepted_per_pos)

    @property
    def tokens_per_iteration(self) -> float:
        """Emitted per step of a sequence, with and without drafts."""
        iterations = self.num_drafts + self.num_plain_steps
        return self.num_emitted_tokens / iterations if iterations else 0.0

    @property
    def draft_time_fraction(self) -> float:
        return self.propose_seconds / self.step_seconds if self.step_seconds else 0.0


class SpecMetrics:
    """Counts steps as they come; `stats` is a frozen value."""

    def __init__(self) -> None:
        self.stats = SpecStats()

    def reset(self) -> None:
        self.stats = SpecStats()

    @contextmanager
    def timing_step(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.stats = replace(
            self.stats,
            num_steps=self.stats.num_steps + 1,
            step_seconds=self.stats.step_seconds + seconds,
        )

    @contextmanager
    def timing_proposal(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.stats = replace(self.stats, propose_seconds=self.stats.propose_seconds + seconds)

    def observe(self, outputs: Seqs[StepOutput]) -> None:
        """Counts what users really got from one step."""
        drafted = [o for o in outputs if o.num_draft_tokens]
        per_pos = list(self.stats.num_accepted_per_pos)
        for output in drafted:
            per_pos.extend([0] * (output.num_accepted - len(per_pos)))
            for position in range(output.num_accepted):
                per_pos[position] += 1
        s = self.stats
        self.stats = replace(
            s,
            num_emitted_tokens=s.num_emitted_tokens + sum(len(o.token_ids) for o in outputs),
            num_plain_steps=s.num_plain_steps + len(outputs) - len(drafted),
            num_drafts=s.num_drafts + len(drafted),
            num_drafted_emitted_tokens=s.num_drafted_emitted_tokens
            + sum(len(o.token_ids) for o in drafted),
            num_draft_tokens=s.num_draft_tokens + sum(o.num_draft_tokens for o in drafted),
            num_draft_positions=s.num_draft_positions + sum(o.draft_depth for o in drafted),
            num_accepted_tokens=s.num_accepted_tokens + sum(o.num_accepted for o in drafted),
            num_accepted_per_pos=tuple(per_pos),
        )


@dataclass
class RequestMetrics:
    """One request's record; times are seconds of the monotonic clock, one a token in the order in
    which they came, all choices together. arm: "plain" or "speculative" in a live A/B.
    """

    arrival_time: float = field(default_factory=time.perf_counter)
    finish_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    arm: str | None = None

    @property
    def first_token_time(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    def observe(self, output: StepOutput, now: float) -> None:
        """Counts one step of one of the request's sequences."""
        self.token_times.extend([now] * len(output.token_ids))
        self.num_drafts += bool(output.num_draft_tokens)
        self.num_draft_tokens += output.num_draft_tokens
        self.num_accepted_tokens += output.num_accepted
