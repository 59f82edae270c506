"""What speculation did for one request: vLLM's names, and the identities that tools check.

Of a tree, drafted means the depth of its longest path: a step accepts one path from the root, so
never more than that, and the identities hold as for a chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class SpeculativeDecodingRecord:
    """One entry a verify step; steps without drafts are left out. num_spec_tokens: the engine's."""

    num_spec_tokens: int
    per_step_drafted: tuple[int, ...]
    per_step_accepted: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.per_step_drafted) == len(self.per_step_accepted)
        histogram = self.acceptance_histogram
        assert sum(histogram) == self.num_spec_steps
        assert sum(j * n for j, n in enumerate(histogram)) == self.num_accepted_draft_tokens
        assert self.num_accepted_draft_tokens <= self.num_draft_tokens
        assert len(histogram) == self.num_spec_tokens + 1

    @property
    def num_spec_steps(self) -> int:
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        return sum(self.per_step_accepted)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps: the bonus always counted, also where a stop cut it off."""
        return 1 + self.num_accepted_draft_tokens / max(self.num_spec_steps, 1)

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_draft_tokens / max(self.num_draft_tokens, 1)

    @cached_property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """[j]: steps that accepted j drafts."""
        return _histogram(self.per_step_accepted, self.num_spec_tokens)

    @property
    def acceptance_histogram_by_draft_length(self) -> dict[int, tuple[int, ...]]:
        """{k: [k + 1]}: the same, of the steps that drafted k."""
        steps = list(zip(self.per_step_drafted, self.per_step_accepted))
        lengths = sorted(set(self.per_step_drafted))
        return {k: _histogram((a for d, a in steps if d == k), k) for k in lengths}

    def to_dict(self, detailed: bool = False) -> dict[str, Any]:
        """As JSON has it in vLLM's responses; detailed adds the steps one by one."""
        by_length = self.acceptance_histogram_by_draft_length
        values: dict[str, Any] = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": list(self.acceptance_histogram),
            "acceptance_histogram_by_draft_length": {str(k): list(h) for k, h in by_length.items()},
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": self.num_spec_tokens,
        }
        if detailed:
            values["per_step_accepted"] = list(self.per_step_accepted)
            values["per_step_drafted"] = list(self.per_step_drafted)
        return values


def _histogram(values: Iterable[int], longest: int) -> tuple[int, ...]:
    counts = [0] * (longest + 1)
    for value in values:
        counts += [0] * (value + 1 - len(counts))
        counts[value] += 1
    return tuple(counts)
