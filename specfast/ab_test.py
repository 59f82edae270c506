"""Live A/B: a share of the requests is served without drafts, so that speculation's worth is known.

Two arms, by a hash of the request's id: "plain" and "speculative". They are compared at the same
batch size, by the seconds that a sequence waits for a token in steps that only decode.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from specfast.intervals import Interval, interval, resampled_totals
from specfast.outputs import StepOutput
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence

PLAIN, SPECULATIVE = "plain", "speculative"
WINDOW = 1000  # finished requests an arm that are remembered
MIN_REQUESTS = 20  # an arm and batch size: with fewer, an interval would promise too much
WITHHOLD_EVERY = 13  # a prime, so as not to beat with blocks of tokens
NUM_BUCKETS = 20
Plan = Callable[[Seqs[Sequence]], np.ndarray]


def hashed(request_id: str) -> float:
    """[0, 1): the same in every process."""
    digest = blake2b(request_id.encode(errors="backslashreplace"), digest_size=8, person=b"ab")
    return int.from_bytes(digest.digest(), "big") / 2**64


def bucket_of(batch_size: int) -> int:
    """0 for 1, 1 for 2, 2 for 3-4, 3 for 5-8 ..."""
    return min((batch_size - 1).bit_length(), NUM_BUCKETS - 1)


def bucket_name(bucket: int) -> str:
    first, last = 2**bucket // 2 + 1, 2**bucket
    return f"{first}-{last}" if last > 2 else str(last)


@dataclass
class _Record:
    """What one request waited for: seconds and tokens, [2, NUM_BUCKETS]."""

    arm: str
    num_open: int  # choices that have not ended
    totals: np.ndarray = field(default_factory=lambda: np.zeros((2, NUM_BUCKETS)))


@dataclass(frozen=True)
class Speedups:
    """How many times as long the speculative arm's tokens would have taken plainly, at the same
    batch sizes: overall, and a batch size each ("1", "2", "3-4", ...).
    """

    overall: Interval
    by_batch_size: dict[str, Interval]


class AbTest:
    """Assigns requests to arms, and stands between the scheduler and the budget's plan.

    In a mixed batch a plain request rides in steps that others' drafts made longer, and would
    flatter speculation. So it counts only steps in which nobody had drafts; and with a plain
    request in the batch every 13th step is such a one: drafts are withheld from all. Speculative
    requests count all steps but these.

    An arm's value is its total seconds over its total tokens: what throughput is made of. Means of
    requests' own values would be biased where times have long tails and requests are short, and let
    a request of ten tokens weigh as much as one of a thousand. Intervals resample requests: steps
    of one request are alike. The plain requests of one step waited the same time for one token
    each: one of them counts it.
    """

    def __init__(self, fraction: float, plan: Plan) -> None:
        self.fraction = fraction
        self.num_requests: Counter[str] = Counter()  # by arm, since the start
        self._plan = plan
        self._records: dict[int, _Record] = {}  # by the ids of sequences that run
        self._finished = {arm: deque[np.ndarray](maxlen=WINDOW) for arm in (PLAIN, SPECULATIVE)}
        self._num_finished = self._num_mixed = 0
        self._withheld = False  # from the step that runs
        self._known: tuple[int, float, Speedups | None] = (-1, 0.0, None)

    def assign(self, request_id: str, params: SamplingParams) -> tuple[str | None, SamplingParams]:
        """-> the arm, and the parameters to serve by. A request with its own word on speculation
        is in neither arm.
        """
        if not self.fraction or params.speculative is not None:
            return None, params
        if hashed(request_id) < self.fraction:
            return PLAIN, replace(params, speculative=False)
        return SPECULATIVE, params

    def add(self, arm: str | None, seqs: Seqs[Sequence]) -> None:
        """Follows a request of one of the arms."""
        if arm is not None:
            self.num_requests[arm] += 1
            self._records |= dict.fromkeys((s.seq_id for s in seqs), _Record(arm, len(seqs)))

    def plan(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """The budget's limits [B, 2]; now and then none, where a plain request rides along."""
        limits = self._plan(seqs)
        self._withheld = False
        if self._records and limits.any() and any(self._arm(s) == PLAIN for s in seqs):
            self._num_mixed += 1
            self._withheld = self._num_mixed % WITHHOLD_EVERY == 0
        return np.zeros_like(limits) if self._withheld else limits

    def observe(self, batch: Batch, outputs: Seqs[StepOutput], seconds: float) -> None:
        """Counts a step that took so long."""
        if not self._records:
            return
        if (batch.num_tokens == 1).all():  # a prompt's computation is nobody's wait for a token
            self._count(batch, outputs, seconds)
        for output in outputs:
            if output.finish:
                self._close(output.seq)

    @property
    def effective_speedup(self) -> Interval | None:
        """Speculation over plain decoding, the 95 % interval; None while too little is known."""
        speedups = self.speedups()
        return speedups.overall if speedups else None

    def speedup_at(self, batch_size: int) -> Interval | None:
        """The same at one batch size and those counted with it."""
        speedups = self.speedups()
        name = bucket_name(bucket_of(batch_size))
        return speedups.by_batch_size.get(name) if speedups else None

    def speedups(self, level: float = 0.95) -> Speedups | None:
        """Of the finished requests remembered; None where no batch size has MIN_REQUESTS an arm."""
        state = self._num_finished, level
        if self._known[:2] != state:
            plain, speculative = (list(self._finished[arm]) for arm in (PLAIN, SPECULATIVE))
            known = len(plain) and len(speculative)
            found = compared(np.array(plain), np.array(speculative), level) if known else None
            self._known = *state, found
        return self._known[2]

    def _arm(self, seq: Sequence) -> str | None:
        record = self._records.get(seq.seq_id)
        return record.arm if record else None

    def _count(self, batch: Batch, outputs: Seqs[StepOutput], seconds: float) -> None:
        bucket, counts_plain = bucket_of(len(batch)), not batch.draft_limits.any()
        for output in outputs:
            record = self._records.get(output.seq.seq_id)
            if record is None or not output.token_ids:
                continue
            if counts_plain if record.arm == PLAIN else not self._withheld:
                record.totals[:, bucket] += seconds, len(output.token_ids)
                counts_plain &= record.arm != PLAIN

    def _close(self, seq: Sequence) -> None:
        if record := self._records.pop(seq.seq_id, None):
            record.num_open -= 1
            if not record.num_open:
                self._finished[record.arm].append(record.totals)
                self._num_finished += 1


