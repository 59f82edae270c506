"""Proposers for tests: they know the target's stream, and plant mistakes and branches in it."""

from __future__ import annotations

import random

import numpy as np
import torch

from specfast.proposers.base import Needs, Proposal


class TreeProposer:
    """Trees along a known continuation: at each depth wrong siblings first, the right one last.

    `streams` maps a prompt to its whole token stream; `wrong` siblings a level; with `miss`
    probability a level holds no right child. Random, but a function of its seed and the tokens.
    """

    needs = Needs()

    def __init__(
        self,
        streams: dict[tuple[int, ...], list[int]],
        wrong: int = 1,
        miss: float = 0.0,
        vocab: int = 40,
    ) -> None:
        self.streams, self.wrong, self.miss, self.vocab = streams, wrong, miss, vocab

    def propose(self, batch) -> Proposal:
        trees = [
            self._tree(s, *map(int, limit)) for s, limit in zip(batch.seqs, batch.draft_limits)
        ]
        return as_proposal(trees)

    def _tree(self, seq, depth: int, nodes: int) -> list[tuple[int, int]]:
        rng = random.Random(str(seq.token_ids))
        stream = self.streams[tuple(seq.token_ids[: seq.num_prompt_tokens])]
        ahead = stream[len(seq.token_ids) : len(seq.token_ids) + depth]
        tree: list[tuple[int, int]] = []
        parent = -1
        for token in ahead:
            others = rng.sample([t for t in range(self.vocab) if t != token], self.wrong)
            children = others if rng.random() < self.miss else [*others, token]
            if len(tree) + len(children) > nodes:
                break
            tree += [(child, parent) for child in children]
            parent = len(tree) - 1
        return tree

    def observe(self, batch, proposal, forward, result) -> None:
        pass

    def release(self, seq) -> None:
        pass

    def reset(self) -> None:
        pass


def as_proposal(trees: list[list[tuple[int, int]]]) -> Proposal:
    """(token, parent) lists -> a padded Proposal."""
    width = max(map(len, trees), default=0)
    tokens = np.full((len(trees), width), -1, np.int32)
    parents = np.full((len(trees), width), -1, np.int32)
    for row, tree in enumerate(trees):
        for node, (token, parent) in enumerate(tree):
            tokens[row, node], parents[row, node] = token, parent
    lengths = np.array([len(t) for t in trees], np.int32)
    confidence = np.ones(tokens.shape, np.float32)
    return Proposal(*map(torch.from_numpy, (tokens, parents, lengths, confidence)))
