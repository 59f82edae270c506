"""Exercise c: where speculation stops helping as the batch grows, and a gate that knows.

    python bench/exercises/c_batch_gate.py --plot c.png

A step of one sequence waits for the weights, and drafts ride along; a step of many computes, and
every draft that is rejected takes time from somebody. So a fixed k pays up to some batch size and
costs beyond it. "auto" weighs rows, closes where drafting loses and probes its way back: it should
be as fast as fixed k where that pays, and as plain decoding where it does not. A request's speed
counts from when the whole batch decodes. A run is short for a gate: the table says how many steps
"auto" had, the warm-up's included, and in what share of them a sequence was not let draft.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from typing import Any

from bench.exercises.common import PLAIN, Lab, check_same, counts, draw, options, show
from specfast.batch_bench import filling
from specfast.intervals import Interval
from specfast.measure import Comparison, Sample, compare
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.speculative_config import SpeculativeConfig
from specfast.tune.report import spread

AUTO = "auto"
SIZES = (1, 4, 16, 64, 128)


@dataclass(frozen=True)
class Finding:
    """One batch size. speedups: of each arm over plain decoding; auto: what that arm's engine
    counted.
    """

    batch_size: int
    speedups: dict[str, Interval]
    auto: SpecStats

    @property
    def row(self) -> tuple[object, ...]:
        speedups = map(spread, self.speedups.values())
        return (self.batch_size, *speedups, self.auto.num_steps, f"{self.auto.gated_share:.0%}")


def main() -> None:
    given = options(__doc__, num_prompts=4, max_tokens=24)
    given.add_argument("--sizes", type=counts, default=SIZES)
    given.add_argument("--k", type=counts, default=(4,))
    given.add_argument("--speculative-config", type=json.loads, default={"method": "ngram"})
    given.add_argument("--cycles", type=int, default=1)
    parsed = given.parse_args()
    findings = [at_size(parsed, size) for size in parsed.sizes]
    columns = ("batch", *findings[0].speedups, "steps of auto", "kept from drafting")
    show("Decoding speed over plain decoding", columns, [f.row for f in findings])
    draw(parsed.plot, lambda axes: paint(findings, axes))


def at_size(parsed: argparse.Namespace, size: int) -> Finding:
    parsed.batch_size = size
    params = SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens, ignore_eos=True)
    lab = Lab(parsed, params)
    plain = lab.arm(PLAIN, None)
    tasks = filling(lab.tasks(plain), size)
    arms = [lab.arm(*setting) for setting in settings(parsed).items()]
    compared = compare([plain, *arms], tasks, cycles=parsed.cycles, batch_size=size)
    check_same(compared.differing(*compared.samples))
    together = decoding(compared, size)
    speedups = {arm.name: together.ratio(arm.name, PLAIN) for arm in arms}
    return Finding(size, speedups, arms[-1].engine.metrics.stats)


def settings(parsed: argparse.Namespace) -> dict[str, SpeculativeConfig]:
    """Each fixed k without a gate; then "auto", up to the largest."""
    chosen = {f"k = {k}": {"num_speculative_tokens": k, "policy": "fixed"} for k in parsed.k}
    chosen[AUTO] = {"num_speculative_tokens": max(parsed.k), "policy": AUTO}
    base = parsed.speculative_config
    return {name: SpeculativeConfig.from_dict({**base, **v}) for name, v in chosen.items()}


def decoding(compared: Comparison, size: int) -> Comparison:
    """The same without what was emitted before every request of its batch had its first token."""
    samples = {}
    for arm, found in compared.samples.items():
        batches = [found[i : i + size] for i in range(0, len(found), size)]
        samples[arm] = tuple(zip_all(map(whole_batch, zip(*b)) for b in batches))
    return Comparison(compared.tasks, samples)


def zip_all(batches: Any) -> list[tuple[Sample, ...]]:
    return [repeats for batch in batches for repeats in zip(*batch)]


def whole_batch(batch: Seqs[Sample]) -> list[Sample]:
    start = max(s.times[0] for s in batch)
    return [replace(s, times=(start, *(t for t in s.times if t > start))) for s in batch]


def paint(findings: Seqs[Finding], axes: Any) -> None:
    sizes = [f.batch_size for f in findings]
    for name in findings[0].speedups:
        axes.plot(sizes, [f.speedups[name].value for f in findings], marker="o", label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, map(str, sizes))
    axes.set_xlabel("sequences decoding together")
    axes.set_ylabel("decoding speed over plain decoding")
    axes.legend()


if __name__ == "__main__":
    main()
