"""Where a command writes: answers to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

DRAFT_STYLE = "green"
INVALID = "invalid text: acceptance is synthetic"
SECONDS_BETWEEN_LINES = 60


def out_console() -> Console:
    """Stdout; colours only on a terminal and without NO_COLOR."""
    return Console(highlight=False, markup=False, emoji=False)


def err_console() -> Console:
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def has_colours() -> bool:
    console = out_console()
    return console.color_system is not None and not console.no_color


def write(text: str, *, style: str | None = None) -> None:
    """Text as it is: rich touches it only where it has to be coloured."""
    if style and has_colours():
        out_console().print(Text(text, style=style), end="", soft_wrap=True)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def write_json(value: Any) -> None:
    """One line of JSON on stdout."""
    write(json_text(value) + "\n")


def save_json(value: Any, path: Path) -> None:
    path.write_text(json_text(value, indent=1) + "\n", "utf-8")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON proper: NaN, which JSON lacks, becomes null."""
    return json.dumps(_without_nan(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str) -> None:
    err_console().print(Text(text), soft_wrap=True)


def warn(text: str) -> None:
    err_console().print(Text("Warning: ", "yellow") + Text(text, "default"), soft_wrap=True)


def fail(text: str) -> None:
    err_console().print(Text("Error: ", "red") + Text(text, "default"), soft_wrap=True)


class Measuring:
    """How far a long measurement is: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("measuring", total=None)
        self._total = self._done = 0
        self._started = self._said = time.monotonic()

    def start(self, total: int) -> None:
        self._total, self._started = total, time.monotonic()
        self._bar.update(self._task, total=total)

    def advance(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        now = time.monotonic()
        if self._bar.disable and now - self._said > SECONDS_BETWEEN_LINES:
            left = (now - self._started) / self._done * (self._total - self._done)
            note(f"{self._done} of {self._total} answers, some {left / 60:.0f} min to go ...")
            self._said = now


@contextmanager
def measuring() -> Iterator[Measuring]:
    console = err_console()
    with Progress(console=console, disable=not console.is_terminal) as bar:
        yield Measuring(bar)


@contextmanager
def first_interrupt() -> Iterator[Event]:
    """Turns the first Ctrl-C into an event to look at between steps; the second one raises."""
    event, before = Event(), signal.getsignal(signal.SIGINT)

    def note_it(number: int, frame: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note_it)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def log_to_stderr(verbose: bool) -> None:
    """Warnings of every library, and our own information too if asked."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("specfast").setLevel(logging.INFO if verbose else logging.WARNING)
