"""specfast bench: measures what speculation brings on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specfast.cli.batch_report import draw_batches, print_batches
from specfast.cli.bench_report import draw, print_report
from specfast.cli.console import measuring, note, save_json
from specfast.cli.measuring_options import MeasuringOptions
from specfast.cli.options import (
    ModelOptions,
    SamplingOptions,
    check_counts,
    check_folder_of,
    flag,
    listed,
    option,
)
from specfast.cli.speculation import SpeculationOptions

if TYPE_CHECKING:
    from specfast.batch_bench import BatchReport
    from specfast.bench import BenchReport, BenchSettings
    from specfast.data import Prompt

QUICK_PROMPTS, QUICK_TOKENS = 4, 96


def bench(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    measured: MeasuringOptions,
    batch_size: Annotated[
        int, option("Prompts answered at once, of one category; speeds are one prompt's.")
    ] = 1,
    batch: Annotated[
        str | None,
        option(
            "Several batch sizes in one run, such as 1,4,16,64,128; batches mix categories.",
            unset="--batch-size alone",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option("Compare with 'transformers': its generate and prompt lookup.", unset="none"),
    ] = None,
    quick: Annotated[
        bool,
        flag(
            f"{QUICK_PROMPTS} prompts, {QUICK_TOKENS} tokens each: a look, not a measurement.",
            "--quick",
        ),
    ] = False,
    plot: Annotated[
        Path | None, option("Draw the speed-ups into this PNG file.", unset="none")
    ] = None,
) -> None:
    """Answer the same prompts with speculation on and off, in ABBA order, and compare.

    Decoding speed (tok/s) counts the tokens after the first; ratios are geometric means over
    prompts with bootstrap 95 % intervals. One request runs at a time unless --batch-size says more.
    """
    drafts = speculation.config()
    if drafts is None:
        raise ValueError("bench compares speculation with none; give a --spec-method that drafts.")
    measured.check(sampling, plot)
    check_folder_of(plot)
    check_counts(batch_size=batch_size)
    sizes = _sizes(batch, batch_size, baseline)
    if baseline is not None:
        _check_baseline(baseline, batch_size, sampling)
    from specfast.bench import BenchSettings
    from specfast.config import EngineConfig

    if quick:
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, QUICK_TOKENS))
    chosen = measured.prompts(QUICK_PROMPTS if quick else None)
    config = EngineConfig(**model.engine_config(max_num_seqs=batch_size, speculative_config=drafts))
    settings = BenchSettings(
        *(config, sampling.params(), baseline is not None),
        *(measured.cycles, not measured.dataset),
    )
    if sizes:
        _report_batches(_run_batches(settings, chosen, sizes), measured.json, plot)
    else:
        _report(_run(settings, chosen), measured.json, plot)


def _sizes(batch: str | None, batch_size: int, baseline: str | None) -> list[int]:
    """--batch as numbers; none where it is not given."""
    if batch is None:
        return []
    words = listed(batch)
    if not words or not all(w.isdecimal() and int(w) > 0 for w in words):
        raise ValueError(f"--batch takes numbers from 1 on, such as 1,4,16, not {batch!r}.")
    if batch_size > 1 or baseline is not None:
        other = "--baseline" if baseline is not None else "--batch-size"
        raise ValueError(f"Give --batch or {other}, not both.")
    return sorted({int(w) for w in words})


def _run_batches(settings: BenchSettings, prompts: list[Prompt], sizes: list[int]) -> BatchReport:
    from specfast.batch_bench import run_batches

    note(f"Benchmarking {settings.config.model} at batch sizes {', '.join(map(str, sizes))} ...")
    with measuring() as progress:
        return run_batches(settings, prompts, sizes, progress.start, progress.advance)


def _report_batches(report: BatchReport, json: Path | None, plot: Path | None) -> None:
    print_batches(report)
    if json:
        save_json(report.to_dict(), json)
    if plot:
        draw_batches(report, plot)


def _check_baseline(baseline: str, batch_size: int, sampling: SamplingOptions) -> None:
    """Refuses before anything is loaded."""
    if baseline != "transformers":
        raise ValueError(f"--baseline must be 'transformers', not {baseline!r}.")
    if batch_size > 1:
        raise ValueError("--baseline transformers answers one prompt at a time: no --batch-size.")
    if sampling.temperature > 0 or sampling.ignore_eos or sampling.stop:
        raise ValueError(
            "--baseline transformers compares greedy decoding up to the end of text: leave out "
            "--temperature, --ignore-eos and --stop."
        )
    from specfast.peers import require_transformers

    require_transformers()


def _run(settings: BenchSettings, prompts: list[Prompt]) -> BenchReport:
    from specfast.bench import run_bench

    note(f"Benchmarking {settings.config.model} on {len(prompts)} prompts ...")
    with measuring() as progress:
        return run_bench(settings, prompts, on_start=progress.start, on_sample=progress.advance)


def _report(report: BenchReport, json: Path | None, plot: Path | None) -> None:
    print_report(report)
    if json:
        save_json(report.to_dict(), json)
    if plot:
        draw(report, plot)
