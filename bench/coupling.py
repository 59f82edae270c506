"""What the position's own noise brings a draft model at T > 0: chains of k drafts, nothing cut.

    python bench/coupling.py demo demo-draft --dataset $SPECFAST_DATA/spec_bench.jsonl \
        --categories chat --num-prompts 16

Drafts ranked by the target's noise (coupling), by the draft's logits alone (argmax) and drawn by
noise of their own (independent), all verified by matching; greedy decoding and the two rejection
rules beside them. Acceptance lengths are means over prompts; no time is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Sequence as Seqs
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from specfast.bench import conversation_tasks, longest_request
from specfast.config import EngineConfig
from specfast.data import load_workload, select_prompts
from specfast.engine import Engine
from specfast.kv_cache import fitting
from specfast.measure import EngineArm, Sample, bootstrap
from specfast.models.loader import load
from specfast.proposers import growing
from specfast.proposers.candidates import Chooser, Ranking
from specfast.proposers.draft_model import DraftModelProposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.sequence import Sequence
from specfast.spec_stats import SpecStats
from specfast.speculative_config import SpeculativeConfig


class Argmax(Ranking):
    """By the draft's logits, as if the sequence were greedy."""

    def __init__(self, seqs: Seqs[Sequence], d2t: Tensor | None) -> None:
        super().__init__(seqs, d2t)
        self._temperature = np.zeros_like(self._temperature)


class Independent(Ranking):
    """By noise that the target does not share: the best of a row is a sample of the draft's law."""

    def __init__(self, seqs: Seqs[Sequence], d2t: Tensor | None) -> None:
        super().__init__(seqs, d2t)
        self._seeds = self._seeds ^ np.int64(0x5EED)


class ChosenBy(DraftModelProposer):
    """A draft model whose candidates another chooser ranks."""

    chooser: Callable[[Seqs[Sequence], Tensor | None], Chooser] = Ranking

    def __init__(self, config: SpeculativeConfig, target: Target) -> None:
        super().__init__(config, target)
        self.grower.choose = lambda seqs: self.chooser(seqs, self.grower.vocab_map)


class Way(NamedTuple):
    """One way to draft and verify."""

    name: str
    proposer: type[DraftModelProposer]
    temperature: float
    rule: str | None = None

    @property
    def verification(self) -> str:
        return "rejection" if self.rule else "match"


def chosen_by(chooser: type[Ranking]) -> type[DraftModelProposer]:
    return type(chooser.__name__, (ChosenBy,), {"chooser": staticmethod(chooser)})


def ways(temperature: float) -> list[Way]:
    return [
        Way("greedy", DraftModelProposer, 0.0),
        Way("coupling", DraftModelProposer, temperature),
        Way("argmax", chosen_by(Argmax), temperature),
        Way("independent", chosen_by(Independent), temperature),
        Way("rejection, token rule", DraftModelProposer, temperature, "token"),
        Way("rejection, block rule", DraftModelProposer, temperature, "block"),
    ]


def main() -> None:
    options = parse()
    growing.MIN_SURVIVAL = growing.MIN_EXTENDED = 0.0  # every way drafts all k
    model, tokenizer = load(options.model)
    prompts = select_prompts(
        load_workload(options.dataset), options.categories, options.num_prompts
    )
    params = SamplingParams(max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True)
    base = EngineConfig(options.model, max_num_seqs=1)
    base = fitting(base, model, longest_request(prompts, tokenizer, params))

    def arm(way: Way) -> EngineArm:
        speculation = SpeculativeConfig(
            "draft_model", options.k, way.verification, way.rule,
            policy="fixed", model=options.draft,
        )  # fmt: skip
        config = replace(base, speculative_config=speculation)
        proposer = way.proposer(speculation, Target(model, tokenizer, config))
        law = replace(params, temperature=way.temperature)
        return EngineArm(way.name, Engine(model, tokenizer, config, proposer), law)

    arms = [arm(way) for way in ways(options.temperature)]
    tasks = conversation_tasks(arms[0], tokenizer, prompts)
    report({arm.name: [arm.answer(task) for task in tasks] for arm in arms})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--categories", type=lambda text: text.split(","), default=[])
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def report(samples: dict[str, list[Sample]]) -> None:
    lengths = {
        name: np.array([s.stats.acceptance_length for s in answers])
        for name, answers in samples.items()
    }
    for name, values in lengths.items():
        length = bootstrap(values, np.mean)
        gain = bootstrap(values - lengths["coupling"], np.mean)
        rates = sum((s.stats for s in samples[name]), SpecStats()).acceptance_per_pos
        print(
            f"{name:22s} {length.value:.2f} tokens a step ({length.low:.2f} to {length.high:.2f}), "
            f"{gain.value:+.2f} ({gain.low:+.2f} to {gain.high:+.2f}) beside coupling; "
            f"by position {' '.join(f'{r:.2f}' for r in rates)}"
        )


if __name__ == "__main__":
    main()
