"""Exercise d: a depth that adapts against every fixed one, on a workload of all kinds.

    python bench/exercises/d_adaptive_k.py --plot d.png

Code and summaries are worth deep drafts, prose is worth few: no single k suits a mixed workload.
"simple" goes up and down with each request's acceptance, "auto" weighs what a row costs against
how likely it is to be accepted. All arms answer the same prompts in turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seqs
from typing import Any

from bench.exercises.common import PLAIN, Lab, check_same, counts, draw, options, show
from specfast.measure import Comparison, compare
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

CATEGORIES = ("code_editing", "prose", "summarisation")
FIXED = (1, 2, 4, 8)


def main() -> None:
    given = options(__doc__, num_prompts=9, max_tokens=96, categories=CATEGORIES)
    given.add_argument("--speculative-config", type=json.loads, default={"method": "ngram"})
    given.add_argument("--k", type=counts, default=FIXED)
    given.add_argument("--cycles", type=int, default=1)
    parsed = given.parse_args()
    lab = Lab(parsed, SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens))
    plain = lab.arm(PLAIN, None)
    chosen = settings(parsed.speculative_config, parsed.k)
    arms = [plain, *(lab.arm(*setting) for setting in chosen.items())]
    compared = compare(arms, lab.tasks(plain), cycles=parsed.cycles, batch_size=parsed.batch_size)
    best = max(list(chosen)[: len(parsed.k)], key=lambda name: compared.ratio(name, PLAIN).value)
    columns = ("depth", "all", *compared.categories, f"over {best}, all")
    show("Speed over plain decoding", columns, [row(compared, name, best) for name in chosen])
    check_same(compared.differing(PLAIN, *chosen))
    draw(parsed.plot, lambda axes: paint(compared, list(chosen), axes))


def settings(base: dict[str, Any], ks: Seqs[int]) -> dict[str, SpeculativeConfig]:
    """Each fixed k, then the policies that adapt."""
    fixed = {f"k = {k}": {"num_speculative_tokens": k, "policy": "fixed"} for k in ks}
    deepest = max(ks)
    adaptive = {p: {"num_speculative_tokens": deepest, "policy": p} for p in ("simple", "auto")}
    chosen = {**fixed, **adaptive}
    return {name: SpeculativeConfig.from_dict({**base, **v}) for name, v in chosen.items()}


def row(compared: Comparison, name: str, best: str) -> list[str]:
    found = [compared.ratio(name, PLAIN, c) for c in (None, *([c] for c in compared.categories))]
    over = compared.ratio(name, best)
    interval = f"{over.value:.3f} ({over.low:.3f} to {over.high:.3f})"
    return [name, *(f"{r.value:.2f}x" for r in found), interval]


def paint(compared: Comparison, names: Seqs[str], axes: Any) -> None:
    for category in compared.categories:
        ratios = [compared.ratio(name, PLAIN, [category]).value for name in names]
        axes.plot(names, ratios, marker="o", label=category)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("decoding speed over plain decoding")
    axes.legend()


if __name__ == "__main__":
    main()
