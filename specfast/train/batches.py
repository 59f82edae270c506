"""Batches of answers: which come when is a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specfast.train.data import Answer
from specfast.train.feature_source import FeatureSource

_SORTED = 16  # batches that are sorted by length together, so that little is padded


@dataclass(frozen=True)
class Batch:
    """tokens [B, T] int64, padded behind. Row i of rows [R] int64 indexes the flattened [B T]
    position that decides; top_ids [R, K] int64 and top_logits [R, K] are the target's.
    """

    tokens: Tensor
    rows: Tensor
    top_ids: Tensor
    top_logits: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))


@dataclass(frozen=True)
class FeatureBatch:
    """Whole texts with the target's hidden states: tokens [B, T] int64 and features [B, T - 1, F]
    bfloat16, both padded behind with 0; features[b, i] is what the target's layers saw of token i.

    law [B, T] int64: the row of top_ids [R, K] int64 and top_logits [R, K], both the target's, that
    decided the token; -1 where none did (prompt, padding). starts [B] int64: the first that was.
    """

    tokens: Tensor
    features: Tensor
    law: Tensor
    starts: Tensor
    top_ids: Tensor
    top_logits: Tensor

    def to(self, device: torch.device) -> FeatureBatch:
        return FeatureBatch(*(t.to(device, non_blocking=True) for t in vars(self).values()))


class _Order:
    """Every epoch is a new order of all answers."""

    def __init__(self, answers: Sequence[Answer], batch_size: int, seed: int) -> None:
        assert answers, "nothing to train on"
        self._answers = answers
        self._size = min(batch_size, len(answers))
        self._seed = seed
        self._epoch, self._plan = -1, np.empty((0, 0), np.int64)

    @property
    def per_epoch(self) -> int:
        return len(self._answers) // self._size

    def answers_at(self, step: int) -> list[Answer]:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._order(epoch)
        return [self._answers[i] for i in self._plan[index]]

    def _order(self, epoch: int) -> np.ndarray:
        """[batches, size]: shuffled, sorted by length within stretches, batches shuffled again."""
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(len(self._answers))[: self.per_epoch * self._size]
        lengths = np.array([len(a.tokens) for a in self._answers])
        stretch = _SORTED * self._size
        parts = [order[i : i + stretch] for i in range(0, len(order), stretch)]
        ordered = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in parts])
        return ordered.reshape(self.per_epoch, self._size)[rng.permutation(self.per_epoch)]


class Batches(_Order):
    """Of tokens and what the target decided by them."""

    def __init__(self, answers: Sequence[Answer], batch_size: int, context: int, seed: int) -> None:
        super().__init__(answers, batch_size, seed)
        self._context = context

    def at(self, step: int) -> Batch:
        return collate(self.answers_at(step), self._context)


class FeatureBatches(_Order):
    """Of texts with the target's hidden states."""

    def __init__(
        self,
        source: FeatureSource,
        answers: Sequence[Answer],
        batch_size: int,
        context: int,
        seed: int,
    ) -> None:
        super().__init__(answers, batch_size, seed)
        self._source, self._context = source, context

    def at(self, step: int) -> FeatureBatch:
        answers = self.answers_at(step)
        return collate_features(answers, self._source.of(answers), self._context)


def collate(answers: Sequence[Answer], context: int) -> Batch:
    """An answer longer than the context loses its beginning."""
    cut = [max(0, len(a.tokens) - 1 - context) for a in answers]
    inputs = [a.tokens[c:-1] for a, c in zip(answers, cut)]
    width = max(map(len, inputs))
    tokens = np.zeros((len(answers), width), np.int64)
    rows, ids, logits = [], [], []
    for b, (answer, begin, tail) in enumerate(zip(answers, cut, inputs)):
        tokens[b, : len(tail)] = tail
        first = max(answer.num_prompt_tokens - 1 - begin, 0)
        rows.append(b * width + np.arange(first, len(tail)))
        skipped = answer.num_answer_tokens - (len(tail) - first)
        ids.append(answer.top_ids[skipped:])
        logits.append(answer.top_logits[skipped:])
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.concatenate(rows)),
        torch.from_numpy(np.concatenate(ids)).long(),
        torch.from_numpy(np.concatenate(logits)).float(),
    )


def collate_features(
    answers: Sequence[Answer], features: Sequence[Tensor], context: int
) -> FeatureBatch:
    """An answer longer than the context loses its beginning."""
    cut = [max(0, len(a.tokens) - context) for a in answers]
    width = max(len(a.tokens) - c for a, c in zip(answers, cut))
    tokens = torch.zeros(len(answers), width, dtype=torch.int64)
    padded = features[0].new_zeros(len(answers), width - 1, features[0].shape[1])
    law, starts, ids, logits = torch.full_like(tokens, -1), [], [], []
    num_rows = 0
    for b, (answer, begin) in enumerate(zip(answers, cut)):
        length, start = len(answer.tokens) - begin, max(answer.num_prompt_tokens - begin, 1)
        tokens[b, :length] = torch.from_numpy(answer.tokens[begin:])
        padded[b, : length - 1] = features[b][begin:]
        law[b, start:length] = torch.arange(num_rows, num_rows + length - start)
        num_rows += length - start
        starts.append(start)
        ids.append(answer.top_ids[start - length :])
        logits.append(answer.top_logits[start - length :])
    return FeatureBatch(
        tokens,
        padded,
        law,
        torch.tensor(starts),
        torch.from_numpy(np.concatenate(ids)).long(),
        torch.from_numpy(np.concatenate(logits)).float(),
    )
