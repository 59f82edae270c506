"""A benchmark's report as tables and as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from specfast.cli.console import INVALID, out_console, warn

if TYPE_CHECKING:
    from specfast.bench import BenchReport
    from specfast.intervals import Interval
    from specfast.measure import Summary

RATIOS = {
    "spec_vs_plain": "speculation over plain decoding",
    "plain_vs_transformers": "plain over transformers' best",
    "plain_fp32_vs_transformers_fp32": "plain over transformers, both float32",
    "spec_vs_transformers_lookup": "speculation over transformers' prompt lookup",
    "rows5_vs_rows1": "a step with 5 rows over one with 1",
}


def print_report(report: BenchReport) -> None:
    console = out_console()
    console.print(_arms_table(report))
    console.print(_speedup_table(report))
    _print_acceptance(console, report)
    _print_ratios(console, report)
    for warning in report.load.warnings:
        warn(warning)
    _print_verdict(console, report)


def _arms_table(report: BenchReport) -> Table:
    table = Table(title="Median over prompts, with 95 % intervals")
    columns = ("arm", "tok/s", "with the prompt", "first token", "between tokens p50 / p99")
    for name in columns:
        table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=name == "arm")
    for name in report.comparison.samples:
        s = report.comparison.summary(name)
        table.add_row(
            name,
            f"{s.decode_rate.value:.1f} {range_of(s.decode_rate, 1)}",
            f"{s.total_rate.value:.1f}",
            f"{1e3 * s.time_to_first_token.value:.0f} ms",
            f"{1e3 * s.inter_token_latency_p50:.1f} / {1e3 * s.inter_token_latency_p99:.1f} ms",
        )
    return table


def _speedup_table(report: BenchReport) -> Table:
    table = Table(title="Speculation over plain decoding")
    for name in ("prompts", "speed-up", "95 % interval", "acceptance rate", "acceptance length"):
        is_name = name == "prompts"
        table.add_column(name, justify="left" if is_name else "right", no_wrap=is_name)
    for name, speedup in report.speedups.items():
        s = _summary(report, name)
        table.add_row(
            name,
            f"{speedup.value:.2f}x",
            range_of(speedup, 2),
            f"{s.acceptance_rate:.0%}",
            f"{s.acceptance_length:.2f}",
        )
    return table


def _summary(report: BenchReport, name: str) -> Summary:
    from specfast.bench import SPECULATIVE
    from specfast.data import GROUPS

    return report.comparison.summary(SPECULATIVE, GROUPS.get(name, (name,)))


def _print_acceptance(console: Console, report: BenchReport) -> None:
    from specfast.bench import SPECULATIVE

    s = report.comparison.summary(SPECULATIVE)
    positions = " ".join(f"{rate:.2f}" for rate in s.acceptance_per_pos)
    console.print(
        f"Accepted {s.acceptance_rate:.1%} of the drafts (by position {positions}), "
        f"{s.acceptance_length:.2f} tokens a verify step; drafting took "
        f"{s.draft_time_fraction:.2%} of the time.",
        soft_wrap=True,
    )


def _print_ratios(console: Console, report: BenchReport) -> None:
    for name, ratio in report.ratios.items():
        if ratio:
            console.print(
                f"{RATIOS[name]}: {ratio.value:.2f}x {range_of(ratio, 2)}", soft_wrap=True
            )
    cost = report.step_cost
    console.print(
        f"A step of one row takes {1e3 * cost.single_row_seconds:.2f} ms: it reads the weights at "
        f"{cost.bandwidth_share:.2f} of our streaming read's {cost.read_bandwidth / 1e9:.1f} GB/s "
        f"(threads: {report.num_threads}).",
        soft_wrap=True,
    )


def _print_verdict(console: Console, report: BenchReport) -> None:
    speedup = report.ratios["spec_vs_plain"]
    assert speedup
    if report.is_synthetic:
        console.print(f"Outputs are not compared: {INVALID}.", soft_wrap=True)
    elif not report.is_comparable:
        rule = report.settings.speculation.verification
        console.print(f"Outputs are not compared: {rule!r} draws others.", soft_wrap=True)
    elif report.differing:
        console.print(f"Outputs DIFFER on {', '.join(report.differing)}.", soft_wrap=True)
    else:
        console.print("Outputs are the same bytes with speculation on and off.", soft_wrap=True)
    method = report.settings.speculation.method
    if math.isnan(speedup.low):
        verdict = "These prompts are too few for a verdict."
    elif speedup.low > 1:
        verdict = f"{method} makes decoding {speedup.value:.2f}x as fast on these prompts."
    elif speedup.high < 1:
        verdict = f"{method} slows decoding to {speedup.value:.2f}x on these prompts."
    else:
        verdict = f"{method} makes no difference that these prompts could show."
    console.print(verdict, soft_wrap=True)


def range_of(interval: Interval, digits: int) -> str:
    if math.isnan(interval.low):
        return "(too few)"
    return f"({interval.low:.{digits}f} to {interval.high:.{digits}f})"


def draw(report: BenchReport, path: Path) -> None:
    """Bars of the speed-up by category with their intervals: green faster, red slower."""
    from matplotlib.figure import Figure

    speedups = report.speedups
    values = [s.value for s in speedups.values()]
    below = [s.value - s.low for s in speedups.values()]
    above = [s.high - s.value for s in speedups.values()]
    figure = Figure(figsize=(7, 0.6 * len(values) + 1.5), layout="constrained")
    axes = figure.subplots()
    colours = ["tab:green" if v >= 1 else "tab:red" for v in values]
    axes.barh(list(speedups), values, xerr=[below, above], color=colours, capsize=3)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("decoding speed over plain decoding, with 95 % intervals")
    axes.set_title(f"{report.settings.config.model}, {report.settings.speculation.method}")
    figure.savefig(path, format="png", dpi=150)
