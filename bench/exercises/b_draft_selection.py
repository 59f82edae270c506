"""Exercise b: three drafters, what a formula promises of each, and what they bring.

    python bench/exercises/b_draft_selection.py --plot b.png

A drafter is known by three figures: a, of the drafts judged the share accepted; c, what drafting
one token takes, and v, what verifying it takes, both in plain steps. k drafts a step should then
make decoding (1 - a^(k+1)) / ((1 - a)(1 + c k + v k)) times as fast. That takes every draft to be
accepted with the same probability; the survival curve, counted on the same prompts, does not. All
figures come from one half of the prompts by `specfast tune`, and are held against the other half.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.exercises.common import check_same, counts, draw, names, options, prompts, show
from specfast.config import EngineConfig
from specfast.models.committed import DRAFTS_OF
from specfast.sampling_params import SamplingParams
from specfast.tune.candidates import candidates
from specfast.tune.prediction import Prediction, closed_speedup
from specfast.tune.report import percent, spread, times
from specfast.tune.trial import Trial
from specfast.tune.tuning import TuneSettings, run_tune

METHODS = ("draft_model", "eagle", "medusa")
COLUMNS = (
    *("drafter", "k", "a", "c", "v", "formula", "survival", "measured"),
    *("formula's error", "survival's error"),
)


def main() -> None:
    given = options(__doc__, num_prompts=8, max_tokens=64)
    given.add_argument("--candidates", type=names, help="default: three made for the model")
    given.add_argument("--k", type=counts, default=(1, 2, 4))
    parsed = given.parse_args()
    report = run_tune(settings(parsed), prompts(parsed))
    check_same(report.differing)
    trial = report.main
    rows = [row(trial, name, p) for name, found in trial.predictions.items() for p in found]
    show("Speed over plain decoding, predicted and measured", COLUMNS, rows)
    draw(parsed.plot, lambda axes: paint(trial, axes))


def settings(parsed: argparse.Namespace) -> TuneSettings:
    """Every k is measured; the drafters are those that the package carries, if none is named."""
    chosen = parsed.candidates or [DRAFTS_OF.get(parsed.model, {}).get(m) or m for m in METHODS]
    return TuneSettings(
        EngineConfig(parsed.model),
        SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens),
        tuple(candidates(chosen, parsed.model)),
        ks=tuple(sorted(parsed.k)),
        batch_sizes=(parsed.batch_size,),
        every_k=True,
        leaves_out_long=parsed.dataset is None,
    )


def row(trial: Trial, name: str, p: Prediction) -> tuple[object, ...]:
    measured = trial.measured(name, p.k)
    assert measured
    promised = formula(trial, name, p)
    figures = (f"{x:.2f}" for x in (alpha(trial, name), p.c, p.v))
    errors = (percent(x / measured.value - 1) for x in (promised, p.survival))
    return (name, p.k, *figures, times(promised), times(p.survival), spread(measured), *errors)


def formula(trial: Trial, name: str, p: Prediction) -> float:
    return closed_speedup(alpha(trial, name), p.k, p.c, p.v)


def alpha(trial: Trial, name: str) -> float:
    return trial.fits[name].acceptance.alpha


def paint(trial: Trial, axes: Any) -> None:
    """Dashed: the formula; lines: by survival; points: measured."""
    for number, (name, found) in enumerate(trial.predictions.items()):
        colour, ks = f"C{number}", [p.k for p in found]
        axes.plot(ks, [formula(trial, name, p) for p in found], "--", color=colour)
        axes.plot(ks, [p.survival for p in found], color=colour, label=name)
        measured = [m.value for k in ks if (m := trial.measured(name, k))]
        axes.scatter(ks, measured, color=colour)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="k", ylabel="decoding speed over plain decoding", xticks=ks)
    axes.legend(title="dashed: formula; line: survival; points: measured", fontsize="small")


if __name__ == "__main__":
    main()
