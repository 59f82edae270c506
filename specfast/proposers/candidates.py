"""What a draft model's logits propose at each of its rows, and how far each is to be believed."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast.config import GREEDY_TEMPERATURE
from specfast.sequence import Sequence

NUM_RANKED = 8  # whose shares sum to 1 where there is noise; the ninth hardly ever gets any
TAU = 0.75  # how sharply perturbed scores foretell acceptance, before anything is calibrated


@dataclass(frozen=True)
class Laws:
    """How each sequence of a batch draws its tokens: temperature [B] float32, seeds [B] int64."""

    temperature: np.ndarray
    seeds: np.ndarray

    @classmethod
    def of(cls, seqs: Seqs[Sequence]) -> Laws:
        temperature = np.array([s.params.temperature for s in seqs], np.float32)
        return cls(temperature, np.array([s.seed for s in seqs], np.uint64).view(np.int64))

    def rows(self, row_seq: np.ndarray) -> Laws:
        return Laws(self.temperature[row_seq], self.seeds[row_seq])


def rank(
    logits: Tensor, laws: Laws, positions: Tensor, d2t: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """-> the best target ids of each row [R, m] int32 (-1: there are no more) and the confidence in
    each [R, m] float32, by logits [R, Vd] and the noise of the positions decided [R].
    """
    num_rows, num_ranked = len(logits), min(NUM_RANKED, logits.shape[1])
    ids = torch.empty(num_rows, num_ranked, dtype=torch.int32)
    scores = torch.empty(num_rows, num_ranked)
    temperature, seeds = torch.from_numpy(laws.temperature), torch.from_numpy(laws.seeds)
    ops.rank_candidates(logits, temperature, seeds, positions, ids, scores, d2t)
    return ids.numpy(), confidence(logits, scores.numpy(), laws.temperature)


def confidence(logits: Tensor, scores: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    """That each candidate is what its row decides. Where there is noise it is the candidates' share
    by their perturbed scores, never the draft's probability, which knows nothing of the noise.

    NaN where the logits are no numbers.
    """
    greedy = temperature < GREEDY_TEMPERATURE
    with np.errstate(invalid="ignore"):
        if greedy.all():
            return _probability(logits, scores)
        weights = np.exp((scores - scores[:, :1]) / np.float32(TAU))
        shares = weights / weights.sum(axis=1, keepdims=True)
        if greedy.any():
            shares[greedy] = _probability(logits[torch.from_numpy(greedy)], scores[greedy])
    return shares


def _probability(logits: Tensor, scores: np.ndarray) -> np.ndarray:
    """The softmax of the logits at those that scores repeat."""
    return np.exp(scores - torch.logsumexp(logits, 1, keepdim=True).numpy())
