"""Speed-up against batch size, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from specfast.cli.bench_report import range_of
from specfast.cli.console import INVALID, out_console, warn

if TYPE_CHECKING:
    from specfast.batch_bench import BatchReport

COLUMNS = (
    *("batch", "speed-up", "95 % interval", "plain tok/s", "speculative tok/s"),
    *("acceptance rate", "acceptance length", "gated"),
)


def print_batches(report: BatchReport) -> None:
    console = out_console()
    table = Table(title="Speculation over plain decoding; tok/s of the whole batch")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    found = [(result, result.to_dict()) for result in report.results]
    for result, values in found:
        table.add_row(
            str(result.batch_size),
            f"{result.speedup.value:.2f}x",
            range_of(result.speedup, 2),
            *(f"{rate:.1f}" for rate in values["throughput"].values()),
            f"{values['acceptance_rate']:.0%}",
            f"{values['acceptance_length']:.2f}",
            f"{values['gated_share']:.0%}",
        )
    console.print(table)
    for result, values in found:
        if result.num_repeated:
            warn(
                f"Batch {result.batch_size} repeats prompts: {result.num_repeated} of "
                f"{values['num_requests']} are copies, which share a prompt's KV."
            )
    for warning in report.load.warnings:
        warn(warning)
    console.print(_verdict(report), soft_wrap=True)


def _verdict(report: BatchReport) -> str:
    identical = report.to_dict()["identical"]
    if report.settings.is_synthetic:
        return f"Outputs are not compared: {INVALID}."
    if identical is None:
        return "Outputs are not compared: the rule of verification draws others."
    return f"Outputs {'are the same bytes' if identical else 'DIFFER'} with speculation on and off."


def draw_batches(report: BatchReport, path: Path) -> None:
    """The speed-up against the batch size, on a logarithmic axis, with its intervals."""
    from matplotlib.figure import Figure

    sizes = [r.batch_size for r in report.results]
    speedups = [r.speedup for r in report.results]
    errors = [[s.value - s.low for s in speedups], [s.high - s.value for s in speedups]]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(sizes, [s.value for s in speedups], yerr=errors, marker="o", capsize=3)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlabel("batch size")
    axes.set_ylabel("decoding speed over plain decoding")
    axes.set_title(f"{report.settings.config.model}, {report.settings.speculation.method}")
    figure.savefig(path, format="png", dpi=150)
