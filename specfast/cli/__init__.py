"""The command line: one file a command. Users' errors are one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import specfast
from specfast.cli import bench, certify, chat, generate, info, train, tune
from specfast.cli.console import fail, log_to_stderr, write
from specfast.cli.options import grouped

STDOUT = 1

# typer's own click or the installed one, by its version.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="specfast",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (generate.generate, chat.chat, bench.bench, tune.tune, certify.certify, info.info):
    app.command()(grouped(command))
app.add_typer(train.app, name="train")


def _print_version(asked: bool) -> None:
    if asked:
        write(f"{specfast.__version__}\n")
        raise typer.Exit()


@app.callback()
def specfast_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False,
) -> None:
    """Faster decoding by speculation that never changes what the model says."""
    log_to_stderr(verbose)


def run(arguments: list[str] | None = None) -> int:
    """Runs a command line; -> the exit code: 2 for the user's errors, 1 for a failed check."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=given or ["--help"], standalone_mode=False)
    except _USAGE_ERROR as error:
        fail(error.format_message())  # type: ignore[attr-defined]
        return 2
    except ValueError as error:
        fail(str(error))
        return 2
    except ImportError as error:
        fail(str(error))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        return 1
    except OSError as error:
        fail(str(error))
        return 2
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run())
