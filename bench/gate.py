"""Fixed depths and policies that adapt beside plain decoding, at several batch sizes, in one run.

    python bench/gate.py demo --sizes 1,2,4,8,16,32,64,128 --k 1,2,4 \
        --speculative-config '{"method": "ngram"}'

At each size every arm serves the same requests, so many at a time; their prompts' KV is cached by a
pass before. They take turns: an arm goes on until it has emitted the next share of all tokens, then
the next arm does, in an order that rotates; so the machine's drift meets all alike. Intervals
resample the shares.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seqs
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from specfast.bench import PLAIN
from specfast.config import EngineConfig
from specfast.data import load_workload, select_prompts
from specfast.engine import Engine
from specfast.intervals import Interval, interval, resampled_totals
from specfast.llm import make_engine
from specfast.measure import prompt_ids
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.tokenizer import Tokenizer

NUM_SHARES = 24
KV_CACHE_MEMORY = 2**30  # bytes an arm: all prompts at once
Prompts = Seqs[list[int]]


def main() -> None:
    options = parse()
    model, tokenizer = load(options.model)
    found = load_workload(options.dataset)
    prompts = select_prompts(found, options.categories, options.num_prompts)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    config = EngineConfig(options.model, kv_cache_memory=KV_CACHE_MEMORY)
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in prompts]
    for size in options.sizes:
        sized = replace(config, max_num_seqs=size, max_num_batched_tokens=max(512, 2 * size))
        arms = engines(model, tokenizer, sized, options)
        count = max(len(ids), options.rounds * size)
        report(size, race(arms, [ids[i % len(ids)] for i in range(count)], params), arms)
        arms.clear()
        gc.collect()  # the caches, before the next are made


def engines(
    model: Model, tokenizer: Tokenizer, config: EngineConfig, options: argparse.Namespace
) -> dict[str, Engine]:
    base = options.speculative_config
    own: dict[str, dict[str, Any] | None] = {PLAIN: None}
    for k in options.k:
        own[f"k = {k}"] = {**base, "num_speculative_tokens": k, "policy": "fixed"}
    deepest = {"num_speculative_tokens": max(options.k), **base}
    own |= {policy: {**deepest, "policy": policy} for policy in options.policies}

    def engine(given: dict[str, Any] | None) -> Engine:
        speculation = None if given is None else SpeculativeConfig.from_dict(given)
        return make_engine(model, tokenizer, replace(config, speculative_config=speculation))

    return {name: engine(given) for name, given in own.items()}


def race(arms: Mapping[str, Engine], prompts: Prompts, params: SamplingParams) -> np.ndarray:
    """-> seconds that each arm took for each share of the tokens [NUM_SHARES, arms]."""
    for engine in arms.values():
        serve(engine, prompts, replace(params, max_tokens=1))
    requests = [[e.add_request(ids, params) for ids in prompts] for e in arms.values()]
    total = len(prompts) * (params.max_tokens or 0)
    marks = np.linspace(0, total, NUM_SHARES + 1)[1:]
    seconds, emitted = np.zeros((NUM_SHARES, len(arms))), [0] * len(arms)
    racers = list(arms.values())
    for share, mark in enumerate(marks):
        for turn in range(len(racers)):
            number = (turn + share) % len(racers)
            start = perf_counter()
            while emitted[number] < mark:
                emitted[number] += sum(len(o.token_ids) for o in racers[number].step())
            seconds[share, number] = perf_counter() - start
    answers = [[s.output_token_ids for r in own for s in r.seqs] for own in requests]
    assert all(answer == answers[0] for answer in answers), "answers differ"
    return seconds


def serve(engine: Engine, prompts: Prompts, params: SamplingParams) -> None:
    for ids in {tuple(ids) for ids in prompts}:
        engine.add_request(ids, params)
    while engine.has_unfinished:
        engine.step()


def report(size: int, seconds: np.ndarray, arms: Mapping[str, Engine]) -> None:
    names = list(arms)
    totals = seconds.sum(axis=0)
    fixed = [i for i, name in enumerate(names) if name.startswith("k = ")]
    best = min(fixed, key=lambda number: totals[number])
    print(f"batch {size}: plain {1e3 * totals[0] / seconds.shape[0]:.0f} ms a share", flush=True)
    for number, name in enumerate(names[1:], 1):
        stats = arms[name].metrics.stats
        over = written(speedup(seconds, number, 0))
        accepted = f"{stats.acceptance_length:.2f} tokens a step, {stats.gated_share:.0%} gated"
        print(f"  {name:8s} {over} over plain, {accepted}", flush=True)
    for number in range(fixed[-1] + 1, len(names)):
        over = written(speedup(seconds, number, best))
        gates = arms[names[number]].budget.gates
        states = f"; gates {gates.states}" if gates else ""
        print(f"  {names[number]} over {names[best]}, the best: {over}{states}", flush=True)


def speedup(seconds: np.ndarray, arm: int, base: int) -> Interval:
    spread, totals = resampled_totals(seconds), seconds.sum(axis=0)
    value = float(totals[base] / totals[arm])
    return interval(value, spread[:, base] / spread[:, arm], 0.95)


def written(found: Interval) -> str:
    return f"{found.value:.3f}x ({found.low:.3f} to {found.high:.3f})"


def parse() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--speculative-config", type=json.loads, default={"method": "ngram"})
    parser.add_argument("--sizes", type=numbers, default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--k", type=numbers, default=[1, 2, 4])
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--categories", type=lambda text: text.split(","), default=[])
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2, help="at least so many requests a slot")
    parser.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
