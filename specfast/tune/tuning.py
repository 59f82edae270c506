"""The whole of tuning: load, halve, try at each batch size, decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from specfast.bench import conversation_tasks, longest_request
from specfast.config import EngineConfig
from specfast.control.cost_profile import CostProfile
from specfast.data import Prompt
from specfast.engine import Engine
from specfast.intervals import Interval
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.machine import Load, LoadWatch
from specfast.measure import EngineArm, Task
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.step_profile import cost_profile
from specfast.tokenizer import Tokenizer
from specfast.tune.candidates import Candidate
from specfast.tune.decision import Decision, Option, decide, gate_of
from specfast.tune.halves import halve
from specfast.tune.memory import Memory, memory_of
from specfast.tune.traces import RecordingArm
from specfast.tune.trial import (
    AUTO,
    PLAIN,
    Halves,
    Trial,
    arm_name,
    best_of,
    fit,
    hold,
    num_answers,
    predictions,
)


@dataclass(frozen=True)
class TuneSettings:
    """config: the target's, without speculation; ks and batch_sizes ascend. At the first size k and
    the drafter are chosen. every_k: each k is measured, not that predicted best alone.
    leaves_out_long: as in BenchSettings.
    """

    config: EngineConfig
    params: SamplingParams
    candidates: tuple[Candidate, ...]
    ks: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    cycles: int = 1
    every_k: bool = False
    leaves_out_long: bool = False


@dataclass(frozen=True)
class TuneReport:
    """One trial a batch size; memories: by candidate."""

    settings: TuneSettings
    trials: tuple[Trial, ...]
    memories: dict[str, Memory]
    profile: CostProfile
    load: Load
    num_threads: int

    @property
    def main(self) -> Trial:
        """The trial that decides who drafts, and how far: of the first batch size."""
        return self.trials[0]

    @cached_property
    def decision(self) -> Decision:
        options = [self.main.option(c) for c in self.settings.candidates]
        return decide(self.main.workload, options)

    @property
    def recommended(self) -> dict[str, Any] | None:
        """A speculative_config, ready to use; None: leave speculation off."""
        option = self.decision.option
        if option is None:
            return None
        k = option.k if option.policy == "fixed" else self.settings.ks[-1]
        (candidate,) = [c for c in self.settings.candidates if c.name == option.name]
        gate, _ = gate_of(self._speedups(option))
        return candidate.settings(k, option.policy, gate)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why that is recommended, a sentence each."""
        option = self.decision.option
        gate = (gate_of(self._speedups(option))[1],) if option else ()
        return (*self.decision.reasons, *gate)

    def _speedups(self, option: Option) -> dict[int, Interval]:
        """As it would be run, by batch size."""
        k = option.k if option.policy == "fixed" else AUTO
        found = {t.batch_size: t.measured(option.name, k) for t in self.trials}
        return {size: interval for size, interval in found.items() if interval}

    @property
    def differing(self) -> list[str]:
        """Tasks that some arm answered otherwise than plain decoding."""
        found = [t.comparison.differing(*t.comparison.samples) for t in self.trials]
        return list(dict.fromkeys(task for tasks in found for task in tasks))


def run_tune(
    settings: TuneSettings,
    prompts: Seqs[Prompt],
    on_start: Callable[[int], None] = lambda num_samples: None,
    on_sample: Callable[[], None] = lambda: None,
) -> TuneReport:
    """Loads, tries and compares. ValueError for prompts that can't be halved, or a candidate that
    can't draft for this target, before anything is measured.
    """
    model, tokenizer = load(settings.config.model, settings.config.dtype)
    longest = longest_request(prompts, tokenizer, settings.params)
    bench = _Bench(settings, model, tokenizer, longest)
    memories = bench.memories()
    plain = EngineArm(PLAIN, bench.engine(None, 1), settings.params)
    tasks = conversation_tasks(plain, tokenizer, prompts, settings.leaves_out_long)
    halves = _halves(prompts, tasks)
    on_start(bench.num_answers(halves))
    watch = LoadWatch()
    trials = tuple(bench.trials(halves, on_sample))
    profile = cost_profile(bench.engine(None, 1))
    return TuneReport(settings, trials, memories, profile, watch.stop(), torch.get_num_threads())


