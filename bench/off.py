"""What speculation costs where it is off: an engine that could draft beside one that can't.

    python bench/off.py demo --speculative-config '{"method": "suffix"}'

All engines serve the same requests, with "speculative": false, in lockstep: each step is taken by
one engine after the other, in an order that rotates, so that the machine's drift meets all alike. A
second plain engine shows what noise alone makes of equal ones.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence as Seqs
from dataclasses import replace
from pathlib import Path

import numpy as np

from specfast.bench import longest_request
from specfast.config import EngineConfig
from specfast.data import load_workload, select_prompts
from specfast.engine import Engine
from specfast.intervals import bootstrap
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.measure import prompt_ids
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

PLAIN, TWIN, OFF = "plain", "another plain", "off"


def main() -> None:
    options = parse()
    model, tokenizer = load(options.model)
    prompts = select_prompts(load_workload(options.dataset), (), options.num_prompts)
    params = SamplingParams(
        temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True, speculative=False
    )
    config = EngineConfig(options.model, max_num_seqs=options.batch_size)
    config = fitting(config, model, longest_request(prompts, tokenizer, params))
    speculation = SpeculativeConfig.from_dict(options.speculative_config)
    engines = {
        name: make_engine(model, tokenizer, replace(config, speculative_config=found))
        for name, found in ((PLAIN, None), (TWIN, None), (OFF, speculation))
    }
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in prompts]
    room = engines[PLAIN].max_model_len - options.max_tokens
    ids = [i for i in ids if len(i) <= room]
    batches = [ids[i : i + options.batch_size] for i in range(0, len(ids), options.batch_size)]
    taken = [in_lockstep(list(engines.values()), batch, params) for batch in batches]
    print(f"{sum(map(len, taken))} steps of {len(batches)} batches")
    for column, name in enumerate(engines):
        ratios = [np.median(np.log(steps[:, column] / steps[:, 0])) for steps in taken]
        found = bootstrap(ratios, np.mean, np.exp)
        interval = f"{found.low:.4f} to {found.high:.4f}, {found.high - found.low:.4f} wide"
        print(f"{name}: {found.value:.4f} of plain's time ({interval})")


def in_lockstep(
    engines: Seqs[Engine], prompts: Seqs[list[int]], params: SamplingParams
) -> np.ndarray:
    """Seconds of the steps that only decode [steps, engines]."""
    for engine in engines:
        engine.reset_prefix_cache()
    requests = [[e.add_request(ids, params) for ids in prompts] for e in engines]
    taken: list[list[float]] = []
    while engines[0].has_unfinished:
        seconds = [0.0] * len(engines)
        decodes = all(len(s.token_ids) > s.num_prompt_tokens for r in requests[0] for s in r.seqs)
        for turn in range(len(engines)):
            number = (turn + len(taken)) % len(engines)
            start = time.perf_counter()
            engines[number].step()
            seconds[number] = time.perf_counter() - start
        if decodes:
            taken.append(seconds)
    answers = [[s.output_token_ids for r in own for s in r.seqs] for own in requests]
    assert all(answer == answers[0] for answer in answers), "answers differ"
    return np.array(taken)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--speculative-config", type=json.loads, default={"method": "suffix"})
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
