"""Many steps of draw_candidates and rejection_sample against the target's joint law: a Markov
target and drafter as tables, thousands of sequences at once. Each kind of tree has a control.

What one step consults must not be consulted by another; so runs are several steps long, and steps
overlap in their positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from specfast import reference_sampling as sampling
from specfast.reference_verification import ACCEPT, DRAFT, RESIDUAL, step_word
from tests.unit.sampling_ops import fit
from tests.unit.verification_ops import Trees, draw, reject

V, LENGTH, START = 3, 5, 3  # START: a token of its own, before all others
BATCH = 20_000
PASSES, FAILS = 1e-3, 1e-9


# Laws of the next token after 0, 1, 2 and START. The drafter knows START alone, and is wrong there:
# what its noise proposes twice is rejected twice.
TARGET_LAWS = [[0.54, 0.02, 0.44], [0.05, 0.74, 0.21], [0.01, 0.23, 0.76], [0.58, 0.02, 0.40]]
DRAFT_LAWS = [*[[0.49, 0.10, 0.41]] * 3, [0.18, 0.09, 0.73]]


def law_tables() -> tuple[Tensor, Tensor]:
    """Logits [4, V] of the target and of the drafter."""
    return torch.tensor(TARGET_LAWS).log(), torch.tensor(DRAFT_LAWS).log()


def joint_law(target: Tensor) -> Tensor:
    """[V ** LENGTH]: of the tokens after START."""
    p = target.double().softmax(1)
    law = p[START]
    for _ in range(LENGTH - 1):
        law = law[..., None] * p[:V]
    return law.flatten()


@dataclass(frozen=True)
class Shape:
    """A tree that every step drafts. sampled False: the drafter's best are proposed as they are."""

    parents: tuple[int, ...]
    sampled: bool = True
    vocab_map: tuple[int, ...] | None = None

    def levels(self) -> list[tuple[int, list[int]]]:
        """Each parent with its children."""
        found = sorted(set(self.parents))
        return [(p, [i for i, q in enumerate(self.parents) if q == p]) for p in found]

    def depth(self, node: int) -> int:
        return 0 if node < 0 else 1 + self.depth(self.parents[node])


SHAPES = {
    "chain": Shape((-1, 0, 1)),
    "tree": Shape((-1, -1, 0, 1)),
    "siblings": Shape((-1, -1)),
    "wide tree": Shape((-1, -1, 0, 0, 1, 2)),
    "point masses": Shape((-1, -1, 0, 1), sampled=False),
    "reduced vocabulary": Shape((-1, -1, 0), vocab_map=(2, 0)),
}


