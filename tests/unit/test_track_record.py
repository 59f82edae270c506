"""What counts for and against a trained head, from steps made by hand."""

from __future__ import annotations

import pytest
import torch

from specfast.proposers.base import DraftTree, Proposal
from specfast.proposers.track_record import ENOUGH_DRAFTS, MIN_FORETOLD, FitCheck
from specfast.verifier import VerifyResult


def decided(next_tokens: list[int], paths: list[list[int]] | None = None) -> VerifyResult:
    """paths: accepted nodes, as many a sequence."""
    path = torch.tensor(paths or [[]] * len(next_tokens), dtype=torch.int32)
    accepted = torch.full((len(next_tokens),), path.shape[1], dtype=torch.int32)
    said = torch.tensor(next_tokens, dtype=torch.int32)
    return VerifyResult(path, accepted, said, (None,) * len(next_tokens))


def counts(proposal: Proposal, result: VerifyResult, verified: Proposal | None = None):
    """-> drafts, and those that foretold what the target said."""
    fit = FitCheck("It")
    fit.proposed(proposal)
    fit.observe(verified or proposal, result)
    return fit._num_drafts, fit._num_foretold


@pytest.mark.parametrize("num_right", [MIN_FORETOLD - 1, MIN_FORETOLD])
def test_so_many_of_enough_drafts_must_be_foretold(num_right, caplog):
    fit = FitCheck("It")
    rows = [[7]] * num_right + [[8]] * (ENOUGH_DRAFTS - num_right)
    for drafts in (rows[:-1], rows[-1:]):
        assert not caplog.text, "there are too few to judge by"
        fit.proposed(Proposal.chains(drafts))
        fit.observe(Proposal.empty(len(drafts)), decided([7] * len(drafts)))
    told = f"It: of {ENOUGH_DRAFTS} drafts the target said {num_right}."
    assert (told in caplog.text) == (num_right < MIN_FORETOLD)


def test_a_sequence_without_drafts_or_decision_does_not_count():
    """Though its padding is what stands for no decision."""
    proposal = Proposal.chains([[7], [], [7], []])
    assert counts(proposal, decided([7, 8, -1, -1])) == (1, 1)


def test_any_first_candidate_counts_and_no_later_node():
    trees = [DraftTree([5, 7, 7], [-1, -1, 0], [1.0] * 3), DraftTree([5, 7], [-1, 0], [1.0] * 2)]
    assert counts(Proposal.trees(trees), decided([7, 7])) == (2, 1)


def test_the_first_of_what_was_accepted_is_what_the_target_said():
    """Of the nodes that were verified, which need not be the head's own."""
    own, verified = Proposal.chains([[7]]), Proposal.chains([[4, 9]])
    assert counts(own, decided([7], [[0, 1]]), verified) == (1, 0)
    verified = Proposal.trees([DraftTree([4, 7], [-1, -1], [1.0] * 2)])
    assert counts(own, decided([3], [[1]]), verified) == (1, 1)


def test_drafts_for_another_batch_do_not_count():
    """As when a sequence was asked for on its own, after a failure."""
    both = Proposal.chains([[7], [7]])
    assert counts(both.only(torch.tensor([0]).numpy()), decided([7, 7]), both) == (0, 0)
    fit = FitCheck("It")
    fit.proposed(both)
    for _ in range(2):  # the second time it was not asked
        fit.observe(both, decided([7, 7]))
    assert fit._num_drafts == 2
