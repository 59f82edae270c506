"""What a draft would be accepted for, from the target's own greedy text: an exact replay.

A greedy draft is kept while it equals the target's tokens, so what a draft model drafts after kept
tokens is what it predicts from the target's own text: one pass over an answer gives every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specfast.train.batches import collate
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
    """Steps through every answer as the engine does: accept, add the target's own token, go on."""
    accepted_at = np.zeros(k, np.int64)
    num_steps = num_tokens = 0
    for row in matches:
        at = 0
        while at < len(row):
            window = row[at : at + k]
            accepted = window.size if window.all() else int(window.argmin())
            accepted_at[:accepted] += 1
            emitted = min(accepted + 1, len(row) - at)  # nothing follows the answer's end
            num_steps += 1
            num_tokens += emitted
            at += emitted
    steps = max(1, num_steps)
    return Acceptance(
        num_tokens / steps, tuple((accepted_at / steps).tolist()), num_steps, num_tokens
    )
