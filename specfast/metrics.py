"""What happened, counted after the cut at a stop: in aggregate, by workload label, by proposer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seqs
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from specfast.intervals import Interval
from specfast.proposers.base import Proposal
from specfast.source_tally import Decided, SourceTally
from specfast.spec_stats import SourceStats, SpecStats
from specfast.tally import Tally

if TYPE_CHECKING:
    from specfast.outputs import StepOutput
    from specfast.sequence import Batch

MAX_LABELS = 32  # a label is a time series: what comes after them is counted together
NO_LABEL, OTHER_LABELS = "none", "other"


class Speedups(Protocol):
    """Speed with drafts over speed without, measured; None while too little was seen."""

    @property
    def effective_speedup(self) -> Interval | None: ...

    def speedup_at(self, batch_size: int) -> Interval | None: ...


class Calibration(Protocol):
    """How far the acceptance expected is from what is seen; None while nothing was expected."""

    @property
    def calibration_error(self) -> float | None: ...


class SpecMetrics:
    """Counts steps as they come; what it shows are frozen values.

    source_names: who drafts (Proposal.sources index them), none in an engine without speculation.
    speedups: set by whoever compares with plain decoding; calibration: by whoever expects drafts
    to be accepted.
    """

    def __init__(self, source_names: Seqs[str] = ()) -> None:
        self.source_names = tuple(source_names)
        self.speedups: Speedups | None = None
        self.calibration: Calibration | None = None
        self.reset()

    def reset(self) -> None:
        self._by_label: dict[str, Tally] = {}
        self._by_source = SourceTally(self.source_names)
        self._steps_by_batch_size: Counter[int] = Counter()
        self._num_steps = 0
        self._step_seconds = self._propose_seconds = 0.0
        self.last_seconds = 0.0, 0.0  # of a step, and of its proposal

    @property
    def stats(self) -> SpecStats:
        """Everything so far."""
        return replace(
            sum(self.by_label.values(), SpecStats()),
            num_steps=self._num_steps,
            step_seconds=self._step_seconds,
            propose_seconds=self._propose_seconds,
        )

    @property
    def by_label(self) -> dict[str, SpecStats]:
        """By SamplingParams.label, NO_LABEL without one; OTHER_LABELS: all after MAX_LABELS. Steps
        and their seconds belong to no label.
        """
        return {label: tally.stats() for label, tally in list(self._by_label.items())}

    @property
    def by_source(self) -> dict[str, SourceStats]:
        """By who drafted."""
        return self._by_source.stats()

    @property
    def p50_batch_size(self) -> int:
        """The median number of sequences that a step decodes; 0 before any did."""
        sizes = sorted(self._steps_by_batch_size.items())
        left = (sum(count for _, count in sizes) + 1) // 2
        for size, count in sizes:
            left -= count
            if left <= 0:
                return size
        return 0

    @property
    def effective_speedup(self) -> Interval | None:
        """Measured against plain decoding, never computed from acceptance."""
        return self.speedups.effective_speedup if self.speedups else None

    @property
    def calibration_error(self) -> float | None:
        """0 to 1: of the survival that drafts are chosen by, the worst proposer's."""
        return self.calibration.calibration_error if self.calibration else None

    @contextmanager
    def timing_step(self) -> Iterator[None]:
        start, proposed = time.perf_counter(), self._propose_seconds
        yield
        seconds = time.perf_counter() - start
        self._num_steps += 1
        self._step_seconds += seconds
        self.last_seconds = seconds, self._propose_seconds - proposed

    @contextmanager
    def timing_proposal(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._propose_seconds += time.perf_counter() - start

    def observe(
        self, batch: Batch, proposal: Proposal, result: Decided, outputs: Seqs[StepOutput]
    ) -> None:
        """Counts what users really got from one step."""
        for output in outputs:
            self._tally(output.seq.params.label).add(output)
        if proposal.num_nodes:
            self._by_source.add(batch, proposal, result, outputs)
        if num_decoded := sum(bool(o.token_ids) for o in outputs):
            self._steps_by_batch_size[num_decoded] += 1

    def _tally(self, label: str | None) -> Tally:
        label = label or NO_LABEL
        if (found := self._by_label.get(label)) is not None:
            return found
        known = len(self._by_label.keys() - {NO_LABEL, OTHER_LABELS})
        if label != NO_LABEL and known >= MAX_LABELS:
            label = OTHER_LABELS
        return self._by_label.setdefault(label, Tally(bool(self.source_names)))
