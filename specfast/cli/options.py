"""Options that commands share: a dataclass a group, a field an option with help and default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specfast.cli.console import warn
from specfast.sampling_params import SamplingParams


def option(
    help: str, *names: str, panel: str | None = None, unset: bool | str = True
) -> typer.models.OptionInfo:
    """An option; `unset` says in words what happens where the default is None."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=unset)


def flag(help: str, *names: str, panel: str | None = None) -> typer.models.OptionInfo:
    """A switch that is off unless given."""
    return option(help, *names, panel=panel, unset="off")


PrefixCaching = Annotated[
    bool,
    option(
        "Reuse the KV of a beginning that an earlier prompt had.",
        *("--prefix-caching/--no-prefix-caching",),
        panel="Model",
    ),
]


def check_folder_of(*paths: Path | None) -> None:
    """ValueError, before any work, for a file that could not be written after it."""
    for path in paths:
        if path and path.is_dir():
            raise ValueError(f"{path} is a folder; give a file to write into.")
        if path and not path.absolute().parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} to write {path.name} into.")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options: each of their fields becomes an option."""
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def flat(**values: Any) -> None:
        for name, group in groups.items():
            taken = {f.name: values.pop(f.name) for f in fields(group)}
            values[name] = group(**taken)  # type: ignore[operator]
        command(**values)

    flat.__signature__ = inspect.Signature(_flat_parameters(command, hints))  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in flat.__signature__.parameters.values()}  # type: ignore[attr-defined]
    flat.__doc__, flat.__name__ = command.__doc__, command.__name__
    return flat


def _flat_parameters(
    command: Callable[..., None], hints: dict[str, Any]
) -> list[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = []
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            found.append(parameter.replace(kind=keyword, annotation=hints[name]))
            continue
        inner = get_type_hints(hints[name], include_extras=True)
        for f in fields(hints[name]):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            found.append(
                inspect.Parameter(f.name, keyword, default=default, annotation=inner[f.name])
            )
    return found


def given(options: Any, *names: str) -> dict[str, Any]:
    return {k: v for k, v in asdict(options).items() if k in names and v is not None}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_counts(**counts: int | None) -> None:
    """ValueError for an option below 1; None: not given."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{flag_of(name)} must be at least 1, not {count}.")


def set_threads(threads: int | None) -> None:
    """CPU threads to compute with; None leaves them as they are."""
    import torch

    check_counts(threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)


def listed(text: str) -> list[str]:
    """The words of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how the engine holds it."""

    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder or hub id, a .gguf file, or 'demo' (SmolLM2-135M-Instruct)."
        ),
    ]
    dtype: Annotated[
        str,
        option(
            "The weights' type: auto (what the checkpoint stores), bfloat16 or float32.",
            panel="Model",
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str,
        option("The KV cache's type: auto (as --dtype), bfloat16 or float32.", panel="Model"),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        option(
            "Longest prompt plus output, in tokens.", panel="Model", unset="the model's context"
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int, option("Rows of one forward pass, so also the prefill chunk.", panel="Model")
    ] = 512
    block_size: Annotated[int, option("Tokens of one KV block.", panel="Model")] = 16
    kv_cache_memory: Annotated[int, option("Bytes for the KV cache.", panel="Model")] = 2**30
    threads: Annotated[
        int | None,
        option("CPU threads to compute with.", panel="Model", unset="one a core"),
    ] = None

    def engine_config(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments for EngineConfig, speculation apart; sets the threads."""
        values = asdict(self)
        set_threads(values.pop("threads"))
        return values | more


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen, and when to stop."""

    max_tokens: Annotated[
        int, option("The most tokens to generate for one prompt.", panel="Sampling")
    ] = 256
    temperature: Annotated[
        float, option("0 takes the likeliest token; above, sample.", panel="Sampling")
    ] = 0.0
    top_p: Annotated[
        float | None,
        option("Sample from the likeliest that hold this share.", panel="Sampling", unset="off"),
    ] = None
    top_k: Annotated[
        int | None,
        option("Sample from this many of the likeliest.", panel="Sampling", unset="off"),
    ] = None
    min_p: Annotated[
        float | None,
        option(
            "Sample from those with at least this share of the best one's probability.",
            panel="Sampling",
            unset="off",
        ),
    ] = None
    seed: Annotated[
        int | None,
        option("Makes samples repeatable.", panel="Sampling", unset="a new one for every prompt"),
    ] = None
    stop: Annotated[
        list[str] | None,
        option("End at this text; may be repeated.", panel="Sampling", unset="none"),
    ] = None
    ignore_eos: Annotated[
        bool, flag("Go on past the model's end of text.", "--ignore-eos", panel="Sampling")
    ] = False

    def params(self, **others: Any) -> SamplingParams:
        """SamplingParams; warns of options that do nothing at temperature 0."""
        named = given(self, "top_p", "top_k", "min_p", "seed")
        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            **named,
            **others,
        )
        if params.greedy and named:
            flags = ", ".join(map(flag_of, named))
            warn(f"{flags} does nothing at temperature 0; give --temperature to sample.")
        return params
