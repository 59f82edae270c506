"""Speculation over plain decoding at several batch sizes, in one run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from specfast.bench import (
    PLAIN,
    SPECULATIVE,
    BenchSettings,
    conversation_tasks,
    engine_arm,
    longest_request,
)
from specfast.data import Prompt
from specfast.intervals import Interval
from specfast.kv_cache import fitting
from specfast.machine import Load, LoadWatch, cpu_name
from specfast.measure import Comparison, Task, compare
from specfast.models.loader import load

CATEGORY = "all"


@dataclass(frozen=True)
class BatchResult:
    """One batch size. num_repeated: of its requests, copies made to fill the batch."""

    batch_size: int
    num_repeated: int
    comparison: Comparison

    @property
    def speedup(self) -> Interval:
        """One request's decoding speed, speculation over plain."""
        return self.comparison.ratio(SPECULATIVE, PLAIN)

    def throughput(self, arm: str) -> float:
        """Tokens a second of the whole batch, prompts included: the median over batches."""
        return float(np.median(throughputs(self.comparison, arm, self.batch_size)))

    def to_dict(self) -> dict[str, Any]:
        summary = self.comparison.summary(SPECULATIVE)
        return {
            "batch_size": self.batch_size,
            "num_requests": len(self.comparison.tasks),
            "num_repeated": self.num_repeated,
            "speedup": asdict(self.speedup),
            "throughput": {arm: self.throughput(arm) for arm in (PLAIN, SPECULATIVE)},
            "acceptance_rate": summary.acceptance_rate,
            "acceptance_length": summary.acceptance_length,
            "gated_share": summary.gated_share,
            "differing": self.comparison.differing(PLAIN, SPECULATIVE),
        }


@dataclass(frozen=True)
class BatchReport:
    settings: BenchSettings
    results: tuple[BatchResult, ...]
    load: Load
    num_threads: int

    def to_dict(self) -> dict[str, Any]:
        synthetic, comparable = self.settings.is_synthetic, self.settings.is_comparable
        differing = {t for r in self.results for t in r.to_dict()["differing"]}
        return {
            "synthetic": synthetic,
            "identical": not differing if comparable else None,
            "batches": [r.to_dict() for r in self.results],
            "settings": asdict(self.settings),
            "machine": {"cpu": cpu_name(), "num_threads": self.num_threads},
            "load": {**asdict(self.load), "warnings": self.load.warnings},
        }


def run_batches(
    settings: BenchSettings,
    prompts: Seqs[Prompt],
    sizes: Seqs[int],
    on_start: Callable[[int], None] = lambda num_samples: None,
    on_sample: Callable[[], None] = lambda: None,
) -> BatchReport:
    """As run_bench, at each of these batch sizes by engines of its own."""
    model, tokenizer = load(settings.config.model, settings.config.dtype)
    longest = longest_request(prompts, tokenizer, settings.params)
    alone = replace(settings, config=replace(settings.config, max_num_seqs=1))
    alone = replace(alone, config=fitting(alone.config, model, longest))
    plain = engine_arm(PLAIN, model, tokenizer, alone, speculate=False)
    tasks = conversation_tasks(plain, tokenizer, prompts, settings.leaves_out_long)
    filled = [filling(tasks, size) for size in sizes]
    on_start(sum(4 * settings.cycles * -(-len(t) // n) for t, n in zip(filled, sizes)))
    watch, results = LoadWatch(), []
    for size, chosen in zip(sizes, filled):
        config = replace(settings.config, max_num_seqs=size)
        config = replace(config, max_num_batched_tokens=max(config.max_num_batched_tokens, size))
        fitted = replace(settings, config=fitting(config, model, longest))
        arms = [
            engine_arm(name, model, tokenizer, fitted, speculate=name == SPECULATIVE)
            for name in (PLAIN, SPECULATIVE)
        ]
        found = compare(arms, chosen, cycles=settings.cycles, batch_size=size, on_sample=on_sample)
        results.append(BatchResult(size, max(0, len(chosen) - len(tasks)), found))
    return BatchReport(settings, tuple(results), watch.stop(), torch.get_num_threads())


def throughputs(comparison: Comparison, arm: str, batch_size: int) -> np.ndarray:
    """Tokens a second of each whole batch and repetition, prompts included, in order."""
    samples = comparison.samples[arm]
    batches = [samples[i : i + batch_size] for i in range(0, len(samples), batch_size)]
    return np.array(
        [
            sum(len(s.times) for s in repeat) / max(s.times[-1] for s in repeat)
            for batch in batches
            for repeat in zip(*batch)
        ]
    )


def filling(tasks: Seqs[Task], size: int) -> list[Task]:
    """Whole batches: of as many tasks as there are, or, where one batch takes more, of copies."""
    count = max(size, len(tasks) // size * size)
    return [_copy(tasks[i % len(tasks)], i // len(tasks)) for i in range(count)]


def _copy(task: Task, number: int) -> Task:
    """Batches mix categories, as traffic does."""
    name = f"{task.id}#{number + 1}" if number else task.id
    return replace(task, id=name, category=CATEGORY, copy=number)
