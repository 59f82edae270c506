"""specfast info: versions, the machine, and what does not fit together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specfast.cli.console import write, write_json
from specfast.cli.options import flag


def info(
    as_json: Annotated[bool, flag("Print JSON instead of text.", "--json")] = False,
) -> None:
    """Print versions, SIMD tier, CUDA state and every mismatch; exit code 1 if there is one."""
    from specfast.info import collect, render

    found = collect()
    if as_json:
        write_json({**asdict(found), "mismatches": found.mismatches})
    else:
        write(render(found) + "\n")
    if found.mismatches:
        raise typer.Exit(1)
