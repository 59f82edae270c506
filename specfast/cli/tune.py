"""specfast tune: what to run for a target on this machine, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seqs
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from specfast.cli.console import measuring, note, out_console, save_json, warn
from specfast.cli.measuring_options import MeasuringOptions
from specfast.cli.options import (
    ModelOptions,
    SamplingOptions,
    check_folder_of,
    flag,
    listed,
    option,
)

if TYPE_CHECKING:
    from specfast.config import EngineConfig
    from specfast.data import Prompt
    from specfast.tune.candidates import Candidate
    from specfast.tune.tuning import TuneReport, TuneSettings

MAX_K = 64


def tune(
    model: ModelOptions,
    sampling: SamplingOptions,
    measured: MeasuringOptions,
    candidates: Annotated[
        str | None,
        option(
            "Who may draft, comma-separated: methods that need nothing (ngram, suffix, recycle, "
            "mtp) and models or heads by folder, hub id or known name.",
            unset="all that is known for the model",
        ),
    ] = None,
    k: Annotated[
        str, option("Drafts a step (in trees: depths) to choose from, comma-separated.", "--k")
    ] = "1,2,4,8",
    max_tree_nodes: Annotated[
        int | None,
        option(
            "Try candidates that can branch with trees too: of so many drafts at the largest --k, "
            "in proportion at others.",
            unset="chains and the method's own shapes alone",
        ),
    ] = None,
    batch: Annotated[
        str,
        option(
            "Prompts answered at once, of one category; of several sizes the smallest decides who "
            "drafts, and all of them up to where.",
            *("--batch", "--batch-size"),
        ),
    ] = "1",
    every_k: Annotated[
        bool, flag("Measure every k, not the one predicted best alone.", "--every-k")
    ] = False,
    profile: Annotated[
        bool, flag("Only print what the target's steps take by their rows.", "--profile")
    ] = False,
    report: Annotated[
        Path | None, option("Write a page of Markdown to this file.", unset="none")
    ] = None,
    plot: Annotated[
        Path | None, option("Draw PNG pictures into this folder.", unset="none")
    ] = None,
) -> None:
    """Try drafters on half of the prompts, predict, measure on the other half, and recommend.

    Prints prediction beside measurement for each, and a speculative_config to use.
    """
    measured.check(sampling, plot)
    check_folder_of(report)
    if plot and plot.is_file():
        raise ValueError(f"{plot} is a file; give a folder to draw into.")
    ks, sizes = _counts("--k", k, MAX_K), _counts("--batch", batch, model.max_num_batched_tokens)
    _check_tree(max_tree_nodes, ks[-1])
    from specfast.config import EngineConfig

    config = EngineConfig(**model.engine_config(max_num_seqs=1))
    if profile:
        _print_profile(config, measured.json, plot)
        return
    from specfast.tune.tuning import TuneSettings

    found = _candidates(candidates, model.model, max_tree_nodes, ks[-1])
    settings = TuneSettings(
        *(config, sampling.params(), found, ks, sizes, measured.cycles, every_k),
        leaves_out_long=not measured.dataset,
    )
    result = _run(settings, measured.prompts())
    _print_report(result)
    _write(result, measured.json, report, plot)


def _candidates(
    text: str | None, target: str, max_tree_nodes: int | None, depth: int
) -> tuple[Candidate, ...]:
    """Those named, or known; each that can branch again as a tree."""
    from specfast.tune.candidates import TreeShape, candidates, default_names, with_trees

    found = candidates(listed(text) if text else default_names(target), target)
    if not found:
        raise ValueError("--candidates names nobody.")
    if max_tree_nodes is None:
        return tuple(found)
    branching = with_trees(found, TreeShape(max_tree_nodes, depth), target)
    if branching == found:
        raise ValueError("--max-tree-nodes does nothing: no candidate can branch.")
    return tuple(branching)


def _check_tree(nodes: int | None, depth: int) -> None:
    if nodes is not None and not depth < nodes <= MAX_K:
        raise ValueError(
            f"--max-tree-nodes must be above the largest --k ({depth}) and at most {MAX_K}, not "
            f"{nodes}."
        )


def _counts(name: str, text: str, most: int) -> tuple[int, ...]:
    """The numbers of a comma-separated option, ascending."""
    words = listed(text)
    if not words or not all(w.isdecimal() and 0 < int(w) <= most for w in words):
        raise ValueError(f"{name} must be numbers from 1 to {most}, such as 1,2,4, not {text!r}.")
    return tuple(sorted(set(map(int, words))))


def _run(settings: TuneSettings, prompts: list[Prompt]) -> TuneReport:
    from specfast.tune.tuning import run_tune

    names = ", ".join(c.name for c in settings.candidates)
    note(f"Tuning {settings.config.model} on {len(prompts)} prompts: {names} ...")
    with measuring() as progress:
        return run_tune(settings, prompts, on_start=progress.start, on_sample=progress.advance)


def _print_report(result: TuneReport) -> None:
    from specfast.tune.report import (
        acceptance_table,
        cost_table,
        measurement_table,
        memory_table,
        recommendation_text,
    )

    console = out_console()
    for trial in result.trials:
        title = f"Speed-up over plain decoding, batch size {trial.batch_size}"
        console.print(_table(title, *measurement_table(result, trial)))
    console.print(_table("Costs, in plain steps", *cost_table(result.main)))
    header, rows = acceptance_table(result.main)
    console.print(_table("Acceptance", header, [r for r in rows if r[1] == "all"]))
    console.print(_table("Memory", *memory_table(result.memories)))
    for reason in result.reasons:
        console.print(reason, soft_wrap=True)
    for warning in result.load.warnings:
        warn(warning)
    if result.differing:
        warn(f"Outputs DIFFER on {', '.join(result.differing)}.")
    console.print(recommendation_text(result), soft_wrap=True)


def _write(result: TuneReport, json: Path | None, report: Path | None, plot: Path | None) -> None:
    from specfast.tune.report import to_dict, to_markdown

    if json:
        save_json(to_dict(result), json)
    if report:
        report.write_text(to_markdown(result), "utf-8")
    if plot:
        from specfast.tune.plots import draw_all

        note(f"Drew {', '.join(str(path) for path in draw_all(result, plot))}.")


def _print_profile(config: EngineConfig, json: Path | None, plot: Path | None) -> None:
    from specfast.tune.report import profile_table, profile_values, ridge_text
    from specfast.tune.tuning import profile_of

    found = profile_of(config)
    console = out_console()
    console.print(_table(f"Steps of {config.model}", *profile_table(found)))
    console.print(ridge_text(found), soft_wrap=True)
    if json:
        save_json(profile_values(found), json)
    if plot:
        from specfast.tune.plots import draw_profile

        note(f"Drew {draw_profile(found, plot)}.")


def _table(title: str, header: Seqs[object], rows: Iterable[Seqs[object]]) -> Table:
    table = Table(title=title)
    for number, name in enumerate(header):
        table.add_column(str(name), justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*map(str, row))
    return table
