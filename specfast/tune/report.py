"""A tuning's results as plain values, and as a page of Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from collections.abc import Sequence as Seqs
from dataclasses import asdict
from typing import Any

from specfast.control.cost_profile import CostProfile
from specfast.intervals import Interval
from specfast.machine import cpu_name
from specfast.tune.memory import CONTEXT, Memory
from specfast.tune.trial import AUTO, Trial
from specfast.tune.tuning import TuneReport

Row = Seqs[object]


def to_dict(report: TuneReport) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "recommended": report.recommended,
        "reasons": list(report.reasons),
        "identical": not report.differing,
        "differing": report.differing,
        "trials": [_trial_values(report, trial) for trial in report.trials],
        "memory": {
            name: {
                **asdict(m),
                "num_tokens_given_up": m.num_tokens_given_up,
                "num_sequences_given_up": m.num_sequences_given_up,
            }
            for name, m in report.memories.items()
        },
        "profile": profile_values(report.profile),
        "settings": asdict(report.settings),
        "machine": {"cpu": cpu_name(), "num_threads": report.num_threads},
        "load": {**asdict(report.load), "warnings": report.load.warnings},
    }


def profile_values(profile: CostProfile) -> dict[str, Any]:
    return {**asdict(profile), "ridge_point": profile.ridge_point}


def to_markdown(report: TuneReport) -> str:
    """The page: recommendation, prediction beside measurement, acceptance, costs, memory."""
    parts = [f"# Speculation for {report.settings.config.model}", *_recommendation(report)]
    for trial in report.trials:
        header, rows = measurement_table(report, trial)
        parts += [f"## Batch size {trial.batch_size}: prediction and measurement"]
        parts += [markdown_table(header, rows), _CAPTION]
    main = report.main
    parts += ["## Speed-up by k", markdown_table(*k_table(report, main))]
    parts += ["## Costs", markdown_table(*cost_table(main)), _COST_CAPTION]
    parts += ["## Acceptance", markdown_table(*acceptance_table(main))]
    parts += ["## Memory", markdown_table(*memory_table(report.memories)), _MEMORY_CAPTION]
    parts += ["## Conditions", *_conditions(report)]
    return "\n\n".join(parts) + "\n"


_CAPTION = (
    "Predicted on one half of the prompts, measured on the other: decoding speed over plain "
    "decoding; closed: by one acceptance rate. The error is that of the survival curve; "
    "auto is not predicted."
)
_COST_CAPTION = (
    "In plain steps, averaged over all steps at that k: c for drafting, v for what verifying "
    "adds, each for one of k; a step takes 1 + c k + v k."
)
_MEMORY_CAPTION = (
    f"Given up: what the KV budget holds less, the drafter's weights and KV taken out of it; in "
    f"tokens, and in sequences of {CONTEXT} tokens at once."
)


def measurement_table(report: TuneReport, trial: Trial) -> tuple[Row, list[Row]]:
    """Prediction beside measurement, a candidate a row; in brackets behind k a tree's nodes."""
    header = ("candidate", "k", "closed", "survival", "measured", "error", AUTO)
    rows: list[Row] = []
    for candidate in report.settings.candidates:
        name = candidate.name
        p = trial.chosen[name]
        depth = f"{p.k} ({candidate.max_nodes(p.k)})" if candidate.tree else p.k
        rows.append(
            (
                *(name, depth, times(p.closed), times(p.survival)),
                *(spread(trial.measured(name, p.k)), percent(trial.error(name))),
                spread(trial.measured(name, AUTO)),
            )
        )
    return header, rows


def k_table(report: TuneReport, trial: Trial) -> tuple[Row, list[Row]]:
    """Predicted by the survival curve, in brackets in closed form, and measured where it was."""
    ks = report.settings.ks
    rows: list[Row] = []
    for name, found in trial.predictions.items():
        cells = []
        for p in found:
            measured = trial.measured(name, p.k)
            cell = f"{times(p.survival)} ({times(p.closed)})"
            cells.append(f"{cell}, measured {times(measured.value)}" if measured else cell)
        rows.append((name, *cells))
    return ("candidate", *(f"k = {k}" for k in ks)), rows


def cost_table(trial: Trial) -> tuple[Row, list[Row]]:
    """What a step with the k measured is made of."""
    rows: list[Row] = []
    for name, p in trial.chosen.items():
        a, ms = trial.fits[name].acceptance.alpha, 1e3 * trial.fits[name].cost.plain_seconds
        cost = 1 + p.c * p.k + p.v * p.k
        numbers = (f"{p.c:.3f}", f"{p.v:.3f}", f"{cost:.2f}", f"{p.tokens_per_step:.2f}")
        rows.append((name, p.k, f"{a:.2f}", *numbers, f"{ms:.2f}"))
    return ("candidate", "k", "a", "c", "v", "1 + ck + vk", "tokens a step", "plain ms"), rows


