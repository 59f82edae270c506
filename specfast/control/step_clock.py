"""When a step began, and when its drafting was over."""

from __future__ import annotations

import time

DECAY = 0.9  # of the time that planning takes without drafts


class StepClock:
    """Seconds of one step after the other; what passes before the target without any drafts is the
    target's own.
    """

    def __init__(self) -> None:
        self._started_at = self._drafted_at = 0.0
        self._planning = 0.0

    def start(self) -> None:
        self._started_at = self._drafted_at = time.perf_counter()

    def drafted(self) -> None:
        """The proposal is there, or nobody was asked."""
        self._drafted_at = time.perf_counter()

    @property
    def drafting(self) -> float:
        """Seconds that the proposal took."""
        return max(0.0, self._drafted_at - self._started_at - self._planning)

    def stop(self, was_drafting: bool) -> tuple[float, float]:
        """-> seconds of the step, and of its drafting."""
        seconds = time.perf_counter() - self._started_at
        if was_drafting:
            return seconds, self.drafting
        before = self._drafted_at - self._started_at
        self._planning += (1 - DECAY) * (before - self._planning)
        return seconds, 0.0
