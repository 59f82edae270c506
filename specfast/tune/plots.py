"""A tuning's pictures, a PNG each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specfast.control.cost_profile import CostProfile
from specfast.intervals import Interval
from specfast.tune.trial import AUTO
from specfast.tune.tuning import TuneReport

Axes = Any


def draw_all(report: TuneReport, folder: Path) -> list[Path]:
    """Writes what there is to draw into a folder, which is made; -> the files."""
    pictures: dict[str, Callable[[Axes], None]] = {
        "speedup_by_k": lambda axes: _speedup_by_k(report, axes),
        "prediction": lambda axes: _prediction(report, axes),
        "acceptance_by_position": lambda axes: _by_position(report, axes),
        "acceptance_by_category": lambda axes: _by_category(report, axes),
        "step_cost": lambda axes: _step_cost(report.profile, axes),
    }
    if len(report.trials) > 1:
        pictures["speedup_by_batch"] = lambda axes: _speedup_by_batch(report, axes)
    return [_save(draw, folder / f"{name}.png") for name, draw in pictures.items()]


def draw_profile(profile: CostProfile, folder: Path) -> Path:
    return _save(lambda axes: _step_cost(profile, axes), folder / "step_cost.png")


def _save(draw: Callable[[Axes], None], path: Path) -> Path:
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize="small")
    figure.savefig(path, format="png", dpi=150)
    return path


def _speedup_by_k(report: TuneReport, axes: Axes) -> None:
    """Lines are predictions (dashed: closed form), points measurements with their intervals."""
    trial, ks = report.main, report.settings.ks
    for number, (name, found) in enumerate(trial.predictions.items()):
        colour = f"C{number}"
        axes.plot(ks, [p.survival for p in found], color=colour, label=name)
        axes.plot(ks, [p.closed for p in found], color=colour, linestyle="--", linewidth=0.8)
        for k in ks:
            if measured := trial.measured(name, k):
                _point(axes, k, measured, colour)
    _plain_line(axes)
    axes.set(xlabel="k", ylabel="speed-up", xticks=ks, title="Speed-up by drafts a step")


def _prediction(report: TuneReport, axes: Axes) -> None:
    """On the diagonal a prediction is right; dotted: 15 % off."""
    trial = report.main
    ends = [1.0]
    for number, (name, found) in enumerate(trial.predictions.items()):
        for p in found:
            if measured := trial.measured(name, p.k):
                label = name if p.k == trial.ks[name] else None
                _point(axes, p.survival, measured, f"C{number}", label)
                ends += [p.survival, measured.value]
    span = np.array([0.9 * np.nanmin(ends), 1.1 * np.nanmax(ends)])
    axes.plot(span, span, color="black", linewidth=0.8)
    for factor in (1 / 1.15, 1.15):
        axes.plot(span, span * factor, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="predicted", ylabel="measured", title="Speed-up on the other half")


def _by_position(report: TuneReport, axes: Axes) -> None:
    for name, found in report.main.fits.items():
        survival = found.acceptance.survival
        axes.plot(range(1, len(survival) + 1), survival, marker=".", label=name)
    axes.set(xlabel="depth", ylabel="of all steps", ylim=(0, 1), title="Drafts accepted at a depth")


def _by_category(report: TuneReport, axes: Axes) -> None:
    fits = report.main.fits
    width = 0.8 / len(fits)
    for number, (name, found) in enumerate(fits.items()):
        lengths = [a.num_tokens / max(a.num_steps, 1) for a in found.by_category.values()]
        places = np.arange(len(lengths)) + width * (number - (len(fits) - 1) / 2)
        axes.bar(places, lengths, width, label=name)
        axes.set_xticks(range(len(lengths)), list(found.by_category), fontsize="small")
    _plain_line(axes)
    axes.set(ylabel="tokens a step", title="Acceptance by category")


def _speedup_by_batch(report: TuneReport, axes: Axes) -> None:
    """Fixed at the k that was measured; dashed: auto."""
    sizes = [t.batch_size for t in report.trials]
    for number, candidate in enumerate(report.settings.candidates):
        name, colour = candidate.name, f"C{number}"
        for trial in report.trials:
            if measured := trial.measured(name, trial.ks[name]):
                _point(axes, trial.batch_size, measured, colour)
        fixed = [t.measured(name, t.ks[name]) for t in report.trials]
        auto = [t.measured(name, AUTO) for t in report.trials]
        axes.plot(sizes, [m.value if m else np.nan for m in fixed], color=colour, label=name)
        axes.plot(sizes, [m.value if m else np.nan for m in auto], color=colour, linestyle="--")
    _plain_line(axes)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch size", ylabel="speed-up", xticks=sizes, xticklabels=sizes)


def _step_cost(profile: CostProfile, axes: Axes) -> None:
    axes.plot(profile.rows, 1e3 * np.array(profile.seconds), marker=".", label="measured")
    if np.isfinite(profile.ridge_point):
        label = f"ridge point, {profile.ridge_point:.0f} rows"
        axes.axvline(profile.ridge_point, color="black", linestyle="--", linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="rows", ylabel="ms a step", title="What a step of the target takes")


def _point(axes: Axes, x: float, measured: Interval, colour: str, label: str | None = None) -> None:
    below, above = measured.value - measured.low, measured.high - measured.value
    spread = None if np.isnan(below + above) else [[below], [above]]
    axes.errorbar([x], [measured.value], spread, color=colour, marker="o", capsize=3, label=label)


def _plain_line(axes: Axes) -> None:
    axes.axhline(1.0, color="black", linewidth=0.8)
