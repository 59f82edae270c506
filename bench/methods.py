"""Ways to draft side by side: plain decoding and each configuration on the same prompts, in turn.

    python bench/methods.py demo '{"method": "suffix"}' '{"method": "recycle"}' \
        --dataset $SPECFAST_DATA/spec_bench.jsonl --categories chat --num-prompts 8

Every configuration is a speculative_config as JSON. By matching, at any temperature, outputs must
be those of plain decoding.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from specfast.bench import PLAIN, conversation_tasks, longest_request
from specfast.config import EngineConfig
from specfast.data import load_workload, select_prompts
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.measure import Comparison, EngineArm, compare
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig


def main() -> None:
    options = parse()
    model, tokenizer = load(options.model)
    prompts = select_prompts(
        load_workload(options.dataset), options.categories, options.num_prompts
    )
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed
    )
    base = EngineConfig(options.model, max_num_seqs=options.batch_size)
    base = fitting(base, model, longest_request(prompts, tokenizer, params))

    def arm(name: str) -> EngineArm:
        speculation = None if name == PLAIN else SpeculativeConfig.from_dict(json.loads(name))
        config = replace(base, speculative_config=speculation)
        return EngineArm(name, make_engine(model, tokenizer, config), params)

    arms = [arm(name) for name in (PLAIN, *options.configs)]
    tasks = conversation_tasks(arms[0], tokenizer, prompts)
    report(compare(arms, tasks, batch_size=options.batch_size), options.configs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("configs", nargs="+", metavar="speculative_config")
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--categories", type=lambda text: text.split(","), default=[])
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=1)
    return parser.parse_args()


def report(comparison: Comparison, configs: list[str]) -> None:
    for name in configs:
        print(name)
        if differing := comparison.differing(PLAIN, name):
            print(f"  answers differ from plain decoding's: {', '.join(differing)}")
        for category in (None, *comparison.categories):
            chosen = [category] if category else None
            ratio = comparison.ratio(name, PLAIN, chosen)
            found = comparison.summary(name, chosen)
            positions = " ".join(f"{p:.2f}" for p in found.acceptance_per_pos[:8])
            interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
            print(
                f"  {category or 'all':22s} {ratio.value:.2f}x ({interval}), "
                f"{found.acceptance_length:.2f} tokens a step ({positions}), "
                f"{found.acceptance_rate:.0%} accepted, drafting {found.draft_time_fraction:.1%}"
            )


if __name__ == "__main__":
    main()
