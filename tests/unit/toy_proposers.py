"""Proposers for tests: they know the target's stream, and plant mistakes and branches in it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch

from specfast.proposers.base import Needs, Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.sampler import draw_drafts


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
    drafts = [DraftTree() for _ in trees]
    for draft, tree in zip(drafts, trees):
        for token, parent in tree:
            draft.add(token, parent)
    return Proposal.trees(drafts)


class SampledProposer:
    """Draws trees of fixed shape from a table of draft logits [V, Vd] by the last token.

    widths: children a node at each depth; (1, 1, 1) is a chain. `noise_node` falsifies whose
    children the noise is for.
    """

    needs = Needs()

    def __init__(self, table, widths, vocab_map=None, noise_node=lambda node: node) -> None:
        self.table, self.widths, self.vocab_map = table, widths, vocab_map
        self.noise_node = noise_node

    def propose(self, batch) -> Proposal:
        trees = [_Tree(int(seq.token_ids[-1])) for seq in batch.seqs]
        laws: list[torch.Tensor] = []
        for depth, width in enumerate(self.widths):
            rows = [
                (b, node)
                for b, (deepest, nodes) in enumerate(batch.draft_limits.tolist())
                for node in trees[b].level(depth, width, deepest, nodes)
            ]
            if rows:
                laws.append(self._draw(batch, trees, rows, depth, width, sum(map(len, laws))))
        if not laws:
            return Proposal.empty(len(batch))
        proposal = as_proposal([list(zip(t.tokens, t.parents)) for t in trees])
        law_row = np.full(proposal.tokens.shape, -1, np.int32)
        for b, tree in enumerate(trees):
            law_row[b, : len(tree.law_row)] = tree.law_row
        return replace(
            proposal,
            draft_laws=torch.cat(laws),
            law_row=torch.from_numpy(law_row),
            vocab_map=self.vocab_map,
        )

    def _draw(self, batch, trees, rows, depth, width, first_law) -> torch.Tensor:
        row_seq = np.array([b for b, _ in rows])
        last = [trees[b].token(node) for b, node in rows]
        parents = np.array([self.noise_node(node) for _, node in rows])
        depths = np.full(len(rows), depth)
        drafts = draw_drafts(
            self.table[last], batch.seqs, row_seq, parents, depths, width, self.vocab_map
        )
        for i, (b, node) in enumerate(rows):
            for token in drafts.ids[i].tolist():
                if token >= 0:
                    trees[b].add(token, node, depth, first_law + i)
        return drafts.laws

    def observe(self, batch, proposal, forward, result) -> None:
        pass

    def release(self, seq) -> None:
        pass

    def reset(self) -> None:
        pass


class _Tree:
    """One sequence's tree while it is drawn, level by level."""

    def __init__(self, root_token: int) -> None:
        self.root_token = root_token
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.law_row: list[int] = []

    def token(self, node: int) -> int:
        return self.root_token if node < 0 else self.tokens[node]

    def level(self, depth: int, width: int, deepest: int, most: int) -> list[int]:
        """The nodes whose children come next: all of this depth, if they fit."""
        found = [-1] if depth == 0 else [i for i, d in enumerate(self.depths) if d == depth - 1]
        fits = depth < deepest and len(self.tokens) + width * len(found) <= most
        return found if fits else []

    def add(self, token: int, parent: int, depth: int, law: int) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.law_row.append(law)
