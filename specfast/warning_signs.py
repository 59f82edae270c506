"""What tells that speculation is sick or doesn't pay: each is logged once, with what to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specfast.intervals import Interval
from specfast.spec_stats import SourceStats, SpecStats

logger = logging.getLogger(__name__)

MIN_DRAFTS = 300  # verify steps before acceptance is judged
MIN_EXACT = 1000  # drafts before "none" or "all" is no accident
MIN_STEPS = 300  # engine steps before times are judged
LOW_ACCEPTANCE, HIGH_DRAFT_TIME, HIGH_CALIBRATION_ERROR = 0.4, 0.25, 0.15
RETRIEVAL = frozenset({"ngram", "suffix", "recycle"})  # may honestly be right every time


@dataclass(frozen=True)
class Evidence:
    """What the signs are read from; None where it isn't known yet.

    speedup: over all requests; speedup_at: by batch size, whichever were measured.
    """

    stats: SpecStats
    by_source: Mapping[str, SourceStats]
    speedup: Interval | None = None
    speedup_at: Mapping[int, Interval | None] = field(default_factory=dict)
    p50_batch_size: int = 0
    calibration_error: float | None = None

    def __str__(self) -> str:
        s, speedup = self.stats, self.speedup
        measured = f"{speedup.value:.2f}x plain decoding" if speedup else "speed-up not measured"
        return (
            f"acceptance rate {s.acceptance_rate:.2f} over {s.num_drafts:,} verify steps, drafting "
            f"{s.draft_time_fraction:.0%} of the time, {measured}"
        )


@dataclass(frozen=True)
class Sign:
    """advice: what it means and what to do."""

    name: str
    is_seen: Callable[[Evidence], bool]
    advice: str


def _low_acceptance(e: Evidence) -> bool:
    return e.stats.num_drafts >= MIN_DRAFTS and 0 < e.stats.acceptance_rate < LOW_ACCEPTANCE


def _draft_time(e: Evidence) -> bool:
    is_high = e.stats.num_steps >= MIN_STEPS and e.stats.draft_time_fraction > HIGH_DRAFT_TIME
    return is_high and _is_below(e.speedup, 1.2)


def _slow_alone(e: Evidence) -> bool:
    return _is_below(e.speedup_at.get(1), 1.1)


def _slow_at_p50(e: Evidence) -> bool:
    return e.p50_batch_size > 1 and _is_below(e.speedup_at.get(e.p50_batch_size), 1.0)


def _none_accepted(e: Evidence) -> bool:
    tried = [s for s in e.by_source.values() if s.num_draft_positions >= MIN_EXACT]
    return any(s.num_accepted_tokens == 0 for s in tried)


def _all_accepted(e: Evidence) -> bool:
    by_models = [s for name, s in e.by_source.items() if name not in RETRIEVAL]
    drafted = sum(s.num_draft_positions for s in by_models)
    return drafted >= MIN_EXACT and e.stats.num_refusals == 0


def _miscalibrated(e: Evidence) -> bool:
    is_high = e.calibration_error is not None and e.calibration_error > HIGH_CALIBRATION_ERROR
    return is_high and e.stats.num_draft_positions >= MIN_EXACT


def _is_below(speedup: Interval | None, limit: float) -> bool:
    """The whole interval is; one that isn't known (NaN) is not."""
    return speedup is not None and speedup.high < limit


SIGNS = (
    Sign(
        "low_acceptance",
        _low_acceptance,
        f"Under {LOW_ACCEPTANCE:.0%} of the drafts are accepted: lower num_speculative_tokens, or "
        "take a drafter that suits this target and workload.",
    ),
    Sign(
        "draft_time",
        _draft_time,
        f"Drafting takes over {HIGH_DRAFT_TIME:.0%} of the time and brings less than 1.2x: take a "
        "smaller drafter, or lower num_speculative_tokens.",
    ),
    Sign(
        "slow_at_batch_1",
        _slow_alone,
        "One sequence at a time gets less than 1.1x the speed without drafts, where they should "
        "help most: try another method or fewer drafts, or leave speculation off.",
    ),
    Sign(
        "slow_at_p50_batch_size",
        _slow_at_p50,
        "At the usual batch size drafts make decoding slower: set gate='auto', or "
        "gate={'max_batch_size': n} below it.",
    ),
    Sign(
        "none_accepted",
        _none_accepted,
        f"Not one of over {MIN_EXACT:,} drafts of a proposer was accepted: probably it was made "
        "for another target or tokenizer, or loads wrongly. Check 'model', or turn it off.",
    ),
    Sign(
        "all_accepted",
        _all_accepted,
        f"Every one of over {MIN_EXACT:,} drafts by a model was accepted, which no honest drafter "
        "achieves: a drafter that is the target itself, or a verifier that checks nothing. Run "
        "specfast certify.",
    ),
    Sign(
        "miscalibrated",
        _miscalibrated,
        f"The acceptance expected is off by over {HIGH_CALIBRATION_ERROR} on average, so that the "
        "number of drafts is chosen badly: set policy='simple' or 'fixed'.",
    ),
)


class WarningSigns:
    """seen: names of the signs that were logged, each once however often it is seen again.

    interval: seconds between looks.
    """

    def __init__(
        self, interval: float = 10.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seen: list[str] = []
        self.interval = interval
        self._clock = clock
        self._due = clock() + interval

    def tick(self, evidence: Callable[[bool], Evidence], is_idle: bool) -> None:
        """Call once a step; looks when it is time, and when there is no more work. evidence: told
        whether it is time, for what is too dear to know more often.
        """
        now = self._clock()
        is_due = now >= self._due
        if is_due:
            self._due = now + self.interval
        if is_due or is_idle:
            self.check(evidence(is_due))

    def check(self, evidence: Evidence) -> None:
        for sign in SIGNS:
            if sign.name not in self.seen and sign.is_seen(evidence):
                self.seen.append(sign.name)
                logger.warning("%s: %s (%s)", sign.name, sign.advice, evidence)
