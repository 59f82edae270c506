"""A line now and then on what speculation does, in the words that people grep vLLM's log for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from specfast.spec_stats import SpecStats

logger = logging.getLogger(__name__)

LINE = (
    "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f tokens/s, "
    "Drafted throughput: %.2f tokens/s, Accepted: %d tokens, Drafted: %d tokens, "
    "Per-position acceptance rate: %s, Avg Draft acceptance rate: %.1f%%"
)


class StatsLog:
    """Logs what happened since its last line, if anything was drafted.

    interval: seconds between lines. A pause longer than that counts in no throughput.
    """

    def __init__(
        self, interval: float = 10.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.interval = interval
        self._clock = clock
        self._start = self._last_tick = clock()
        self._logged = SpecStats()

    def tick(self, stats: Callable[[], SpecStats]) -> None:
        """Call once a step; stats is asked for only when a line is due."""
        now = self._clock()
        if now - self._last_tick > self.interval:
            self._start += now - self._last_tick
        self._last_tick = now
        if now - self._start < self.interval:
            return
        current = stats()
        self._log(current - self._logged, now - self._start)
        self._start, self._logged = now, current

    def _log(self, window: SpecStats, seconds: float) -> None:
        if window.num_drafts <= 0:  # nothing drafted, or counted anew since
            return
        accepted, drafted = window.num_accepted_tokens, window.num_draft_positions
        logger.info(
            LINE,
            1 + accepted / window.num_drafts,
            accepted / seconds,
            drafted / seconds,
            accepted,
            drafted,
            ", ".join(f"{rate:.3f}" for rate in window.acceptance_per_pos),
            100 * window.acceptance_rate,
        )