def acceptance_table(trial: Trial) -> tuple[Row, list[Row]]:
    """All categories, then each: of all steps, those that accepted a draft at each depth."""
    header = ("candidate", "prompts", "a", "steps with drafts", "accepted at depth 1, 2, ...")
    rows: list[Row] = []
    for name, found in trial.fits.items():
        for category, a in {"all": found.acceptance, **found.by_category}.items():
            positions = " ".join(f"{share:.2f}" for share in a.survival)
            rows.append((name, category, f"{a.alpha:.2f}", f"{a.proposing:.0%}", positions))
    return header, rows


def memory_table(memories: dict[str, Memory]) -> tuple[Row, list[Row]]:
    header = ("candidate", "weights", "KV a token", "KV tokens given up", "sequences at 4k")
    rows: list[Row] = [
        (
            *(name, f"{m.weight_bytes / 2**20:.1f} MiB", f"{m.kv_bytes_per_token} bytes"),
            *(f"{m.num_tokens_given_up:,}", f"{m.num_sequences_given_up:.1f}"),
        )
        for name, m in memories.items()
    ]
    return header, rows


def profile_table(profile: CostProfile) -> tuple[Row, list[Row]]:
    """What a step takes by its rows."""
    single = profile.seconds[0]
    table: list[Row] = [
        (rows, f"{1e3 * seconds:.2f}", times(seconds / single), f"{rows / seconds:,.0f}")
        for rows, seconds in zip(profile.rows, profile.seconds)
    ]
    return ("rows", "ms a step", "over one row", "rows a second"), table


def ridge_text(profile: CostProfile) -> str:
    """The profile's other two figures, in words."""
    ridge = profile.ridge_point
    at = (
        f"Ridge point: {ridge:.0f} rows; a step of more is bound by computing, and drafts only pay "
        "below."
        if math.isfinite(ridge)
        else "No ridge point: steps of many rows take no longer than those of one here."
    )
    context = 1e9 * profile.context_seconds
    return f"{at} Each token of context adds {context:.0f} ns a row."


def recommendation_text(report: TuneReport) -> str:
    """The ready speculative_config as one line of JSON, or the advice to have none."""
    found = report.recommended
    return json.dumps(found) if found else "Leave speculation off: plain decoding."


def times(ratio: float) -> str:
    return "unknown" if math.isnan(ratio) else f"{ratio:.2f}x"


def percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{share:+.0%}"


def spread(interval: Interval | None) -> str:
    """A speed-up with its 95 % interval."""
    if interval is None or math.isnan(interval.value):
        return "unknown"
    if math.isnan(interval.low):
        return f"{interval.value:.2f}x (too few)"
    return f"{interval.value:.2f}x ({interval.low:.2f}-{interval.high:.2f})"


def markdown_table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _trial_values(report: TuneReport, trial: Trial) -> dict[str, Any]:
    """A trial: what was predicted, what came, and the arms' summaries."""
    names = [c.name for c in report.settings.candidates]
    return {
        "batch_size": trial.batch_size,
        "workload": asdict(trial.workload),
        "candidates": {name: _candidate_values(trial, name) for name in names},
        "arms": {arm: asdict(trial.comparison.summary(arm)) for arm in trial.comparison.samples},
    }


def _candidate_values(trial: Trial, name: str) -> dict[str, Any]:
    found = trial.fits[name]
    arms: list[int | str] = [*(p.k for p in trial.predictions[name]), AUTO]
    measured = {str(k): trial.measured(name, k) for k in arms}
    return {
        "best_k": trial.ks[name],
        "error": trial.error(name),
        "closed_error": trial.closed_error(name),
        "predictions": [asdict(p) for p in trial.predictions[name]],
        "measured": {k: asdict(interval) for k, interval in measured.items() if interval},
        "acceptance": asdict(found.acceptance),
        "acceptance_by_category": {c: asdict(a) for c, a in found.by_category.items()},
        "cost": asdict(found.cost),
    }


def _recommendation(report: TuneReport) -> list[str]:
    found = recommendation_text(report)
    body = f"```json\n{found}\n```" if report.recommended else f"**{found}**"
    return ["## Recommendation", body, "\n".join(f"- {r}" for r in report.reasons)]


def _conditions(report: TuneReport) -> list[str]:
    s, num_tasks = report.settings, len(report.main.comparison.tasks)
    same = (
        "All arms answered with the same bytes."
        if not report.differing
        else f"Outputs DIFFER on {', '.join(report.differing)}."
    )
    return [
        f"{cpu_name()}, threads: {report.num_threads}. {num_tasks} tasks in the measured half, at "
        f"most {s.params.max_tokens} tokens each, temperature {s.params.temperature}. {same}",
        *report.load.warnings,
        ridge_text(report.profile),
    ]
