"""What a draft would be accepted for, from the target's own greedy text: an exact replay.

A greedy draft is kept while it equals the target's tokens, so what a draft model drafts after kept
tokens is what it predicts from the target's own text: one pass over an answer gives every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from specfast.data import CHAT
from specfast.train.batches import collate
from specfast.train.corpus import Corpus
from specfast.train.data import Answer
from specfast.train.student import Student

K = 4
_BATCH = 16


@dataclass(frozen=True)
class Acceptance:
    """length: tokens a verify step, the bonus included; per_position[i]: share of the steps that
    accepted draft i; over so many steps and tokens.
    """

    length: float
    per_position: tuple[float, ...]
    num_steps: int
    num_tokens: int


@dataclass(frozen=True)
class TrainingResult:
    """Held-out acceptance of saved weights: all of it, and by category ("chat": MT-bench's eight
    together). coverage: share of the target's choices there that the drafter has a row for.
    """

    acceptance: Acceptance
    by_category: dict[str, Acceptance]
    num_parameters: int
    num_train_tokens: int
    coverage: float

    def figures(self) -> dict[str, Any]:
        """For the card."""
        k = len(self.acceptance.per_position)
        return {
            "parameters": self.num_parameters,
            "target tokens trained on": self.num_train_tokens,
            "held-out tokens": self.acceptance.num_tokens,
            "share of them that it can draft": self.coverage,
            f"acceptance length, k = {k}": self.acceptance.length,
            "acceptance by position": list(self.acceptance.per_position),
            "acceptance length by category": {
                name: found.length for name, found in self.by_category.items()
            },
        }


@torch.no_grad()
def matches_of(student: Student, answers: Sequence[Answer]) -> list[np.ndarray]:
    """Per answer [A - 1] bool: would the draft have guessed answer token 1, 2, ...? (The first
    comes from the prefill, before there is anything to draft.)
    """
    device, was_training = next(student.parameters()).device, student.training
    student.eval()
    order = sorted(range(len(answers)), key=lambda i: len(answers[i].tokens))
    found: list[np.ndarray] = [np.empty(0, bool)] * len(answers)
    for begin in range(0, len(order), _BATCH):
        group = order[begin : begin + _BATCH]
        batch = collate([answers[i] for i in group], student.context).to(device)
        hidden = student(batch.tokens).flatten(0, 1)[batch.rows]
        guesses = student.logits(hidden).argmax(1)
        if student.d2t is not None:
            guesses = student.d2t[guesses]
        rows = 0
        for i in group:
            wanted = answers[i].tokens[answers[i].num_prompt_tokens :]
            guessed = guesses[rows : rows + len(wanted)].cpu().numpy()
            rows += len(wanted)
            found[i] = guessed[1:] == wanted[1:]
    student.train(was_training)
    return found


def acceptance(matches: Sequence[np.ndarray], k: int = K) -> Acceptance:
    """Of drafts that are the same whichever step they are drafted in."""
    return chain_acceptance(chains_of(matches, k))


def chains_of(matches: Sequence[np.ndarray], k: int = K) -> list[np.ndarray]:
    """What chain_acceptance takes, of such drafts."""
    padded = (np.concatenate([row, np.zeros(k, bool)]) for row in matches)
    return [sliding_window_view(row, k)[:-1] for row in padded]


def chain_acceptance(chains: Sequence[np.ndarray]) -> Acceptance:
    """Steps through every answer as the engine does: accept, add the target's own token, go on.

    chains: per answer [N, k] bool: of the step that would begin before token n of those that can
    be drafted, which drafts would be right; nothing past the answer's end is.
    """
    accepted_at = np.zeros(chains[0].shape[1] if chains else 0, np.int64)
    num_steps = num_tokens = 0
    for rights in chains:
        at = 0
        while at < len(rights):
            row = rights[at]
            accepted = row.size if row.all() else int(row.argmin())
            accepted_at[:accepted] += 1
            emitted = min(accepted + 1, len(rights) - at)  # nothing follows the answer's end
            num_steps += 1
            num_tokens += emitted
            at += emitted
    steps = max(1, num_steps)
    return Acceptance(
        num_tokens / steps, tuple((accepted_at / steps).tolist()), num_steps, num_tokens
    )


def by_category(chains: Sequence[np.ndarray], categories: Sequence[str]) -> dict[str, Acceptance]:
    """chain_acceptance of each category ("chat": MT-bench's eight together)."""
    groups: dict[str, list[np.ndarray]] = {}
    for category, rights in zip(categories, chains):
        for name in (category, *(("chat",) if category in CHAT else ())):
            groups.setdefault(name, []).append(rights)
    return {name: chain_acceptance(found) for name, found in sorted(groups.items())}


def result_of(
    chains: Sequence[np.ndarray], corpus: Corpus, row_of: Tensor, num_parameters: int
) -> TrainingResult:
    """chains: of corpus.held_out; row_of [V]: each token's row in the drafter's head, or -1."""
    best = torch.from_numpy(np.concatenate([a.top_ids[:, 0] for a in corpus.held_out])).long()
    return TrainingResult(
        chain_acceptance(chains),
        by_category(chains, corpus.held_out_categories),
        num_parameters,
        sum(a.num_answer_tokens for a in corpus.train),
        float((row_of[best] >= 0).float().mean()),
    )
