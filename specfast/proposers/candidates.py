"""What a draft model's logits propose at each of its rows, and how far each is to be believed."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast.sampler import draw_drafts
from specfast.sampling_params import GREEDY_TEMPERATURE
from specfast.sequence import Sequence

NUM_RANKED = 10  # whose shares sum to 1 where there is noise; the ninth hardly ever gets any
TAU = 0.75  # how sharply perturbed scores foretell acceptance, before anything is calibrated


@dataclass(frozen=True)
class ParentRows:
    """Rows of draft logits, each for the children of one node.

    row_seq [R]: index into the batch; nodes [R] int32: the node in its tree, -1 the root; positions
    [R] int32: of the children.
    """

    row_seq: np.ndarray
    nodes: np.ndarray
    positions: Tensor

    def __len__(self) -> int:
        return len(self.row_seq)


class Chooser(Protocol):
    """Chooses children, row by row, for one proposal."""

    def children(self, logits: Tensor, rows: ParentRows) -> tuple[np.ndarray, np.ndarray]:
        """-> target ids [R, m] int32 (-1: there are no more) and the confidence in each [R, m]
        float32, from logits [R, Vd] that are valid until the next call.
        """

    def origin(self, rows: np.ndarray) -> dict[str, Any]:
        """What Proposal is told of where its drafts come from. rows [B, N] int32: of all rows so
        far, the one that each node was a child of (-1: padding).
        """


class Ranking:
    """For matching: best by the target's own noise, which the target will decide by.

    Where there is noise, the confidence is the candidates' share by their perturbed scores, never
    the draft's probability, which knows nothing of the noise. NaN where the logits are no numbers.
    Not coupled, for point masses under another rule: best by the draft's probability.
    """

    def __init__(self, seqs: Seqs[Sequence], d2t: Tensor | None, is_coupled: bool = True) -> None:
        temperatures = [s.params.temperature if is_coupled else 0.0 for s in seqs]
        self._temperature = np.array(temperatures, np.float32)
        self._seeds = np.array([s.seed for s in seqs], np.uint64).view(np.int64)
        self._d2t = d2t

    def children(self, logits: Tensor, rows: ParentRows) -> tuple[np.ndarray, np.ndarray]:
        num_rows, num_ranked = len(logits), min(NUM_RANKED, logits.shape[1])
        ids = torch.empty(num_rows, num_ranked, dtype=torch.int32)
        scores = torch.empty(num_rows, num_ranked)
        temperature = self._temperature[rows.row_seq]
        ops.rank_candidates(
            logits, torch.from_numpy(temperature), torch.from_numpy(self._seeds[rows.row_seq]),
            rows.positions, ids, scores, self._d2t,
        )  # fmt: skip
        return ids.numpy(), _confidence(logits, scores.numpy(), temperature)

    def origin(self, rows: np.ndarray) -> dict[str, Any]:
        return {}


class Drawing:
    """For rejection: drawn without replacement from the draft's law, by noise of their own.

    vocab_map [Vd] int32: target ids, ascending.
    """

    def __init__(self, seqs: Seqs[Sequence], num_children: int, vocab_map: Tensor | None) -> None:
        self._seqs, self._num_children, self._vocab_map = seqs, num_children, vocab_map
        self._lengths = np.array([len(s.token_ids) for s in seqs], np.int32)
        self._laws: list[Tensor] = []

    def children(self, logits: Tensor, rows: ParentRows) -> tuple[np.ndarray, np.ndarray]:
        depths = rows.positions.numpy() - self._lengths[rows.row_seq]
        drafts = draw_drafts(
            logits, self._seqs, rows.row_seq, rows.nodes, depths,
            min(self._num_children, logits.shape[1]), self._vocab_map,
        )  # fmt: skip
        self._laws.append(drafts.laws)
        return drafts.ids.numpy(), self._confidence(drafts.laws, drafts.ids)

    def origin(self, rows: np.ndarray) -> dict[str, Any]:
        return {
            "draft_laws": torch.cat(self._laws),
            "law_row": torch.from_numpy(rows),
            "vocab_map": self._vocab_map,
        }

    def _confidence(self, laws: Tensor, ids: Tensor) -> np.ndarray:
        """What is likely to the draft mostly is to the target; what is not is accepted every other
        time all the same, however unlikely, for p / q is as often above 1.
        """
        columns = ids if self._vocab_map is None else torch.searchsorted(self._vocab_map, ids)
        chosen = laws.gather(1, columns.long().clamp(min=0))
        probability = (chosen - laws.logsumexp(1, keepdim=True)).exp().nan_to_num(0.0)
        every_other = 0.5 / torch.arange(1, ids.shape[1] + 1)
        return torch.maximum(probability, every_other).numpy()


def _confidence(logits: Tensor, scores: np.ndarray, temperature: np.ndarray) -> np.ndarray:
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
