"""Training of a head that drafts on from its own output: its loss, and what it is accepted for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specfast.train.acceptance import Acceptance, TrainingResult, chain_acceptance, result_of
from specfast.train.batches import FeatureBatch, FeatureBatches, collate_features
from specfast.train.corpus import Corpus
from specfast.train.data import Answer
from specfast.train.feature_source import FeatureSource
from specfast.train.frozen import Frozen
from specfast.train.head_loss import best_rows, head_loss, target_law
from specfast.train.head_unroll import UnrolledHead
from specfast.train.loop import LoopSettings, train
from specfast.train.writers import Report
from specfast.validation import require

K = 5  # drafts a step that acceptance is told for
_DECAY = 0.8  # weight of a step's loss, beside the step before
_PREVIEW_ANSWERS, _PREVIEW_STEPS = 48, 200
_EVAL_BATCH = 8


class UnrollSettings(Protocol):
    """What of a head's settings its training reads; see EagleSettings."""

    @property
    def unroll(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def label_weight(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def bfloat16(self) -> bool: ...


@torch.no_grad()
def rights_of(
    head: UnrolledHead, frozen: Frozen, source: FeatureSource, answers: Sequence[Answer], k: int = K
) -> list[np.ndarray]:
    """Per answer [A - 1, k] bool: of the step that begins behind answer token n, which drafts are
    the text's tokens, all tokens before them given. An exact replay of greedy chains.
    """
    device, was_training = head.device, head.training
    head.eval()
    found = {}
    for group in _groups(answers):
        longest = max(len(a.tokens) for a in group)
        batch = collate_features(group, source.of(group), longest).to(device)
        rights = torch.stack(list(_rights(head, frozen, batch, k)), -1).cpu().numpy()
        for answer, own in zip(group, rights):
            found[answer.index] = own[: answer.num_answer_tokens - 1]
    head.train(was_training)
    return [found[a.index] for a in answers]


def _groups(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    ordered = sorted(answers, key=lambda a: a.num_answer_tokens)
    for at in range(0, len(ordered), _EVAL_BATCH):
        yield ordered[at : at + _EVAL_BATCH]


def _rights(head: UnrolledHead, frozen: Frozen, batch: FeatureBatch, k: int) -> Iterator[Tensor]:
    """Per step [B, N] bool."""
    rows = head.rows(frozen)
    for draft in head.unroll(frozen.embedding, batch, k):
        guesses = best_rows(draft.hidden, rows)
        if frozen.d2t is not None:
            guesses = frozen.d2t.to(guesses.device)[guesses]
        right = torch.zeros_like(draft.counts)
        right[draft.counts] = guesses == draft.tokens
        yield right


class HeadRun:
    """Which batch a step takes, its loss, and a look at acceptance now and then."""

    def __init__(
        self,
        head: UnrolledHead,
        frozen: Frozen,
        corpus: Corpus,
        source: FeatureSource,
        held_out: FeatureSource,
        settings: UnrollSettings,
        loop: LoopSettings,
        seed: int,
        report: Report,
    ) -> None:
        self.head, self.frozen, self.corpus, self.held_out = head, frozen, corpus, held_out
        self.settings, self.loop, self.seed, self.report = settings, loop, seed, report
        drafted = [a for a in corpus.train if a.num_answer_tokens > 1]
        require(bool(drafted), "No answer is longer than a token, so there is nothing to draft.")
        self.batches = FeatureBatches(source, drafted, settings.batch_size, settings.context, seed)
        self.preview = corpus.held_out[:: max(1, len(corpus.held_out) // _PREVIEW_ANSWERS)]
        self.seen: Acceptance | None = None
        self.losses = self.shares = np.zeros(0)

    def train(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        train(self.head, self._loss, self.loop, checkpoint, identity, self._on_step)

    def measure(self) -> TrainingResult:
        """With the weights as they are saved, in bfloat16."""
        saved = self.head.saved()
        rights = rights_of(saved, self.frozen, self.held_out, self.corpus.held_out)
        num_parameters = sum(t.numel() for t in self.head.tensors(torch.bfloat16).values())
        return result_of(rights, self.corpus, self.frozen.row_of.cpu(), num_parameters)

    def _loss(self, step: int) -> Tensor:
        batch = self.batches.at(step).to(self.head.device)
        torch.manual_seed(self.seed + step)  # of dropout
        device = self.head.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.settings.bfloat16):
            losses, shares = unroll_losses(self.head, self.frozen, batch, self.settings)
        self._remember(torch.stack(losses).detach().cpu().numpy(), np.array(shares))
        weights = [_DECAY**s for s in range(len(losses))]
        return sum(w * loss for w, loss in zip(weights, losses)) / sum(weights)  # type: ignore[return-value]

    def _remember(self, losses: np.ndarray, shares: np.ndarray) -> None:
        if len(losses) != self.settings.unroll:
            return  # texts too short for all steps
        before = (self.losses, self.shares) if len(self.losses) else (losses, shares)
        self.losses = 0.98 * before[0] + 0.02 * losses
        self.shares = 0.98 * before[1] + 0.02 * shares

    def _on_step(self, step: int, loss: float) -> None:
        if step % _PREVIEW_STEPS == 0:
            rights = rights_of(self.head, self.frozen, self.held_out, self.preview)
            self.seen = chain_acceptance(rights)
        words = f"loss {_spaced(self.losses)}, right {_spaced(self.shares)}"
        if self.seen:
            by_position = _spaced(self.seen.per_position)
            words += f", acceptance length {self.seen.length:.2f} ({by_position})"
        self.report("training", step, self.loop.steps, words)


def _spaced(values: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def unroll_losses(
    head: UnrolledHead, frozen: Frozen, batch: FeatureBatch, settings: UnrollSettings
) -> tuple[list[Tensor], list[float]]:
    """The mean loss of every step that some text is long enough for, and how often its best token
    was the target's.
    """
    rows, weights = target_law(
        batch.top_ids, batch.top_logits, frozen.row_of, settings.label_weight
    )
    wanted = frozen.row_of[batch.top_ids[:, 0]]
    losses, shares = [], []
    for draft in head.unroll(frozen.embedding, batch, settings.unroll):
        if not len(draft.law):
            break
        law = draft.law
        loss, best = head_loss(draft.hidden, head.rows(frozen), rows[law], weights[law])
        losses.append(loss)
        shares.append(float((best == wanted[law]).float().mean()))
    return losses, shares
