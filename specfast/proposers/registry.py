"""Finds a proposer by its method's name: one line each, third parties by entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from specfast.proposers.base import Proposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig

ENTRY_POINTS = "specfast.proposers"

_BUILT_IN = {
    "draft_model": "specfast.proposers.draft_model:DraftModelProposer",
    "eagle": "specfast.proposers.eagle:EagleProposer",
    "hybrid": "specfast.proposers.hybrid:HybridProposer",
    "medusa": "specfast.proposers.medusa:MedusaProposer",
    "mtp": "specfast.proposers.mtp:MtpProposer",
    "ngram": "specfast.proposers.ngram:NgramProposer",
    "recycle": "specfast.proposers.recycle:RecycleProposer",
    "suffix": "specfast.proposers.suffix:SuffixProposer",
}


def known_methods() -> list[str]:
    return sorted({*_BUILT_IN, *(e.name for e in entry_points(group=ENTRY_POINTS))})


def proposer_class(method: str) -> Callable[..., Proposer]:
    """The class that drafts by this method. ValueError lists the known methods."""
    if method in _BUILT_IN:
        module, name = _BUILT_IN[method].split(":")
        return getattr(import_module(module), name)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == method:
            return entry.load()
    known = ", ".join(known_methods())
    raise ValueError(f"speculative_config: there is no method {method!r}; known are {known}.")


def takes_model(method: str) -> bool:
    """Whether it drafts with a model of its own."""
    return "model" in getattr(proposer_class(method), "options", ())


def takes_tree(method: str) -> bool:
    """Whether what it drafts may branch."""
    return "max_tree_nodes" in getattr(proposer_class(method), "options", ())


def check_method(config: SpeculativeConfig | None) -> None:
    """ValueError for a method there isn't, or a setting that would do nothing for it."""
    if config is None:
        return
    known = getattr(proposer_class(config.method), "options", None)
    useless = set() if known is None else set(config.method_settings) - known
    if useless:
        raise ValueError(
            f"speculative_config: {min(useless)} does nothing for the method {config.method!r}; "
            "leave it out."
        )


def make_proposer(target: Target) -> Proposer | None:
    """The configured proposer; None where nothing is to be drafted."""
    config = target.config.speculative_config
    check_method(config)
    return proposer_class(config.method)(config, target) if config else None
