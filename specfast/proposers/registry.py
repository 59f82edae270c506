"""Finds a proposer by its method's name: one line each, third parties by entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from specfast.config import SpeculativeConfig
from specfast.proposers.base import Proposer

ENTRY_POINTS = "specfast.proposers"

_BUILT_IN = {
    "ngram": "specfast.proposers.ngram:NgramProposer",
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


def make_proposer(config: SpeculativeConfig | None) -> Proposer | None:
    """The configured proposer; None where nothing is to be drafted."""
    return proposer_class(config.method)(config) if config else None
