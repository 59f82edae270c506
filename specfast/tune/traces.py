"""What an engine did step by step, while it answered tasks: the evidence of a prediction."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from typing import Any, cast

from specfast.engine import Engine
from specfast.measure import EngineArm, Task
from specfast.outputs import StepOutput
from specfast.request import Request
from specfast.sampling_params import SamplingParams


@dataclass(frozen=True)
class SequenceStep:
    """One step of one sequence behind its first token. depth: of the longest path drafted (0:
    nothing was); nodes: drafts verified; accepted and emitted: tokens, after the cut at a stop.
    """

    depth: int
    nodes: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class StepTime:
    """One engine step in which every sequence decoded: depth and nodes a sequence, on average, and
    the seconds of drafting and of the rest.
    """

    num_seqs: int
    depth: float
    nodes: float
    drafting: float
    rest: float


@dataclass(frozen=True)
class Trace:
    """The steps that decoded one task, with k drafts asked for (0: plain). first: the time of the
    first one, in which some drafters take in the prompt; None where there was none.
    """

    task: Task
    k: int
    steps: tuple[SequenceStep, ...]
    first: StepTime | None = None

    @property
    def num_tokens(self) -> int:
        return sum(s.emitted for s in self.steps)


class RecordedEngine:
    """An engine whose steps are written down; whatever else is asked of it, the engine answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requests_in_order: list[Request] = []
        self.steps: dict[int, list[SequenceStep]] = {}
        self.times: list[StepTime] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add_request(self, ids: Seqs[int], params: SamplingParams) -> Request:
        request = self._engine.add_request(ids, params)
        self.requests_in_order.append(request)
        return request

    def step(self) -> list[StepOutput]:
        before = self._engine.metrics.stats
        outputs = self._engine.step()
        after = self._engine.metrics.stats
        decoded = [o for o in outputs if _had_output(o)]
        for o in decoded:
            step = SequenceStep(o.draft_depth, o.num_draft_tokens, o.num_accepted, len(o.token_ids))
            self.steps.setdefault(o.seq.seq_id, []).append(step)
        if decoded and len(decoded) == len(outputs):
            drafting = after.propose_seconds - before.propose_seconds
            seconds = after.step_seconds - before.step_seconds
            self.times.append(_step_time(decoded, drafting, seconds - drafting))
        return outputs

    def clear(self) -> None:
        self.requests_in_order.clear()
        self.steps.clear()
        self.times.clear()


class RecordingArm(EngineArm):
    """Answers as an EngineArm does, and keeps a trace of each answer; times: of all steps but each
    answer's first one.
    """

    def __init__(self, name: str, engine: Engine, params: SamplingParams) -> None:
        self.recorded = RecordedEngine(engine)
        super().__init__(name, cast(Engine, self.recorded), params)
        self.traces: list[Trace] = []
        self.times: list[StepTime] = []
        self._params = params

    def record(self, tasks: Seqs[Task], k: int) -> None:
        """Answers all of them at once with k drafts a step; 0 for an engine without drafts."""
        override = {"num_speculative_tokens": k} if k else None
        self.params = replace(self._params, speculative=override)
        self.recorded.clear()
        self.answer_all(tasks)
        times = self.recorded.times
        self.times += times[1:]
        first = times[0] if times else None
        for task, request in zip(tasks, self.recorded.requests_in_order):
            steps = self.recorded.steps.get(request.seqs[0].seq_id, [])
            self.traces.append(Trace(task, k, tuple(steps), first))

    def forget(self) -> None:
        """What was recorded so far was a warm-up."""
        self.traces.clear()
        self.times.clear()


def _step_time(outputs: Seqs[StepOutput], drafting: float, rest: float) -> StepTime:
    n = len(outputs)
    depth = sum(o.draft_depth for o in outputs) / n
    return StepTime(n, depth, sum(o.num_draft_tokens for o in outputs) / n, drafting, rest)


def _had_output(output: StepOutput) -> bool:
    """Whether the sequence had emitted before this step."""
    seq = output.seq
    return len(seq.token_ids) - seq.num_prompt_tokens > len(output.token_ids) > 0
