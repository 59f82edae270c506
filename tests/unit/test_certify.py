"""certify over a bookkeeping target: it passes as things are, and fails for each planted bug."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from specfast.certify import Certifier
from specfast.certify_settings import (
    FACTORS,
    MAX_SETTINGS,
    Setting,
    settings,
    variants,
    vary_prompts,
)
from specfast.cli.certify import _methods
from specfast.config import EngineConfig
from specfast.kv_cache import BlockManager
from specfast.models.committed import DRAFTS_OF
from specfast.models.runner import ModelRunner
from specfast.proposers.registry import known_methods, proposer_class, takes_model
from specfast.scheduler import Scheduler
from specfast.speculative_config import SpeculativeConfig
from specfast.verifier import MatchVerifier
from tests.unit.toy_model import ToyModel, ToyTokenizer
from tests.unit.toy_proposers import TreeProposer

MAX_TOKENS = 24
BASE = Setting(
    drafter=SpeculativeConfig("test"),
    num_speculative_tokens=6,
    policy="fixed",
    batch_size=3,
    chunk_size=24,
    block_size=4,
    prefix_caching=True,
    sampled=False,
    preempt=False,
    threads=1,
)
CHANGES = [{}, {"sampled": True}, {"preempt": True}, {"ignore_eos": False}]


def prompts(count=6):
    """Longer than a chunk, with beginnings in common."""
    return [[1 + i % 5 for i in range(30)] + [7 + n, 8, 9] for n in range(count)]


class KnowingCertifier(Certifier):
    """Its proposer knows the plain answers: trees whose right child is never the first."""

    def __init__(self, count=6):
        config = EngineConfig("toy", speculative_config=SpeculativeConfig("test"))
        super().__init__(
            ToyModel(), ToyTokenizer(), config, prompts(count), MAX_TOKENS, self._proposer
        )
        self._streams = {}

    def check(self, setting):
        plain = self._plain(replace(setting, ignore_eos=True).params(MAX_TOKENS))
        self._streams = {tuple(p): [*p, *a.token_ids] for p, a in zip(self.prompts, plain)}
        return super().check(setting)

    def _proposer(self, config):
        return TreeProposer(self._streams, wrong=1, miss=0.3)


@pytest.fixture
def check():
    """Certifies BASE with some changes; the plain answers are older than any planted bug."""
    certifier = KnowingCertifier()
    for change in CHANGES:
        certifier._plain(replace(BASE, **change).params(MAX_TOKENS))
    return lambda **change: certifier.check(replace(BASE, **change))


def test_a_prompt_of_many_chunks_is_no_stall(check, monkeypatch):
    """A step that only computes a prompt gives nobody a token."""
    monkeypatch.setattr("specfast.certify.STALLED", 1)
    assert not check().failures


def kinds(result):
    return {f["kind"] for f in result.failures}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_differs_and_every_claim_is_met(check, change):
    result = check(**change)
    assert (result.checked, result.identical, result.failures) == (6, 6, [])
    assert min(result.events[e] for e in result.setting.claims) > 0


def test_an_event_that_was_claimed_and_never_seen_is_a_failure():
    result = KnowingCertifier(count=1).check(replace(BASE, preempt=True))
    assert result.identical == 1
    assert "claims 'preempted' and never saw it" in [f["message"] for f in result.failures]


def test_a_certificate_adds_up_and_reports_as_it_goes():
    seen = []
    certificate = KnowingCertifier().certify([BASE, replace(BASE, sampled=True)], seen.append)
    total = certificate.to_dict()
    assert seen == list(certificate.results)
    assert (total["checked"], total["identical"], total["failures"]) == (12, 12, [])
    assert total["settings"][1]["sampled"] is True
    assert total["settings"][0]["events"]["accepted"] > 0


def test_length_one_too_long_after_a_rejection(check, monkeypatch):
    """The recovered token counts as computed, though its slot holds the rejected draft's KV."""
    commit = Scheduler.commit

    def too_long(self, batch, proposal, result):
        outputs = commit(self, batch, proposal, result)
        for row, seq in enumerate(batch.seqs):
            if seq.finish is None and result.num_accepted[row] < proposal.lengths[row]:
                seq.num_computed_tokens += 1
        return outputs

    monkeypatch.setattr(Scheduler, "commit", too_long)
    assert kinds(check()) & {"integrity", "difference"}


