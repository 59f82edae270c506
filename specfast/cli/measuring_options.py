"""Options of commands that measure: on which prompts, how often, and where the result goes."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specfast.cli.options import SamplingOptions, check_counts, check_folder_of, listed, option

if TYPE_CHECKING:
    from specfast.data import Prompt


@dataclass(frozen=True)
class MeasuringOptions:
    """What arms of an ABBA run are compared on."""

    dataset: Annotated[
        Path | None,
        option("Prompts as JSON lines, in Spec-Bench's format.", unset="the built-in workload"),
    ] = None
    categories: Annotated[
        str | None,
        option("Only these, comma-separated; copy_heavy and chat are groups.", unset="all"),
    ] = None
    num_prompts: Annotated[
        int | None, option("At most so many prompts, from all categories in turn.", unset="all")
    ] = None
    cycles: Annotated[
        int, option("Each cycle measures a prompt twice by each arm, in ABBA order.")
    ] = 1
    json: Annotated[Path | None, option("Write everything to this file.", unset="none")] = None

    def check(self, sampling: SamplingOptions, plot: Path | None) -> None:
        """ValueError, before any work, for what could not be measured, written or drawn."""
        check_folder_of(self.json)
        check_counts(cycles=self.cycles, num_prompts=self.num_prompts)
        if sampling.temperature > 0 and sampling.seed is None:
            raise ValueError("Outputs are compared: give --seed with --temperature.")
        if plot and not importlib.util.find_spec("matplotlib"):
            raise ValueError("--plot needs matplotlib: pip install 'specfast[plot]'.")

    def prompts(self, most: int | None = None) -> list[Prompt]:
        """most: where --num-prompts is not given."""
        from specfast.data import load_workload, select_prompts

        chosen = listed(self.categories or "")
        return select_prompts(load_workload(self.dataset), chosen, self.num_prompts or most)
