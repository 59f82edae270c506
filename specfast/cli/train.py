"""specfast train: one command a kind of drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specfast.cli.console import err_console, note, write
from specfast.cli.options import check_counts, grouped, listed, option, set_threads
from specfast.cli.train_options import (
    BlockOptions,
    CorpusOptions,
    FeatureOptions,
    HeadOptions,
    LoopOptions,
    MedusaOptions,
    RunOptions,
    StudentOptions,
)

if TYPE_CHECKING:
    from specfast.train.acceptance import TrainingResult
    from specfast.train.corpus_settings import CorpusSettings

_LOG_SECONDS = 20.0

app = typer.Typer(help="Train a drafter on what its target writes.", no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train a drafter on what its target writes.

    A killed run goes on where it was when the same command is given again.
    """


@app.command("draft")
@grouped
def train_draft(
    corpus: CorpusOptions, student: StudentOptions, loop: LoopOptions, options: RunOptions
) -> None:
    """Distil a small draft model from the target.

    The target answers prompts with its own engine, and the draft model learns its probabilities.
    """
    from specfast.train.draft import DraftSettings
    from specfast.train.draft import train_draft as run

    _run(run, corpus, DraftSettings(**asdict(student)), loop, options)


@app.command("eagle")
@grouped
def train_eagle(
    corpus: CorpusOptions,
    head: HeadOptions,
    loop: LoopOptions,
    options: RunOptions,
    features: FeatureOptions,
) -> None:
    """Train an EAGLE-3 head on the target's hidden states.

    The target answers prompts with its own engine. The head learns to continue from its own output.
    """
    from specfast.train.eagle import train_eagle as run
    from specfast.train.eagle_settings import EagleSettings

    shape = asdict(head) | {"layers": _numbers(head.layers)}
    _run(run, corpus, EagleSettings(**shape), loop, options, features.max_bytes)


@app.command("medusa")
@grouped
def train_medusa(
    corpus: CorpusOptions,
    heads: MedusaOptions,
    loop: LoopOptions,
    options: RunOptions,
    features: FeatureOptions,
) -> None:
    """Train Medusa heads on the target's last hidden state.

    The target answers prompts with its own engine. How often each head's candidates are right is
    measured in the end, and makes the tree.
    """
    from specfast.train.medusa import MedusaSettings
    from specfast.train.medusa import train_medusa as run

    _run(run, corpus, MedusaSettings(**asdict(heads)), loop, options, features.max_bytes)


@app.command("mtp")
@grouped
def train_mtp(
    corpus: CorpusOptions,
    block: BlockOptions,
    loop: LoopOptions,
    options: RunOptions,
    features: FeatureOptions,
) -> None:
    """Train a block of multi-token prediction to go on from its own output.

    It begins as the target's own block, where the target has one.
    """
    from specfast.train.mtp_tune import MtpSettings
    from specfast.train.mtp_tune import train_mtp as run

    _run(run, corpus, MtpSettings(**asdict(block)), loop, options, features.max_bytes)


@app.command("tiny")
def train_tiny(
    text: Annotated[
        list[Path], option("Plain text, or JSON lines with question and answer; repeatable.")
    ],
    out: Annotated[Path, option("The folder to write target, draft-s and draft-m into.")],
    work: Annotated[
        Path | None, option("The folder for corpora and checkpoints.", unset="OUT.work")
    ] = None,
    steps: Annotated[int, option("Training steps of the target.")] = 700,
    draft_steps: Annotated[int, option("Training steps of each draft.")] = 300,
    seed: Annotated[int, option("Of everything.")] = 0,
    threads: Annotated[int | None, option("CPU threads.", unset="one a core")] = None,
) -> None:
    """Train the test suite's tiny family: a tokenizer, a target with an MTP block, two drafts."""
    from specfast.train.tiny import TinySettings
    from specfast.train.tiny import train_tiny as run

    _set_up("cpu", threads)
    files = tuple(map(str, text))
    settings = TinySettings(files, steps=steps, draft_steps=draft_steps, seed=seed)
    with _reporting() as report:
        run(settings, out, work or out.with_name(out.name + ".work"), report)


def _run(
    run: Callable[..., TrainingResult],
    corpus: CorpusOptions,
    settings: object,
    loop: LoopOptions,
    options: RunOptions,
    *more: int,
) -> None:
    from specfast.train.loop import LoopSettings

    _set_up(options.device, options.threads)
    check_counts(writers=options.writers)
    with _reporting() as report:
        result = run(
            _corpus_settings(corpus), settings, LoopSettings(**asdict(loop)), options.out,
            options.work_folder, options.device, report, options.writers, *more,
        )  # fmt: skip
    _print(result, options.out)


def _corpus_settings(options: CorpusOptions) -> CorpusSettings:
    from specfast.train.corpus_settings import CorpusSettings

    values = asdict(options)
    for name in ("prompts", "evaluation"):
        values[name] = tuple(map(str, values[name] or ()))
    return CorpusSettings(**values)


def _numbers(text: str | None) -> tuple[int, ...]:
    """The layers of a comma-separated option."""
    words = listed(text or "")
    if not all(word.isdigit() for word in words):
        raise ValueError(f"--layers must be numbers such as 2,15,27, not {text!r}.")
    return tuple(map(int, words))


def _set_up(device: str, threads: int | None) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, not {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here.")
    set_threads(threads)


@contextmanager
def _reporting() -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar on a terminal; elsewhere a line now and then."""
    console = err_console()
    if not console.is_terminal:
        yield _Log().report
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    more = (TimeElapsedColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, *more, console=console) as progress:
        tasks: dict[str, object] = {}

        def report(stage: str, done: int, total: int, words: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, words="")
            progress.update(tasks[stage], completed=done, total=total, words=words)  # type: ignore[arg-type]

        yield report


class _Log:
    def __init__(self) -> None:
        self._last = 0.0

    def report(self, stage: str, done: int, total: int, words: str) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= _LOG_SECONDS:
            self._last = now
            note(f"{stage}: {done}/{total}, {words}")


def _print(result: TrainingResult, out: Path) -> None:
    found = result.acceptance
    by_depth = ", ".join(f"{share:.2f}" for share in found.per_position)
    write(
        f"{out}: {result.num_parameters / 1e6:.2f}M parameters, trained on "
        f"{result.num_train_tokens} tokens of the target.\n"
        f"Held-out acceptance, greedy, k = {len(found.per_position)}: {found.length:.2f} tokens a "
        f"step; by position {by_depth}; {result.coverage:.1%} of the tokens can be drafted.\n"
    )
