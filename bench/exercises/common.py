"""What the exercises share: their options, a table, a plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seqs
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from specfast.bench import conversation_tasks, longest_request
from specfast.config import EngineConfig
from specfast.data import Prompt, load_workload, select_prompts
from specfast.kv_cache import fitting
from specfast.llm import make_engine
from specfast.measure import EngineArm, Task
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.tokenizer import Tokenizer

PLAIN = "plain"


class Lab:
    """A target, prompts, and the engines that answer them."""

    def __init__(self, options: argparse.Namespace, params: SamplingParams) -> None:
        self.options, self.params = options, params
        self.model: Model
        self.tokenizer: Tokenizer
        self.model, self.tokenizer = load(options.model)
        self.prompts = prompts(options)
        longest = longest_request(self.prompts, self.tokenizer, params)
        config = EngineConfig(
            options.model,
            max_num_seqs=options.batch_size,
            max_num_batched_tokens=max(512, 2 * options.batch_size),
        )
        self.config = fitting(config, self.model, longest)

    def arm(self, name: str, speculation: SpeculativeConfig | None) -> EngineArm:
        config = replace(self.config, speculative_config=speculation)
        return EngineArm(name, make_engine(self.model, self.tokenizer, config), self.params)

    def tasks(self, arm: EngineArm) -> list[Task]:
        """The prompts' turns; `arm` answers the earlier ones of a conversation."""
        is_built_in = self.options.dataset is None
        return conversation_tasks(arm, self.tokenizer, self.prompts, leaves_out_long=is_built_in)


def options(
    description: str, *, num_prompts: int, max_tokens: int, categories: Seqs[str] = ()
) -> argparse.ArgumentParser:
    """The options of every exercise; defaults end within five minutes on two cores."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dataset", type=Path, help="Spec-Bench's format; else the built-in one")
    parser.add_argument("--categories", type=names, default=list(categories))
    parser.add_argument("--num-prompts", type=int, default=num_prompts)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="a PNG file to draw into")
    return parser


def names(text: str) -> list[str]:
    return text.split(",")


def counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def prompts(options: argparse.Namespace) -> list[Prompt]:
    return select_prompts(load_workload(options.dataset), options.categories, options.num_prompts)


def show(title: str, columns: Seqs[str], rows: Iterable[Seqs[object]]) -> None:
    """A table on stdout; the first column holds names."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False, markup=False).print(table)


def check_same(differing: Seqs[str]) -> None:
    """Ends the exercise if there are tasks that the arms answered differently."""
    if differing:
        raise SystemExit(f"answers differ: {', '.join(differing)}")


def draw(path: Path | None, paint: Callable[[Axes], None]) -> None:
    """Lets paint fill a pair of axes, and saves them if there is where."""
    if path is None:
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    paint(figure.subplots())
    figure.savefig(path, format="png", dpi=150)
