"""Whether drafting pays at all, by measured time: open, closed, or on probation."""

from __future__ import annotations

from dataclasses import dataclass

DECAY = 0.96  # of what was seen, a step
CLOSE_BELOW, OPEN_ABOVE = 0.98, 1.0  # of plain decoding's speed
EVIDENCE = 16  # steps since it opened, before it may close
PROBATION = 8  # steps of drafting that decide whether it opens
FIRST_REST, MAX_REST = 16, 512  # steps between probes, doubled by each that fails
SETTLED = 64  # open steps after which it is looked at now and then
HEALTHY = 256  # open steps seen after which failures are forgotten


@dataclass(frozen=True)
class StepSpeed:
    """A step with drafts: tokens it emitted, seconds it took, and those of the same step without
    drafts, which emits num_plain tokens.
    """

    num_emitted: int
    seconds: float
    num_plain: int
    plain_seconds: float


class Gate:
    """Closes where drafting was slower than plain decoding, and probes its way back.

    It opens only after a probation, stays open for EVIDENCE steps at least, and rests twice as long
    after each failure: in n steps it opens at most 6 + n / MAX_REST times but for healthy spells.

    patience: times as many steps count and are judged by, where a step of few sequences says little
    and drafts pay in bursts.
    """

    def __init__(self, is_open: bool, patience: int = 1) -> None:
        self.is_open = is_open
        self._evidence, self._probation = patience * EVIDENCE, patience * PROBATION
        self._decay = 1 - (1 - DECAY) / patience
        self.num_switches = 0
        self._rest = FIRST_REST // 2
        self._countdown = 0 if is_open else self._rest
        self._steps = 0
        self._emitted = self._seconds = self._plain = self._plain_seconds = 0.0

    @property
    def is_settled(self) -> bool:
        """Open for so long that a look now and then will do."""
        return self.is_open and self._steps >= SETTLED

    def lets_draft(self) -> bool:
        """Whether this step drafts; a step of rest passes otherwise."""
        if self.is_open or self._countdown == 0:
            return True
        self._countdown -= 1
        return False

    def saw(self, step: StepSpeed) -> None:
        """A step that drafted."""
        self._steps += 1
        self._emitted = self._decay * self._emitted + step.num_emitted
        self._seconds = self._decay * self._seconds + step.seconds
        self._plain = self._decay * self._plain + step.num_plain
        self._plain_seconds = self._decay * self._plain_seconds + step.plain_seconds
        if self.is_open:
            self._reconsider()
        elif self._steps >= self._probation:
            self._judge()

    def renew(self) -> None:
        """Most of what is decoded is new: the more has failed, the less that promises."""
        self._countdown = min(self._countdown, max(self._rest // 8, self._probation))

    @property
    def speedup(self) -> float:
        """Of drafting, over the steps that still count; 1 before there are any."""
        if not self._seconds or not self._plain:
            return 1.0
        return (self._emitted / self._seconds) * (self._plain_seconds / self._plain)

    def _reconsider(self) -> None:
        if self._steps >= HEALTHY:
            self._rest = FIRST_REST // 2
        if self._steps >= self._evidence and self.speedup < CLOSE_BELOW:
            self._switch(False)

    def _judge(self) -> None:
        if self.speedup >= OPEN_ABOVE:
            self._switch(True)
        else:
            self._close()

    def _switch(self, is_open: bool) -> None:
        self.is_open = is_open
        self.num_switches += 1
        if is_open:
            self._restart()
        else:
            self._close()

    def _close(self) -> None:
        self._rest = min(2 * self._rest, MAX_REST)
        self._countdown = self._rest
        self._restart()

    def _restart(self) -> None:
        self._steps = 0
        self._emitted = self._seconds = self._plain = self._plain_seconds = 0.0
