"""A prompt that was admitted, and the sequences that answer it."""

from __future__ import annotations

from dataclasses import dataclass

from specfast.outputs import RequestOutput, completion_of
from specfast.request_metrics import RequestMetrics
from specfast.sequence import Sequence


@dataclass(frozen=True)
class Request:
    """A prompt and the sequences that answer it, one a choice."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    seqs: tuple[Sequence, ...]
    metrics: RequestMetrics
    lossless: bool
    synthetic: bool

    @property
    def finished(self) -> bool:
        return all(s.finish for s in self.seqs)

    def output(self) -> RequestOutput:
        choices = [completion_of(seq, index) for index, seq in enumerate(self.seqs)]
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            choices,
            self.finished,
            self.metrics,
            self.lossless,
            self.synthetic,
        )
