"""Exercise a: prompt lookup on summaries, code with context and creative writing.

    python bench/exercises/a_ngram.py --plot a.png

Prompt lookup drafts what followed the last time the text ended like this, so it pays where answers
copy: "copied" is the share of plain decoding's own tokens that such a lookup (three tokens that
occurred before, and what followed the last time) would have said, and is known before anything is
sped up. Categories with a higher share are faster, and by about as much.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.exercises.common import PLAIN, Lab, draw, options, show
from specfast.measure import Sample, Task, compare
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

CATEGORIES = ("summarisation", "code_editing", "prose")
LOOKUP = 3  # tokens that have to match


def main() -> None:
    given = options(__doc__, num_prompts=12, max_tokens=128, categories=CATEGORIES)
    parsed = given.parse_args()
    lab = Lab(parsed, SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens))
    plain = lab.arm(PLAIN, None)
    ngram = lab.arm("ngram", SpeculativeConfig("ngram", 8))
    compared = compare([plain, ngram], lab.tasks(plain))
    rows, points = [], []
    for category in compared.categories:
        speedup = compared.ratio("ngram", PLAIN, [category])
        found = compared.summary("ngram", [category])
        copied = np.mean(
            [
                share_copied(task, samples[0])
                for task, samples in zip(compared.tasks, compared.samples[PLAIN])
                if task.category == category
            ]
        )
        points.append((category, copied, speedup.value))
        interval = f"{speedup.low:.2f} to {speedup.high:.2f}"
        rows.append(
            (category, f"{copied:.0%}", f"{speedup.value:.2f}x", interval,
             f"{found.acceptance_rate:.0%}", f"{found.acceptance_length:.2f}",
             f"{found.draft_time_fraction:.1%}")
        )  # fmt: skip
    columns = ("category", "copied", "speed-up", "95 %", "accepted", "tokens a step", "drafting")
    show("Prompt lookup pays where answers copy", columns, rows)
    if differing := compared.differing(PLAIN, "ngram"):
        raise SystemExit(f"answers differ: {', '.join(differing)}")

    def paint(axes: Any) -> None:
        for category, copied, speedup in points:
            axes.scatter(copied, speedup)
            axes.annotate(category, (copied, speedup))
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel("share of the answer's tokens that a lookup would have said")
        axes.set_ylabel("decoding speed over plain decoding")

    draw(parsed.plot, paint)


def share_copied(task: Task, sample: Sample) -> float:
    """Of an answer's tokens, those that followed the last time the LOOKUP tokens before them
    occurred.
    """
    tokens = (*task.prompt_token_ids, *sample.token_ids)
    start, followed, copied = len(task.prompt_token_ids), {}, 0
    for at in range(LOOKUP, len(tokens)):
        key = tokens[at - LOOKUP : at]
        copied += at >= start and followed.get(key) == tokens[at]
        followed[key] = tokens[at]
    return copied / max(len(sample.token_ids), 1)


if __name__ == "__main__":
    main()
