"""specfast bench: speculation on and off, and Hugging Face beside it, on the same prompts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seqs
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from specfast.config import EngineConfig
from specfast.data import GROUPS, Prompt
from specfast.engine import Engine
from specfast.intervals import Interval
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.machine import Load, LoadWatch, cpu_name
from specfast.measure import (
    Arm,
    Comparison,
    EngineArm,
    Task,
    compare,
    in_groups,
    prompt_ids,
)
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.step_cost import StepCost, measure_step_cost
from specfast.tokenizer import Tokenizer
from specfast.validation import require

logger = logging.getLogger(__name__)
PLAIN, SPECULATIVE, PLAIN_FP32 = "plain", "speculative", "plain_fp32"
NUM_PILOTS = 3


@dataclass(frozen=True)
class BenchSettings:
    """What is compared; config.speculative_config is the speculative arm's, config.max_num_seqs
    the number of prompts answered at once. leaves_out_long: prompts beyond the model's context are
    left out, with a warning, and not refused.
    """

    config: EngineConfig
    params: SamplingParams
    baseline: bool = False
    cycles: int = 1
    leaves_out_long: bool = False

    @property
    def speculation(self) -> SpeculativeConfig:
        assert self.config.speculative_config is not None
        return self.config.speculative_config

    @property
    def is_synthetic(self) -> bool:
        """Drafts were accepted by decree: what was generated is invalid text."""
        return self.speculation.synthetic is not None

    @property
    def is_comparable(self) -> bool:
        """Speculation on and off should give the same bytes: rejection draws others at T > 0, and
        acceptance by decree anything.
        """
        if self.is_synthetic:
            return False
        return self.speculation.verification == "match" or self.params.greedy


@dataclass(frozen=True)
class BenchReport:
    """baselines: role of a Hugging Face arm ("best", "lookup", "fp32") -> that arm's name."""

    settings: BenchSettings
    comparison: Comparison
    step_cost: StepCost
    load: Load
    num_threads: int
    baselines: Mapping[str, str]

    @property
    def is_synthetic(self) -> bool:
        return self.settings.is_synthetic

    @property
    def is_comparable(self) -> bool:
        return self.settings.is_comparable

    @property
    def differing(self) -> list[str]:
        """Tasks that speculation on and off answered differently."""
        return self.comparison.differing(PLAIN, SPECULATIVE)

    @property
    def speedups(self) -> dict[str, Interval]:
        """Speculation over plain decoding, a category or group each."""
        categories = self.comparison.categories
        groups = {name: set(members) & set(categories) for name, members in GROUPS.items()}
        chosen = {c: {c} for c in categories} | {n: g for n, g in groups.items() if g}
        return {n: self.comparison.ratio(SPECULATIVE, PLAIN, g) for n, g in chosen.items()}

    @property
    def ratios(self) -> dict[str, Interval | None]:
        """What the measures refer to; None where nothing was there to compare with."""
        best, fp32 = self.baselines.get("best"), self.baselines.get("fp32")
        lookup = self.baselines.get("lookup")
        ours_fp32 = PLAIN_FP32 if PLAIN_FP32 in self.comparison.samples else PLAIN

        def ratio(arm: str, base: str | None) -> Interval | None:
            return self.comparison.ratio(arm, base) if base else None

        return {
            "spec_vs_plain": ratio(SPECULATIVE, PLAIN),
            "plain_vs_transformers": ratio(PLAIN, best),
            "plain_fp32_vs_transformers_fp32": ratio(ours_fp32, fp32),
            "spec_vs_transformers_lookup": ratio(SPECULATIVE, lookup),
            "rows5_vs_rows1": self.step_cost.rows_ratio,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: ratios as numbers, their 95 % intervals beside them."""
        ratios, speedups = self.ratios, self.speedups
        differing = self.differing
        return {
            "synthetic": self.is_synthetic,
            "identical": not differing if self.is_comparable else None,
            "differing": differing if self.is_comparable else None,
            "ratios": {
                **{name: r and r.value for name, r in ratios.items()},
                "bandwidth_share": self.step_cost.bandwidth_share,
                "spec_vs_plain_by_category": {n: r.value for n, r in speedups.items()},
            },
            "intervals": {
                **{name: r and [r.low, r.high] for name, r in ratios.items()},
                "spec_vs_plain_by_category": {n: [r.low, r.high] for n, r in speedups.items()},
            },
            "effective_speedup": ratios["spec_vs_plain"].value,  # type: ignore[union-attr]
            "baselines": dict(self.baselines),
            "arms": {name: self._arm(name) for name in self.comparison.samples},
            "step_cost": asdict(self.step_cost),
            "settings": asdict(self.settings),
            "machine": {"cpu": cpu_name(), "num_threads": self.num_threads},
            "load": {**asdict(self.load), "warnings": self.load.warnings},
            "tasks": [self._task(i) for i in range(len(self.comparison.tasks))],
        }

    def _arm(self, name: str) -> dict[str, Any]:
        by_category = {
            c: asdict(self.comparison.summary(name, [c])) for c in self.comparison.categories
        }
        return {**asdict(self.comparison.summary(name)), "by_category": by_category}

    def _task(self, index: int) -> dict[str, Any]:
        task = self.comparison.tasks[index]
        return {
            "id": task.id,
            "category": task.category,
            "num_prompt_tokens": len(task.prompt_token_ids),
            "num_tokens": len(self.comparison.samples[PLAIN][index][0].token_ids),
            "decode_rates": {
                name: [s.decode_rate for s in samples[index]]
                for name, samples in self.comparison.samples.items()
            },
        }


def run_bench(
    settings: BenchSettings,
    prompts: Seqs[Prompt],
    on_start: Callable[[int], None] = lambda num_samples: None,
    on_sample: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Loads the model, answers every prompt by every arm, and compares."""
    model, tokenizer = load(settings.config.model, settings.config.dtype)
    longest = longest_request(prompts, tokenizer, settings.params)
    fitted = replace(settings, config=fitting(settings.config, model, longest))
    plain = engine_arm(PLAIN, model, tokenizer, fitted, speculate=False)
    arms: list[Arm] = [plain, engine_arm(SPECULATIVE, model, tokenizer, fitted, speculate=True)]
    tasks = conversation_tasks(plain, tokenizer, prompts, settings.leaves_out_long)
    baselines: dict[str, str] = {}
    if settings.baseline:
        baselines = _add_baseline(arms, fitted, plain.engine, _pilot(tasks))
    batch_size = settings.config.max_num_seqs
    on_start(2 * settings.cycles * len(arms) * len(in_groups(tasks, batch_size)))
    watch = LoadWatch()
    comparison = compare(
        arms, tasks, cycles=settings.cycles, batch_size=batch_size, on_sample=on_sample
    )
    step_cost = measure_step_cost(model, tokenizer, replace(settings.config, max_num_seqs=1))
    return BenchReport(
        settings, comparison, step_cost, watch.stop(), torch.get_num_threads(), baselines
    )


def longest_request(prompts: Seqs[Prompt], tokenizer: Tokenizer, params: SamplingParams) -> int:
    """A bound on the tokens of one request: all turns, and as many answers of full length."""
    assert params.max_tokens is not None
    return max(
        len(prompt_ids(tokenizer, _conversation(p.turns))) + len(p.turns) * params.max_tokens
        for p in prompts
    )


def _conversation(turns: Seqs[str]) -> list[dict[str, str]]:
    """All turns, an answer of a token between them: some templates take no two users in a row."""
    messages = [{"role": "user", "content": turns[0]}]
    for turn in turns[1:]:
        messages += [{"role": "assistant", "content": "."}, {"role": "user", "content": turn}]
    return messages


def conversation_tasks(
    arm: EngineArm, tokenizer: Tokenizer, prompts: Iterable[Prompt], leaves_out_long: bool = False
) -> list[Task]:
    """A task a turn; `arm` answers the earlier turns, so that every arm gets the same prompt.

    leaves_out_long: turns beyond the context, and those after them, are no tasks.
    """
    tasks, num_left_out = [], 0
    for prompt in prompts:
        messages: list[dict[str, str]] = []
        for number, turn in enumerate(prompt.turns, 1):
            messages.append({"role": "user", "content": turn})
            ids = prompt_ids(tokenizer, messages)
            name = prompt.id if len(prompt.turns) == 1 else f"{prompt.id}/{number}"
            if leaves_out_long and len(ids) >= arm.engine.max_model_len:
                num_left_out += 1
                break
            _check_admissible(arm, name, ids)
            tasks.append(Task(name, prompt.category, tuple(ids)))
            if number < len(prompt.turns):
                answer = tokenizer.decode(list(arm.answer(tasks[-1]).token_ids))
                messages.append({"role": "assistant", "content": answer})
    require(bool(tasks), "Every prompt is longer than the model's context; give a --dataset.")
    if num_left_out:
        logger.warning(
            "%d prompts are longer than the model's context of %d tokens: left out.",
            *(num_left_out, arm.engine.max_model_len),
        )
    return tasks


def _check_admissible(arm: EngineArm, name: str, ids: list[int]) -> None:
    try:
        arm.engine.check_admissible(ids, arm.params)
    except ValueError as error:
        raise ValueError(
            f"Prompt {name}: {error} Or choose others by --categories or --dataset."
        ) from None


def engine_arm(
    name: str, model: Model, tokenizer: Tokenizer, settings: BenchSettings, *, speculate: bool
) -> EngineArm:
    speculation = settings.speculation if speculate else None
    config = replace(settings.config, speculative_config=speculation)
    return EngineArm(name, make_engine(model, tokenizer, config), settings.params)


def _pilot(tasks: list[Task]) -> list[Task]:
    """The first task of each of the first categories."""
    return list({t.category: t for t in reversed(tasks)}.values())[-NUM_PILOTS:]


def _add_baseline(
    arms: list[Arm], settings: BenchSettings, engine: Engine, pilot: list[Task]
) -> dict[str, str]:
    """Adds Hugging Face's arms, and ours in float32; -> the baselines' roles."""
    from specfast.peers import transformers_arms

    if engine.runner.model.config.dtype != torch.float32:
        config = replace(settings.config, dtype="float32")
        fp32 = replace(settings, config=config)
        arms.append(engine_arm(PLAIN_FP32, *load(config.model, "float32"), fp32, speculate=False))
    assert settings.params.max_tokens is not None
    found = transformers_arms(
        settings.config.model,
        sorted(engine.tokenizer.eos_token_ids),
        settings.params.max_tokens,
        settings.speculation,
        pilot,
    )
    arms += {arm.name: arm for arm in found.values()}.values()
    return {role: arm.name for role, arm in found.items()}
