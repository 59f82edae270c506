"""Which nodes of a proposal are reached, in plain numpy: the oracle of the choice of nodes."""

from __future__ import annotations

import numpy as np

from specfast.control.decided import Decided
from specfast.proposers.base import Proposal


def survival(proposal: Proposal, probability: np.ndarray) -> np.ndarray:
    """That each node and all its ancestors are accepted [B, N], from what each is given its parent;
    -1 for padding.
    """
    if proposal.are_chains:
        reach = np.cumprod(probability, axis=1)
    else:
        parents, every = proposal.parents.numpy(), np.arange(len(proposal.lengths))
        reach = np.empty(parents.shape)
        for node in range(parents.shape[1]):
            above = np.where(parents[:, node] < 0, 1.0, reach[every, parents[:, node]])
            reach[:, node] = above * probability[:, node]
    reach[~is_node(proposal)] = -1.0
    return reach


def outcomes(proposal: Proposal, result: Decided) -> tuple[np.ndarray, np.ndarray]:
    """[B, N] bool each: nodes that the target decided, since their parents were accepted; and those
    that it accepted.
    """
    shape = proposal.tokens.shape
    accepted = np.zeros((shape[0], shape[1] + 1), bool)  # the last column stands for the root
    path, counts = result.path.numpy(), result.num_accepted.numpy()
    row, column = np.nonzero(np.arange(shape[1]) < counts[:, None])
    accepted[row, path[row, column]] = True
    accepted[:, -1] = True
    is_tested = np.take_along_axis(accepted, proposal.parents.numpy(), 1) & is_node(proposal)
    return is_tested, accepted[:, :-1]


def is_node(proposal: Proposal) -> np.ndarray:
    """[B, N] bool: no padding."""
    return np.arange(proposal.tokens.shape[1]) < proposal.lengths.numpy()[:, None]
