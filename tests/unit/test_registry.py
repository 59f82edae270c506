"""Proposers by name: built in, by entry point, unknown."""

from importlib.metadata import EntryPoint

import pytest

from specfast.config import EngineConfig
from specfast.proposers import registry
from specfast.proposers.ngram import NgramProposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig
from tests.unit.toy_model import ToyModel, ToyTokenizer


def target(speculation):
    config = EngineConfig("toy", speculative_config=speculation)
    return Target(ToyModel(), ToyTokenizer(), config)


def test_a_setting_that_does_nothing_is_refused():
    for name, value in {"max_tree_nodes": 16, "model": "m"}.items():
        with pytest.raises(ValueError, match=f"{name} does nothing for the method 'ngram'"):
            registry.make_proposer(target(SpeculativeConfig("ngram", **{name: value})))


def test_built_in():
    assert registry.proposer_class("ngram") is NgramProposer
    assert isinstance(registry.make_proposer(target(SpeculativeConfig("ngram"))), NgramProposer)
    assert registry.make_proposer(target(None)) is None


def test_every_line_resolves_to_a_proposer():
    for method in registry._BUILT_IN:
        cls = registry.proposer_class(method)
        assert {"options", "propose", "observe", "release", "reset"} <= set(dir(cls))


def test_entry_point(monkeypatch):
    entry = EntryPoint("mine", "specfast.proposers.ngram:NgramProposer", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    assert registry.proposer_class("mine") is NgramProposer
    assert {"mine", "ngram"} <= set(registry.known_methods())


def test_unknown_lists_the_known():
    with pytest.raises(ValueError, match="no method 'n-gram'; known are .*ngram"):
        registry.proposer_class("n-gram")
