"""What speculation costs where it is off: an engine that could draft beside one that can't.

    python bench/off.py demo --speculative-config '{"method": "suffix"}'

Both answer the same prompts in ABBA order, by requests with "speculative": false. Two plain engines
beside them show what the machine's noise alone makes of equal ones.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from specfast.bench import conversation_tasks, longest_request
from specfast.config import EngineConfig
from specfast.data import load_workload, select_prompts
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.measure import EngineArm, compare
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

PLAIN, TWIN, OFF = "plain", "another plain", "off"


def main() -> None:
    options = parse()
    model, tokenizer = load(options.model)
    prompts = select_prompts(load_workload(options.dataset), (), options.num_prompts)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    config = EngineConfig(options.model, max_num_seqs=options.batch_size)
    config = fitting(config, model, longest_request(prompts, tokenizer, params))
    speculation = SpeculativeConfig.from_dict(options.speculative_config)

    def arm(name: str, speculation: SpeculativeConfig | None) -> EngineArm:
        engine = make_engine(model, tokenizer, replace(config, speculative_config=speculation))
        return EngineArm(name, engine, replace(params, speculative=False))

    arms = [arm(PLAIN, None), arm(TWIN, None), arm(OFF, speculation)]
    tasks = conversation_tasks(arms[0], tokenizer, prompts)
    found = compare(arms, tasks, cycles=options.cycles, batch_size=options.batch_size)
    if differing := found.differing(PLAIN, OFF):
        raise SystemExit(f"answers differ: {', '.join(differing)}")
    for name in (TWIN, OFF):
        ratio = found.ratio(name, PLAIN)
        interval = f"{ratio.low:.4f} to {ratio.high:.4f}, {ratio.high - ratio.low:.4f} wide"
        print(f"{name} over plain: {ratio.value:.4f}x ({interval})")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--speculative-config", type=json.loads, default={"method": "suffix"})
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
