"""The counting itself: a few additions a sequence and step; values are made when asked for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from specfast.spec_stats import SpecStats

if TYPE_CHECKING:
    from specfast.outputs import StepOutput


class Tally:
    """Adds up steps of sequences. outcomes[depth, accepted]: verify steps that ended so.

    speculates: the engine has someone who drafts, so that a step without a plan is a gated one.
    """

    def __init__(self, speculates: bool) -> None:
        self.outcomes: Counter[tuple[int, int]] = Counter()
        self._speculates = speculates
        self._num_emitted = self._num_drafted_emitted = self._num_plain = self._num_gated = 0
        self._num_draft_tokens = self._num_refusals = self._num_rollbacks = 0

    def add(self, output: StepOutput) -> None:
        """Counts one step of one sequence; a cancelled one had none."""
        if output.finish and output.finish.reason == "abort":
            return
        num_emitted, num_accepted = len(output.token_ids), output.num_accepted
        self._num_emitted += num_emitted
        if not output.num_draft_tokens:
            self._num_plain += 1
            self._num_gated += self._speculates and output.is_gated
            return
        self.outcomes[output.draft_depth, num_accepted] += 1
        self._num_drafted_emitted += num_emitted
        self._num_draft_tokens += output.num_draft_tokens
        self._num_refusals += num_accepted < min(output.draft_depth, num_emitted)
        self._num_rollbacks += num_accepted < output.num_draft_tokens

    def stats(self) -> SpecStats:
        outcomes = list(self.outcomes.items())
        deepest = max((depth for (depth, _), _ in outcomes), default=0)
        furthest = max((accepted for (_, accepted), _ in outcomes), default=0)
        per_depth, per_pos = [0] * deepest, [0] * furthest
        for (depth, accepted), count in outcomes:
            per_depth[depth - 1] += count
            for position in range(accepted):
                per_pos[position] += count
        return SpecStats(
            num_emitted_tokens=self._num_emitted,
            num_plain_steps=self._num_plain,
            num_gated_steps=self._num_gated,
            num_drafts=sum(per_depth),
            num_drafted_emitted_tokens=self._num_drafted_emitted,
            num_draft_tokens=self._num_draft_tokens,
            num_draft_positions=sum(depth * n for depth, n in enumerate(per_depth, 1)),
            num_accepted_tokens=sum(per_pos),
            num_refusals=self._num_refusals,
            num_rollbacks=self._num_rollbacks,
            num_accepted_per_pos=tuple(per_pos),
            num_drafts_per_depth=tuple(per_depth),
        )
