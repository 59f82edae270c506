"""Exercise c: where speculation stops helping as the batch grows, and a gate that knows.

    python bench/exercises/c_batch_gate.py --plot c.png

A step of one sequence waits for the weights, and drafts ride along; a step of many computes, and
every draft that is rejected takes time from somebody. So a fixed k pays up to some batch size and
costs beyond it. "auto" weighs rows, closes where drafting loses and probes its way back: it should
be as fast as the best fixed k where that pays, and as plain decoding where none does.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bench.exercises.common import PLAIN, Lab, draw, options, show
from specfast.batch_bench import filling, throughputs
from specfast.intervals import Interval, bootstrap
from specfast.measure import compare
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

FIXED = (2, 5)
SIZES = (1, 4, 16, 64, 128)


def main() -> None:
    given = options(__doc__, num_prompts=12, max_tokens=32)
    given.add_argument(
        "--sizes", type=lambda text: [int(n) for n in text.split(",")], default=list(SIZES)
    )
    given.add_argument("--k", type=lambda text: [int(n) for n in text.split(",")], default=FIXED)
    given.add_argument("--speculative-config", type=json.loads, default={"method": "ngram"})
    given.add_argument("--cycles", type=int, default=1)
    parsed = given.parse_args()
    table = {size: speeds(parsed, size) for size in parsed.sizes}
    names = list(table[parsed.sizes[0]])
    rows = [(n, *(written(table[size][n]) for size in parsed.sizes)) for n in names]
    show("Tokens a second of the whole batch, over plain decoding", ("", *map(str, table)), rows)

    def paint(axes: Any) -> None:
        for name in names:
            axes.plot(
                table, [found[name].value for found in table.values()], marker="o", label=name
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("sequences decoding together")
        axes.set_ylabel("throughput over plain decoding")
        axes.legend()

    draw(parsed.plot, paint)


def speeds(parsed: Any, size: int) -> dict[str, Interval]:
    """Each arm's throughput over plain decoding's, batches paired."""
    parsed.batch_size = size
    params = SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens, ignore_eos=True)
    lab = Lab(parsed, params)
    base = parsed.speculative_config
    deepest = {**base, "num_speculative_tokens": max(parsed.k)}
    settings = {
        f"k = {k}": {**base, "num_speculative_tokens": k, "policy": "fixed"} for k in parsed.k
    }
    settings |= {"auto": {**deepest, "policy": "auto"}}
    plain = lab.arm(PLAIN, None)
    tasks = filling(lab.tasks(plain), size)
    arms = [plain, *(lab.arm(n, SpeculativeConfig.from_dict(s)) for n, s in settings.items())]
    compared = compare(arms, tasks, cycles=parsed.cycles, batch_size=size)
    found = {arm.name: throughputs(compared, arm.name, size) for arm in arms}
    differing = compared.differing(*found)
    assert not differing, f"answers differ: {differing}"
    return {
        name: bootstrap(np.log(found[name] / found[PLAIN]), np.mean, np.exp) for name in settings
    }


def written(ratio: Interval) -> str:
    if np.isnan(ratio.low):
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


if __name__ == "__main__":
    main()
