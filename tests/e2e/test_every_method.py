"""Every built-in method drafts for a trained target, and none of it shows in the output."""

from __future__ import annotations

import pytest

from specfast import LLM, SamplingParams
from specfast.models.committed import DRAFTS_OF
from specfast.proposers import registry
from specfast.proposers.base import Proposal

TEXTS = ["ROMEO:", "JULIET: O Romeo, Romeo! wherefore art", "First Citizen: Before we proceed any"]
LAWS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True),
    "sampled": SamplingParams(temperature=1.0, top_p=0.95, seed=3, max_tokens=48, ignore_eos=True),
}
PARTS = ("specfast.proposers", "specfast.engine", "specfast.budget")
CONFIG = {"max_num_seqs": 2, "max_num_batched_tokens": 32, "num_blocks": 64}


def answers(llm, params):
    return [o.outputs[0].token_ids for o in llm.generate(TEXTS, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def plain():
    llm = LLM("tiny", **CONFIG)
    return {name: answers(llm, params) for name, params in LAWS.items()}


def options_of(method):
    return registry.proposer_class(method).options


WAYS = [
    (method, nodes)
    for method in registry._BUILT_IN
    if method in DRAFTS_OF["tiny"] or "model" not in options_of(method)
    for nodes in (None, 16)
    if nodes is None or "max_tree_nodes" in options_of(method)
]


def speculating(method, nodes, **config):
    spec = {"method": method, "num_speculative_tokens": 4}
    spec |= {"max_tree_nodes": nodes} if nodes else {}
    spec |= {"model": DRAFTS_OF["tiny"].get(method)}
    return LLM("tiny", speculative_config=spec, **{**CONFIG, **config})


@pytest.mark.parametrize(("method", "nodes"), WAYS)
def test_same_bytes_with_drafts_accepted(method, nodes, plain, caplog, monkeypatch):
    llm = speculating(method, nodes)
    depths, check = set(), Proposal.check
    monkeypatch.setattr(
        Proposal, "check", lambda p, *limits: depths.update(p.depths) or check(p, *limits)
    )
    for name, params in LAWS.items():
        assert answers(llm, params) == plain[name]
    stats = llm.stats()
    assert stats.num_accepted_tokens > 0.05 * stats.num_draft_tokens > 0
    fixed = method == "medusa" and nodes  # the best tree of so many nodes may be flatter
    assert max(depths) >= 3 if fixed else max(depths) == 4, "as deep as it may"
    llm.engine.check_integrity()
    assert "goes on without drafts" not in caplog.text
    assert not list(held_by(llm.engine)), "of sequences that are gone"


@pytest.mark.parametrize(("method", "nodes"), WAYS)
def test_nothing_is_kept_of_a_request_that_was_cancelled(method, nodes):
    """Cancelled while it runs, after a preemption, and before its first step."""
    engine = speculating(method, nodes, num_blocks=24).engine
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    requests = [engine.add_request([7, 8, 9] * 4, params) for _ in range(3)]
    while not engine.scheduler.stats.num_preempted:
        engine.step()
    assert len(list(held_by(engine))) > 1
    for request in requests:
        engine.cancel(request.request_id)
    engine.step()
    assert not list(held_by(engine))
    engine.check_integrity()


def held_by(owner):
    """What an engine and its parts keep by sequence: names of dicts and sets."""
    for name, value in vars(owner).items():
        if isinstance(value, dict | set) and value:
            yield name
        elif type(value).__module__.startswith(PARTS) and hasattr(value, "__dict__"):
            yield from held_by(value)