def _halves(prompts: Seqs[Prompt], tasks: Seqs[Task]) -> Halves:
    """All turns of a prompt on the same side; prompts without a task don't count."""
    of_prompt = {p.id: [t for t in tasks if t.id == p.id or _is_turn(t, p)] for p in prompts}
    parts = halve([p for p in prompts if of_prompt[p.id]])
    return Halves(*(tuple(t for p in part for t in of_prompt[p.id]) for part in parts))


def _is_turn(task: Task, prompt: Prompt) -> bool:
    return len(prompt.turns) > 1 and task.id.rpartition("/")[0] == prompt.id


def profile_of(config: EngineConfig) -> CostProfile:
    """What steps of a target take here: as kept on disk, or measured now."""
    model, tokenizer = load(config.model, config.dtype)
    return cost_profile(make_engine(model, tokenizer, config))


@dataclass(frozen=True)
class _Bench:
    """Makes the engines of one target; longest: tokens of a request, at most."""

    settings: TuneSettings
    model: Model
    tokenizer: Tokenizer
    longest: int

    def engine(self, speculation: SpeculativeConfig | None, batch_size: int) -> Engine:
        config = replace(
            self.settings.config, speculative_config=speculation, max_num_seqs=batch_size
        )
        config = fitting(config, self.model, self.longest)
        return make_engine(self.model, self.tokenizer, config)

    def memories(self) -> dict[str, Memory]:
        """Also the first look at each candidate, which says whether it can draft here at all."""
        s = self.settings
        return {
            c.name: memory_of(self.engine(c.config(s.ks[-1]), 1), s.config.kv_cache_memory)
            for c in s.candidates
        }

    def num_answers(self, halves: Halves) -> int:
        s, n = self.settings, len(self.settings.candidates)
        measured = 1 + n * (1 + (len(s.ks) if s.every_k else 1))
        return sum(num_answers(halves, 1 + n, measured, size, s.cycles) for size in s.batch_sizes)

    def trials(self, halves: Halves, on_sample: Callable[[], None]) -> list[Trial]:
        """Every size is tried with the k that is predicted best at the first."""
        found: list[Trial] = []
        for size in self.settings.batch_sizes:
            found.append(self._trial(halves, size, found[0].ks if found else None, on_sample))
        return found

    def _trial(
        self,
        halves: Halves,
        size: int,
        chosen: Mapping[str, int] | None,
        on_sample: Callable[[], None],
    ) -> Trial:
        s = self.settings
        plain, *drafting = (
            RecordingArm(name, self.engine(speculation, size), s.params)
            for name, speculation in [
                (PLAIN, None),
                *((c.name, c.config(s.ks[-1])) for c in s.candidates),
            ]
        )
        fits = fit(plain, drafting, halves.fit, s.ks, size, on_sample)
        predicted = predictions(fits, s.ks, halves.held)
        chosen = chosen or {name: best_of(found).k for name, found in predicted.items()}
        compared = hold(self._arms(chosen, size), halves.held, size, s.cycles, on_sample)
        return Trial(size, fits, predicted, chosen, compared)

    def _arms(self, chosen: Mapping[str, int], size: int) -> list[EngineArm]:
        """Plain decoding, and each candidate fixed and auto."""
        s = self.settings
        arms = [self._arm(PLAIN, None, size)]
        for c in s.candidates:
            for k in s.ks if s.every_k else (chosen[c.name],):
                arms.append(self._arm(arm_name(c.name, k), c.config(k), size))
            arms.append(self._arm(arm_name(c.name, AUTO), c.config(s.ks[-1], AUTO), size))
        return arms

    def _arm(self, name: str, speculation: SpeculativeConfig | None, size: int) -> EngineArm:
        return EngineArm(name, self.engine(speculation, size), self.settings.params)
