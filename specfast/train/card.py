"""What lies beside trained weights: config.json, the recipe with its figures, and a card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

CARD, RECIPE, WEIGHTS = "README.md", "training.json", "model.safetensors"
_FILES = ("prompts", "evaluation", "text")
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)


def check_out(out: Path, what: str) -> None:
    """ValueError if a folder `out` can't be made for what is to be trained."""
    for path in (out, *out.parents):
        if path.is_file():
            raise ValueError(f"{path} is a file; give a folder to write the {what} into.")


@dataclass(frozen=True)
class Card:
    """title and summary are prose; recipe is every setting, by group; figures what was measured,
    as rows of a table.
    """

    title: str
    summary: str
    command: str
    recipe: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Any]

    def text(self) -> str:
        """The card as Markdown."""
        parts = [f"# {self.title}", self.summary, "## Figures", _table(self.figures)]
        parts += ["## Recipe", f"```\n{self.command}\n```"]
        for group, settings in self.recipe.items():
            parts += [f"`{group}`", _table(settings)]
        return "\n\n".join(parts) + "\n"


def save_folder(
    out: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], card: Card
) -> None:
    """A Hugging Face folder: model.safetensors, config.json, the card and its recipe as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / WEIGHTS
    save_file(dict(tensors), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # what save_file makes is the owner's alone
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    recipe = {"command": card.command, "recipe": card.recipe, "figures": card.figures}
    (out / RECIPE).write_text(json.dumps(recipe, indent=2) + "\n", "utf-8")
    (out / CARD).write_text(card.text(), "utf-8")


def copy_tokenizer(source: Path, out: Path) -> None:
    """The target's tokenizer files, where the target is a folder that has them."""
    for name in _TOKENIZER_FILES:
        if source.is_dir() and (source / name).exists():
            shutil.copyfile(source / name, out / name)


def without_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the names of files instead of where they lay."""
    return {
        key: [Path(p).name for p in value] if key in _FILES else _short(value)
        for key, value in settings.items()
    }


def _short(value: Any) -> Any:
    """A folder keeps its last two names."""
    is_folder = isinstance(value, str) and Path(value).is_dir()
    return "/".join(Path(value).parts[-2:]) if is_folder else value


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value)