class Run:
    """BATCH sequences in step; `noise_node` falsifies whose children the drafter's noise is for."""

    def __init__(self, shape: Shape, noise_node=lambda node: node):
        self.shape, self.noise_node = shape, noise_node
        self.target, self.draft = law_tables()
        width = len(shape.parents) + 1
        self.tokens = np.full((BATCH, 1 + LENGTH + width), START, np.int64)
        self.count = np.ones(BATCH, np.int64)
        self.seeds = torch.arange(BATCH) * 2_654_435_761 + 17
        self.map = None if shape.vocab_map is None else torch.tensor(shape.vocab_map).int()

    def drafts(self, nodes: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Fills nodes [B, 1 + N] (the root's token first); -> law rows [B, N], laws."""
        laws, law_row = [], np.full((BATCH, len(self.shape.parents)), -1)
        every = np.arange(BATCH)
        for parent, children in self.shape.levels():
            logits = self.draft[nodes[:, 1 + parent]]
            logits = logits if self.map is None else logits[:, self.map.long()].contiguous()
            if not self.shape.sampled:
                nodes[:, [1 + c for c in children]] = logits.topk(len(children)).indices
                continue
            depth = self.shape.depth(parent)
            where = (self.count + depth, self.noise_node(parent), self.count)
            ids, law = draw(logits, len(children), self.seeds, *where, d2t=self.map)
            nodes[:, [1 + c for c in children]] = ids
            law_row[:, children] = (BATCH * len(laws) + every)[:, None]
            laws.append(law)
        return law_row, torch.cat(laws) if laws else torch.zeros(1, V)

    def step(self, by_token: bool) -> None:
        nodes = np.zeros((BATCH, 1 + len(self.shape.parents)), np.int64)
        every = np.arange(BATCH)
        nodes[:, 0] = self.tokens[every, self.count - 1]
        law_row, laws = self.drafts(nodes)
        trees = Trees(nodes[:, 1:].tolist(), [list(self.shape.parents)] * BATCH, law_row.tolist())
        got = reject(
            self.target[nodes.flatten()], trees, self.count.tolist(), self.seeds, by_token, laws,
            self.map if self.shape.sampled else None,
        )  # fmt: skip
        accepted = got.num_accepted.numpy()
        padded = np.concatenate((got.path.numpy(), np.full((BATCH, 1), -1)), axis=1)
        emitted = np.take_along_axis(nodes, 1 + padded, axis=1)
        emitted[every, accepted] = got.next_tokens
        running = self.count <= LENGTH
        for j in range(emitted.shape[1]):
            goes = running & (j <= accepted)
            self.tokens[every[goes], self.count[goes] + j] = emitted[goes, j]
        self.count += np.where(running, accepted + 1, 0)

    def counts(self, by_token: bool) -> Tensor:
        """Steps until every sequence has LENGTH new tokens -> counts [V ** LENGTH]."""
        while (self.count <= LENGTH).any():
            self.step(by_token)
        cells = self.tokens[:, 1 : 1 + LENGTH] @ V ** np.arange(LENGTH)[::-1]
        return torch.from_numpy(np.bincount(cells, minlength=V**LENGTH))


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_runs_follow_the_targets_law(shape, by_token):
    target, _ = law_tables()
    counts = Run(SHAPES[shape]).counts(by_token)
    assert fit(counts, joint_law(target)) > PASSES
    assert fit(counts, joint_law(1.1 * target)) < FAILS


@pytest.mark.parametrize("shape", ["tree", "wide tree"])
def test_noise_that_a_depth_shares_is_noticed(shape):
    """Two nodes' children drawn by one noise: keyed by position and step, but not by node."""
    counts = Run(SHAPES[shape], noise_node=lambda node: -1).counts(by_token=False)
    assert fit(counts, joint_law(law_tables()[0])) < FAILS


# --- block verification of a sampled chain in plain torch, its keys a parameter ---


def uniforms(seeds: Tensor, position: Tensor, purpose: int, node: int, root: Tensor) -> Tensor:
    """v [B, 4] of the counters' four lanes."""
    columns = (torch.zeros_like(root), torch.full_like(root, step_word(purpose, node)))
    counter = torch.stack((*columns, position, root), dim=-1)
    return sampling.uniform(sampling.philox(seeds, counter)).double()


def first_steps(keys: str, batch: int) -> Tensor:
    """Counts [V ** LENGTH] of chains of 3 by the block rule. keys: "all" of the noise's counter, or
    "position": position and purpose alone.
    """
    target, draft = (x.double().softmax(1) for x in law_tables())
    seeds = torch.arange(batch) * 2_654_435_761 + 17
    tokens = torch.full((batch, 1 + LENGTH + 4), START)
    count, every, k = torch.ones(batch, dtype=torch.int64), torch.arange(batch), 3

    def noise(at: Tensor, purpose: int, node: int) -> Tensor:
        root = count if keys == "all" else torch.zeros_like(count)
        return uniforms(seeds, at, purpose, node if keys == "all" else -1, root)

    def pick(law: Tensor, at: Tensor, purpose: int, node: int) -> Tensor:
        return (law.log() + sampling.gumbel(noise(at, purpose, node)[:, :V])).argmax(1)

    while (count <= LENGTH).any():
        x, pi = [tokens[every, count - 1]], [torch.ones(batch, dtype=torch.float64)]
        for i in range(k):
            x.append(pick(draft[x[i]], count + i, DRAFT, i - 1))
            ratio = target[x[i], x[i + 1]] / draft[x[i], x[i + 1]]
            pi.append((pi[i] * ratio).clamp_max(1))
        tau, law = torch.zeros_like(count), torch.zeros(batch, V, dtype=torch.float64)
        for i in range(k + 1):
            if i < k:
                rest = (pi[i][:, None] * target[x[i]] - draft[x[i]]).clamp_min(0)
                mass = rest.sum(1)
                h = (mass / (mass + 1 - pi[i])).nan_to_num(1.0)
                empty = (mass == 0)[:, None]
                after = torch.where(empty, target[x[i]], rest / mass[:, None])
            else:
                h, after = pi[k], target[x[k]]
            falls = noise(count + i - 1, ACCEPT, i - 1)[:, 0] < h if i else torch.ones_like(h) > 0
            tau, law = torch.where(falls, i, tau), torch.where(falls[:, None], after, law)
        last = torch.stack([pick(law, count + i, RESIDUAL, i - 1) for i in range(k + 1)])
        running = count <= LENGTH
        for j in range(k + 1):
            goes = running & (j <= tau)
            token = torch.where(j == tau, last[tau, every], x[j + 1] if j < k else last[k])
            tokens[every[goes], (count + j)[goes]] = token[goes]
        count = count + torch.where(running, tau + 1, 0)
    cells = tokens[:, 1 : 1 + LENGTH] @ V ** torch.arange(LENGTH - 1, -1, -1)
    return cells.bincount(minlength=V**LENGTH)


def test_noise_without_node_and_step_is_noticed():
    law = joint_law(law_tables()[0])
    assert fit(first_steps("all", BATCH), law) > PASSES
    assert fit(first_steps("position", BATCH), law) < FAILS
