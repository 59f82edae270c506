"""Proposers by name: built in, by entry point, unknown."""

from importlib.metadata import EntryPoint

import pytest

from specfast.config import SpeculativeConfig
from specfast.proposers import registry
from specfast.proposers.ngram import NgramProposer


def test_built_in():
    assert registry.proposer_class("ngram") is NgramProposer
    assert isinstance(registry.make_proposer(SpeculativeConfig("ngram")), NgramProposer)
    assert registry.make_proposer(None) is None


def test_every_line_resolves_to_a_proposer():
    for method in registry._BUILT_IN:
        cls = registry.proposer_class(method)
        assert {"needs", "propose", "observe", "release", "reset"} <= set(dir(cls))


def test_entry_point(monkeypatch):
    entry = EntryPoint("mine", "specfast.proposers.ngram:NgramProposer", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    assert registry.proposer_class("mine") is NgramProposer
    assert registry.known_methods() == ["mine", "ngram"]


def test_unknown_lists_the_known():
    with pytest.raises(ValueError, match="no method 'n-gram'; known are .*ngram"):
        registry.proposer_class("n-gram")
