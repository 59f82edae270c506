"""specfast train: one command a kind of drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specfast.cli.console import err_console, note, write
from specfast.cli.options import check_counts, grouped, option, set_threads

if TYPE_CHECKING:
    from specfast.train.draft import DraftResult

_LOG_SECONDS = 20.0

app = typer.Typer(help="Train a drafter on what its target writes.", no_args_is_help=True)


@dataclass(frozen=True)
class CorpusOptions:
    """What the target writes, and what is measured on."""

    target: Annotated[
        str, typer.Argument(help="The model to draft for: a folder, hub id, .gguf file or 'demo'.")
    ]
    prompts: Annotated[
        list[Path] | None,
        option(
            "Prompts to answer: JSON lines (as for bench), or a text to continue; repeatable.",
            panel="Corpus",
            unset="none",
        ),
    ] = None
    evaluation: Annotated[
        list[Path] | None,
        option(
            "Prompts to measure on; what overlaps with them is not trained on; repeatable.",
            panel="Corpus",
            unset="some of the training prompts, held out",
        ),
    ] = None
    num_prompts: Annotated[
        int, option("At most so many of the files', their categories in turn.", panel="Corpus")
    ] = 2000
    num_self_prompts: Annotated[
        int, option("User turns that the target itself samples.", panel="Corpus")
    ] = 0
    num_evaluation_prompts: Annotated[
        int, option("At most so many to measure on, their categories in turn.", panel="Corpus")
    ] = 96
    max_prompt_tokens: Annotated[int, option("Longer prompts are left out.", panel="Corpus")] = 256
    max_answer_tokens: Annotated[int, option("Answers end here.", panel="Corpus")] = 256
    sampled_share: Annotated[
        float, option("Share of answers at temperature 1; the rest are greedy.", panel="Corpus")
    ] = 0.2
    dtype: Annotated[
        str, option("The target's type: auto, bfloat16 or float32.", panel="Corpus")
    ] = "auto"
    seed: Annotated[int, option("Of prompts, answers and weights.", panel="Corpus")] = 0


@dataclass(frozen=True)
class StudentOptions:
    """The draft model's shape."""

    hidden_size: Annotated[int, option("Width.", panel="Draft model")] = 192
    num_layers: Annotated[int, option("Depth.", panel="Draft model")] = 4
    head_dim: Annotated[int, option("Of an attention head.", panel="Draft model")] = 64
    num_kv_heads: Annotated[int, option("Heads of K and V.", panel="Draft model")] = 3
    intermediate_size: Annotated[int, option("Of the MLP.", panel="Draft model")] = 512
    draft_vocab_size: Annotated[
        int, option("Tokens it can draft: the commonest; 0 is all.", panel="Draft model")
    ] = 8192
    context: Annotated[
        int, option("Tokens it sees back, however long the text is.", panel="Draft model")
    ] = 512
    copying: Annotated[
        bool,
        option(
            "Start with heads that repeat what followed the same two tokens before.",
            "--copying/--no-copying",
            panel="Draft model",
        ),
    ] = True
    dropout: Annotated[
        float, option("Of what each block adds to the stream.", panel="Training")
    ] = 0.1
    label_weight: Annotated[
        float,
        option(
            "Weight of the target's very best token beside its probabilities.", panel="Training"
        ),
    ] = 0.3
    batch_size: Annotated[int, option("Answers a step.", panel="Training")] = 12
    bfloat16: Annotated[
        bool, option("Multiply in bfloat16.", "--bfloat16/--float32", panel="Training")
    ] = False


@dataclass(frozen=True)
class LoopOptions:
    """How long to train, and where."""

    steps: Annotated[int, option("Training steps.", panel="Training")] = 3000
    learning_rate: Annotated[float, option("Its highest value.", panel="Training")] = 3e-3


@app.callback()
def train() -> None:
    """Train a drafter on what its target writes.

    A killed run goes on where it was when the same command is given again.
    """


@app.command("draft")
@grouped
def train_draft(
    corpus: CorpusOptions,
    student: StudentOptions,
    loop: LoopOptions,
    out: Annotated[Path, option("The folder to write the draft model into.")],
    work: Annotated[
        Path | None, option("The folder for corpus and checkpoints.", unset="OUT.work")
    ] = None,
    device: Annotated[str, option("Where the draft model trains: cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, option("CPU threads.", unset="one a core")] = None,
    writers: Annotated[
        int, option("Processes of one thread that write the corpus; 1: one with all threads.")
    ] = 1,
) -> None:
    """Distil a small draft model from the target.

    The target answers prompts with its own engine, and the draft model learns its probabilities.
    """
    from dataclasses import asdict

    from specfast.train.corpus_settings import CorpusSettings
    from specfast.train.draft import DraftSettings
    from specfast.train.draft import train_draft as run
    from specfast.train.loop import LoopSettings

    _set_up(device, threads)
    check_counts(writers=writers)
    values = asdict(corpus)
    for name in ("prompts", "evaluation"):
        values[name] = tuple(map(str, values[name] or ()))
    settings = CorpusSettings(**values)
    with _reporting() as report:
        result = run(
            settings,
            DraftSettings(**asdict(student)),
            LoopSettings(**asdict(loop)),
            out,
            work or out.with_name(out.name + ".work"),
            device,
            report,
            writers,
        )
    _print(result, out)


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


def _print(result: DraftResult, out: Path) -> None:
    found = result.acceptance
    by_depth = ", ".join(f"{share:.2f}" for share in found.per_position)
    write(
        f"{out}: {result.num_parameters / 1e6:.2f}M parameters, trained on "
        f"{result.num_train_tokens} tokens of the target.\n"
        f"Held-out acceptance, greedy, k = {len(found.per_position)}: {found.length:.2f} tokens a "
        f"step; by position {by_depth}; {result.coverage:.1%} of the tokens can be drafted.\n"
    )
