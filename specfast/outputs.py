"""What comes out: of a step for one sequence, and of a request for its user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specfast.sequence import Finish, Sequence

if TYPE_CHECKING:
    from specfast.request_metrics import RequestMetrics


@dataclass(frozen=True)
class StepOutput:
    """What one sequence got from one step, after the cut at a stop.

    token_ids: new tokens, the first num_accepted of them drafts; num_draft_tokens: drafts verified;
    draft_depth: of their longest path; planned_depth: how deep it might have drafted.
    """

    seq: Sequence
    token_ids: tuple[int, ...]
    num_draft_tokens: int
    draft_depth: int
    num_accepted: int
    finish: Finish | None
    planned_depth: int = 0

    @property
    def is_gated(self) -> bool:
        """Nothing was planned for it, though it takes drafts and had more than one token to go."""
        had_room = len(self.token_ids) + self.seq.num_remaining_tokens > 1
        return not self.planned_depth and had_room and self.seq.params.speculation.enabled


@dataclass(frozen=True)
class CompletionOutput:
    """One choice. accepted[i]: token i came from a draft; finish_reason: "stop", "length", "abort",
    "error" or None while it runs; stop_reason: the stop id or string, or an error's message.
    """

    index: int
    text: str
    token_ids: list[int]
    accepted: list[bool]
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class RequestOutput:
    """All choices of one request so far; prompt is None where token ids were given. lossless False:
    the drafts were judged by a lossy rule, so the answer does not follow the model's law.
    synthetic: by decree, so the text is invalid.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    lossless: bool = True
    synthetic: bool = False


def completion_of(seq: Sequence, index: int) -> CompletionOutput:
    """The choice as it stands; while it runs, less the text that a stop string may take back."""
    return CompletionOutput(
        index=index,
        text=seq.settled_text,
        token_ids=seq.output_token_ids,
        accepted=list(seq.accepted),
        finish_reason=seq.finish.reason if seq.finish else None,
        stop_reason=seq.finish.detail if seq.finish else None,
    )