def compared(plain: np.ndarray, speculative: np.ndarray, level: float) -> Speedups | None:
    """Of the requests' totals [R, 2, NUM_BUCKETS] by arm, over the batch sizes that both know."""
    known = [(arm[:, 1] > 0).sum(axis=0) >= MIN_REQUESTS for arm in (plain, speculative)]
    buckets = np.flatnonzero(known[0] & known[1])
    if not len(buckets):
        return None
    arms = [arm[:, :, buckets] for arm in (plain, speculative)]
    spread = _speedups(*(resampled_totals(arm, seed) for seed, arm in enumerate(arms)))
    points = _speedups(*(arm.sum(axis=0) for arm in arms))
    found = [interval(float(points[i]), spread[:, i], level) for i in range(len(buckets) + 1)]
    return Speedups(found[-1], dict(zip(map(bucket_name, buckets.tolist()), found)))


def _speedups(plain: np.ndarray, speculative: np.ndarray) -> np.ndarray:
    """Totals [..., 2, buckets] by arm -> [..., buckets + 1]: each bucket's, then the overall."""
    seconds, tokens = speculative[..., 0, :], speculative[..., 1, :]
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may lack a bucket: NaN
        would_take = tokens * plain[..., 0, :] / plain[..., 1, :]
        overall = np.nansum(would_take, axis=-1) / seconds.sum(axis=-1)
        return np.concatenate([would_take / seconds, overall[..., None]], axis=-1)
