"""Who might draft for a target: names from the command line, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specfast.models.committed import DRAFTS_OF, FOLDERS
from specfast.models.loader import head_folder, kind_of, resolve
from specfast.proposers.registry import known_methods, takes_model, takes_tree
from specfast.speculative_config import SpeculativeConfig

RETRIEVAL = ("ngram", "suffix", "recycle")
_BLOCKS = "model.mtp_layers."


@dataclass(frozen=True)
class TreeShape:
    """A tree of so many nodes at this depth, and in proportion at others."""

    nodes: int
    depth: int

    def nodes_at(self, k: int) -> int:
        return max(k, self.nodes * k // self.depth)


@dataclass(frozen=True)
class Candidate:
    """name: as it was given, with its tree; model: what drafts, None where the method needs nothing
    named; tree: None for as many nodes as it drafts deep.
    """

    name: str
    method: str
    model: str | None = None
    tree: TreeShape | None = None

    def max_nodes(self, k: int) -> int:
        """Drafts a step, k deep."""
        return self.tree.nodes_at(k) if self.tree else k

    def config(self, k: int, policy: str = "fixed") -> SpeculativeConfig:
        """k deep; verification is by matching, so the output is the target's."""
        return SpeculativeConfig.from_dict(self._values(k) | {"policy": policy})

    def settings(self, k: int, policy: str, gate: str | dict[str, int]) -> dict[str, Any]:
        """A speculative_config as JSON has it, validated."""
        values = self._values(k) | {"policy": policy, "gate": gate}
        SpeculativeConfig.from_dict(values)
        return values

    def _values(self, k: int) -> dict[str, Any]:
        values: dict[str, Any] = {"method": self.method, "num_speculative_tokens": k}
        values |= {"model": self.model} if self.model else {}
        return values | ({"max_tree_nodes": self.max_nodes(k)} if self.tree else {})


def default_names(target: str) -> list[str]:
    """What needs nothing, what the package carries for this target, and its own MTP blocks."""
    carried = DRAFTS_OF.get(target, {})
    models = [name for name in dict.fromkeys(carried.values()) if name]
    return [*RETRIEVAL, *models, *(["mtp"] if num_blocks(target) else [])]


def candidates(names: Iterable[str], target: str) -> list[Candidate]:
    """Each name's method and model. ValueError for one that stands for nothing: those known."""
    return [_candidate(name, target) for name in dict.fromkeys(names)]


def with_trees(found: Iterable[Candidate], shape: TreeShape, target: str) -> list[Candidate]:
    """Each candidate, and behind it, where it can branch, itself with such a tree."""
    both: list[Candidate] = []
    for candidate in found:
        both.append(candidate)
        if _branches(candidate, target):
            name = f"{candidate.name} tree={shape.nodes}"
            both.append(replace(candidate, name=name, tree=shape))
    return both


def num_blocks(target: str) -> int:
    """MTP blocks that a checkpoint carries."""
    if not resolve(target).is_dir():
        return 0
    names = [n for n in head_folder(target).checkpoint.shapes if n.startswith(_BLOCKS)]
    return len({name.removeprefix(_BLOCKS).partition(".")[0] for name in names})


def _branches(candidate: Candidate, target: str) -> bool:
    """Several MTP blocks draft a depth each, in a chain."""
    is_chain = candidate.method == "mtp" and num_blocks(candidate.model or target) > 1
    return takes_tree(candidate.method) and not is_chain


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
