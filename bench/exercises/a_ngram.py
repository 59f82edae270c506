"""Exercise a: prompt lookup on summaries, code with context and creative writing.

    python bench/exercises/a_ngram.py --plot a.png

Prompt lookup drafts what followed the last time the text ended like this, so it pays where answers
copy. How much they copy is read off plain decoding's answers, before anything is sped up: of their
runs of four tokens, how many stand in the prompt, how many only earlier in the answer, and of
their tokens, how many a lookup of the three before would have said. Beside it, what came of that:
how often there was something to draft, how much of it was accepted, and how much faster it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seqs
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.exercises.common import PLAIN, Lab, check_same, draw, options, show
from specfast.intervals import Interval
from specfast.measure import Comparison, compare
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.speculative_config import SpeculativeConfig
from specfast.tune.decision import MATCH, copied_share
from specfast.tune.report import spread

CATEGORIES = ("summarisation", "code_editing", "prose")
NGRAM = "ngram"
RUN = MATCH + 1  # tokens that have to match, and the one they foretell


@dataclass(frozen=True)
class Origins:
    """Where answers have their runs of RUN tokens from: [in the prompt, else earlier in the
    answer], and the share of their tokens that a lookup says.
    """

    in_prompt: float
    in_answer: float
    said: float

    @classmethod
    def of(cls, prompt: Seqs[int], answer: Seqs[int]) -> Origins:
        known, own = set(runs(prompt)), set()
        in_prompt, in_answer = [], []
        for run in runs(answer):
            in_prompt.append(run in known)
            in_answer.append(run in own and run not in known)
            own.add(run)
        return cls(share(in_prompt), share(in_answer), copied_share(prompt, answer))

    @classmethod
    def mean(cls, all_of_them: Iterable[Origins]) -> Origins:
        rows = [(o.in_prompt, o.in_answer, o.said) for o in all_of_them]
        return cls(*(float(x) for x in np.mean(rows, axis=0)))


@dataclass(frozen=True)
class Finding:
    """What one category came to."""

    category: str
    origins: Origins
    stats: SpecStats
    speedup: Interval

    @classmethod
    def of(cls, compared: Comparison, category: str) -> Finding:
        chosen = [i for i, task in enumerate(compared.tasks) if task.category == category]
        plain, ngram = ([compared.samples[a][i] for i in chosen] for a in (PLAIN, NGRAM))
        prompts = [compared.tasks[i].prompt_token_ids for i in chosen]
        origins = [Origins.of(p, repeats[0].token_ids) for p, repeats in zip(prompts, plain)]
        stats = sum((s.stats for repeats in ngram for s in repeats), SpecStats())
        speedup = compared.ratio(NGRAM, PLAIN, [category])
        return cls(category, Origins.mean(origins), stats, speedup)

    @property
    def row(self) -> tuple[str, ...]:
        o, s = self.origins, self.stats
        shares = (o.in_prompt, o.in_answer, o.said, s.num_drafts / s.num_sequence_steps)
        return (
            *(self.category, *(f"{x:.0%}" for x in shares), f"{s.acceptance_rate:.0%}"),
            *(f"{s.tokens_per_iteration:.2f}", f"{s.draft_time_fraction:.1%}"),
            spread(self.speedup),
        )


COLUMNS = (
    *("category", "in the prompt", "else in the answer", "lookup right", "steps with drafts"),
    *("accepted", "tokens a step", "drafting", "speed-up"),
)


def main() -> None:
    given = options(__doc__, num_prompts=18, max_tokens=128, categories=CATEGORIES)
    parsed = given.parse_args()
    lab = Lab(parsed, SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens))
    plain = lab.arm(PLAIN, None)
    arms = [plain, lab.arm(NGRAM, SpeculativeConfig("ngram", 8))]
    compared = compare(arms, lab.tasks(plain), batch_size=parsed.batch_size)
    findings = [Finding.of(compared, category) for category in compared.categories]
    show("Prompt lookup pays where answers copy", COLUMNS, [f.row for f in findings])
    check_same(compared.differing(PLAIN, NGRAM))
    draw(parsed.plot, lambda axes: paint(findings, axes))


def runs(tokens: Seqs[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1)]


def share(flags: Seqs[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def paint(findings: Seqs[Finding], axes: Any) -> None:
    for found in findings:
        place = (found.origins.said, found.speedup.value)
        axes.scatter(*place)
        axes.annotate(found.category, place)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("share of the answer's tokens that a lookup would have said")
    axes.set_ylabel("decoding speed over plain decoding")


if __name__ == "__main__":
    main()
