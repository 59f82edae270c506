"""A gate for each size of batch: what pays for one sequence seldom pays for a hundred."""

from __future__ import annotations

from collections.abc import Sequence as Seqs

from specfast.control.gate import Gate, StepSpeed
from specfast.sequence import Sequence

PATIENCE = 4  # of the gate of one sequence


class BatchGates:
    """Batch sizes share a gate up to a power of two. One starts open where a full step of drafts
    stays within max_rows, the rows that cost next to nothing; the others have to prove themselves.
    """

    def __init__(self, rows_a_sequence: int, max_rows: float) -> None:
        self._rows_a_sequence, self._max_rows = rows_a_sequence, max_rows
        self._gates: dict[int, Gate] = {}
        self._refused: dict[int, set[int]] = {}  # ids of the sequences for which a gate closed
        self._current = self._gate(1)

    def let_draft(self, seqs: Seqs[Sequence]) -> bool:
        """Whether a step of these sequences drafts."""
        bucket = bucket_of(len(seqs))
        self._current = gate = self._gate(bucket)
        if not gate.is_open:
            ids = {s.seq_id for s in seqs}
            refused = self._refused.setdefault(bucket, ids)
            if 2 * len(ids & refused) < len(ids):
                self._refused[bucket] = ids
                gate.renew()
        return gate.lets_draft()

    def saw(self, step: StepSpeed) -> None:
        """What the step came to that was let draft."""
        was_open = self._current.is_open
        self._current.saw(step)
        if was_open and not self._current.is_open:
            self._refused.pop(bucket_of(step.num_plain), None)

    @property
    def is_settled(self) -> bool:
        """Whether the gate in use is."""
        return self._current.is_settled

    @property
    def num_switches(self) -> int:
        return sum(gate.num_switches for gate in self._gates.values())

    @property
    def states(self) -> dict[int, bool]:
        """Largest batch size of a bucket that was seen -> whether it drafts."""
        return {bucket: gate.is_open for bucket, gate in sorted(self._gates.items())}

    def _gate(self, bucket: int) -> Gate:
        if bucket not in self._gates:
            is_open = bucket * self._rows_a_sequence <= self._max_rows
            self._gates[bucket] = Gate(is_open, max(1, PATIENCE // bucket))
        return self._gates[bucket]


def bucket_of(batch_size: int) -> int:
    """The power of two that a batch size goes up to."""
    return 1 << (max(batch_size, 1) - 1).bit_length()
