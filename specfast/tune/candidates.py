"""Who might draft for a target: names from the command line, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specfast.models.committed import DRAFTS_OF, FOLDERS
from specfast.models.loader import head_folder, kind_of, resolve
from specfast.proposers.registry import known_methods, takes_model
from specfast.speculative_config import SpeculativeConfig

RETRIEVAL = ("ngram", "suffix", "recycle")
_BLOCKS = "model.mtp_layers."


@dataclass(frozen=True)
class Candidate:
    """name: as it was given; model: what drafts, None where the method needs nothing named."""

    name: str
    method: str
    model: str | None = None

    def config(self, k: int, policy: str = "fixed") -> SpeculativeConfig:
        """k drafts a step; verification is by matching, so the output is the target's."""
        return SpeculativeConfig(self.method, k, policy=policy, model=self.model)

    def settings(self, k: int, policy: str, gate: str | dict[str, int]) -> dict[str, Any]:
        """A speculative_config as JSON has it, validated."""
        values = {"method": self.method, "num_speculative_tokens": k}
        values |= {"model": self.model} if self.model else {}
        values |= {"policy": policy, "gate": gate}
        SpeculativeConfig.from_dict(values)
        return values


def default_names(target: str) -> list[str]:
    """What needs nothing, what the package carries for this target, and its own MTP blocks."""
    carried = DRAFTS_OF.get(target, {})
    models = [name for name in dict.fromkeys(carried.values()) if name]
    return [*RETRIEVAL, *models, *(["mtp"] if has_blocks(target) else [])]


def candidates(names: Iterable[str], target: str) -> list[Candidate]:
    """Each name's method and model. ValueError for one that stands for nothing: those known."""
    return [_candidate(name, target) for name in dict.fromkeys(names)]


def has_blocks(target: str) -> bool:
    """Whether the target's checkpoint carries MTP blocks."""
    if not resolve(target).is_dir():
        return False
    return any(name.startswith(_BLOCKS) for name in head_folder(target).checkpoint.shapes)


def _candidate(name: str, target: str) -> Candidate:
    if name in known_methods():
        return _by_method(name, target)
    is_model = name in ("demo", *FOLDERS) or "/" in name or Path(name).expanduser().exists()
    if not is_model:
        known = ", ".join(dict.fromkeys([*default_names(target), *known_methods()]))
        raise ValueError(
            f"There is no candidate {name!r}; known are {known}, and any folder, hub id or .gguf "
            "file of a draft model or head."
        )
    return Candidate(name, kind_of(name), name)


def _by_method(name: str, target: str) -> Candidate:
    model = DRAFTS_OF.get(target, {}).get(name)
    if name in ("draft_model", "eagle", "medusa") and model is None:
        raise ValueError(
            f"The package carries nothing to draft for {target} by {name!r}: give the folder, hub "
            "id or .gguf file that does."
        )
    return Candidate(name, name, model if takes_model(name) else None)