def test_a_rejected_draft_taken_for_accepted(check, monkeypatch):
    verify = MatchVerifier.verify

    def too_many(self, batch, proposal, forward):
        result = verify(self, batch, proposal, forward)
        for row, accepted in enumerate(result.num_accepted.tolist()):
            if accepted == 0 and proposal.lengths[row]:
                result.num_accepted[row], result.path[row, 0] = 1, 0
        return result

    monkeypatch.setattr(MatchVerifier, "verify", too_many)
    assert "difference" in kinds(check())


@pytest.mark.parametrize("sampled", [False, True])
def test_compaction_skipped(check, monkeypatch, sampled):
    monkeypatch.setattr(Scheduler, "_compact", lambda self, batch, result, num_kept: None)
    assert "difference" in kinds(check(sampled=sampled))


def test_a_block_published_before_commit(check, monkeypatch):
    publish = BlockManager.publish

    def early(self, seq):
        committed, seq.num_computed_tokens = seq.num_computed_tokens, len(seq.token_ids)
        if self.num_blocks_for(seq.num_computed_tokens) <= len(seq.block_table):
            publish(self, seq)
        seq.num_computed_tokens = committed

    monkeypatch.setattr(BlockManager, "publish", early)
    assert "integrity" in kinds(check())


def test_noise_shifted_by_one_position(check, monkeypatch):
    """Only where drafts are verified: the plain reference must stay right."""
    forward = ModelRunner.forward

    def shifted(self, batch, proposal):
        result = forward(self, batch, proposal)
        is_node = torch.ones_like(result.decided_positions)
        is_node[result.row_base[result.row_base >= 0].long()] = 0
        return replace(result, decided_positions=result.decided_positions + is_node)

    monkeypatch.setattr(ModelRunner, "forward", shifted)
    result = check(sampled=True)
    assert "difference" in kinds(result)
    assert result.failures[0]["margin"] >= 0
    assert check(sampled=False).failures == [], "greedy decoding has no noise to shift"


def test_a_skipped_block_return(check, monkeypatch):
    monkeypatch.setattr(BlockManager, "_release", lambda self, block: None)
    assert "integrity" in kinds(check())


def test_settings_meet_pairwise_within_the_limit():
    chosen = settings(2, variants(SpeculativeConfig("ngram")))
    assert len(chosen) <= MAX_SETTINGS
    assert sum(not s.ignore_eos for s in chosen) == 1
    for a, b in product(FACTORS, FACTORS):
        for x, y in product(FACTORS[a], FACTORS[b]):
            possible = (x == y or a != b) and {(a, x), (b, y)} != {
                ("preempt", True),
                ("batch_size", 1),
            }
            met = any(getattr(s, a) == x and getattr(s, b) == y for s in chosen)
            assert met or not possible, (a, x, b, y)


def test_all_takes_every_method_its_trees_and_its_model():
    models = {"draft_model": "tiny-draft-s", "hybrid": "tiny-draft-s"}
    drafters = [d for config in _methods("all", "tiny", "tiny-draft-s") for d in variants(config)]
    methods = {m for m in known_methods() if m in DRAFTS_OF["tiny"] or not takes_model(m)}
    assert {d.method for d in drafters} == methods
    for method in methods:
        ways = [d for d in drafters if d.method == method]
        draws_trees = "max_tree_nodes" in proposer_class(method).options
        assert any(d.max_tree_nodes for d in ways) == draws_trees
        expected = models.get(method, DRAFTS_OF["tiny"].get(method))
        assert {d.model for d in ways} == {expected}
    assert {s.drafter for s in settings(2, drafters)} == set(drafters)


def test_prompts_are_varied_and_share_beginnings():
    varied = vary_prompts([list(range(100)), list(range(50, 200))], 10, 80)
    assert len(varied) == len({tuple(p) for p in varied}) == 10
    assert all(1 <= len(p) <= 80 for p in varied)
    assert varied[2] == varied[0][: len(varied[2])]


@pytest.mark.parametrize("count", (2, 3, 8, 25))
def test_prompts_that_share_a_beginning_are_close(count):
    prompts = [[i] * 100 for i in range(10)]
    varied = vary_prompts(prompts, count, 80)
    assert len(varied) == count
    for i, prompt in enumerate(varied[:-2]):
        near = [other for other in varied[max(0, i - 2) : i + 3] if other[0] == prompt[0]]
        assert len(near) >= 2, "itself and another"
