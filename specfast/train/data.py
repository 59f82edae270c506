"""What the target writes: its answers with the best logits of every step, cached on disk.

The target's own engine writes them, batched; a proposer that drafts nothing records the logits
that it decides by, so that no second pass over the text is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specfast.engine import Engine
from specfast.models.runner import Forward
from specfast.proposers.base import Needs, Proposal
from specfast.request import Request
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch
from specfast.sequence import Sequence as TokenSequence
from specfast.train.features import FeatureStore
from specfast.train.prompts import TargetPrompt
from specfast.train.work_files import reading

SHARD_ANSWERS = 128
_OUTSTANDING = 2  # requests handed to the engine, over those that it runs at once


@dataclass(frozen=True)
class Answer:
    """One answer. tokens [P + A] int32: prompt and answer; top_ids [A, K] int32, best first, and
    top_logits [A, K] float16, less the best one: row i decided answer token i.
    """

    index: int
    num_prompt_tokens: int
    tokens: np.ndarray
    top_ids: np.ndarray
    top_logits: np.ndarray

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


@dataclass(frozen=True)
class Record:
    """One sequence: top_ids and top_logits [A, K] as in Answer, and the hidden states that its
    tokens but the last met, bfloat16 [P + A - 1, layers hidden].
    """

    top_ids: np.ndarray
    top_logits: np.ndarray
    features: Tensor


class Recorder:
    """A proposer that proposes nothing and keeps the target's best logits and hidden states."""

    def __init__(self, top: int, layers: tuple[int, ...] = ()) -> None:
        self.needs = Needs(top_k=top, layers=layers)
        self._rows: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._features: dict[int, list[Tensor]] = {}

    def propose(self, batch: Batch) -> Proposal:
        return Proposal.empty(len(batch))

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        assert isinstance(forward, Forward) and forward.top
        ids = forward.top.token_ids.clone()
        logits = (forward.top.logits - forward.top.logits[:, :1]).half()
        features = forward.features.bfloat16()
        for b, (seq, row) in enumerate(zip(batch.seqs, forward.row_base.tolist())):
            tail = features[forward.first_row[b] : forward.first_row[b + 1]]
            # From its start on, for a sequence that was preempted is computed again.
            self._features.setdefault(seq.seq_id, [])[batch.starts[b] :] = tail.unbind()
            if row >= 0:
                self._rows.setdefault(seq.seq_id, []).append((ids[row], logits[row]))

    def release(self, seq: TokenSequence) -> None:
        """Nothing: what was recorded is taken by `take`."""

    def reset(self) -> None:
        self._rows.clear()
        self._features.clear()

    def take(self, seq_id: int) -> Record:
        """What the sequence's rows were so far; forgets them."""
        ids, logits = zip(*self._rows.pop(seq_id))
        features = torch.stack(self._features.pop(seq_id))
        return Record(torch.stack(ids).numpy(), torch.stack(logits).numpy(), features)


_COLUMNS = "index", "num_prompt_tokens", "lengths", "tokens", "top_ids", "top_logits"


class AnswerStore:
    """A folder of shards; an answer is there once its shard is. What comes first is what finished
    first, but `load` sorts by index, so an interruption leaves no trace in the data. Stores that
    write at the same time have a `part` each.
    """

    def __init__(self, folder: Path, part: int = 0) -> None:
        self.folder = folder
        self._part = part
        folder.mkdir(parents=True, exist_ok=True)
        self._pending: list[Answer] = []

    def done(self) -> set[int]:
        """Indices of the answers on disk."""
        return {int(i) for path in self._shards() for i in _arrays(path, ("index",))["index"]}

    def add(self, answer: Answer) -> None:
        self._pending.append(answer)
        if len(self._pending) >= SHARD_ANSWERS:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending as one shard, whole or not at all."""
        if not self._pending:
            return
        number = len(list(self.folder.glob(f"answers-{self._part}-*.npz")))
        path = self.folder / f"answers-{self._part}-{number:05d}.npz"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(
                file,
                index=np.array([a.index for a in self._pending], np.int32),
                num_prompt_tokens=np.array([a.num_prompt_tokens for a in self._pending], np.int32),
                lengths=np.array([len(a.tokens) for a in self._pending], np.int32),
                tokens=np.concatenate([a.tokens for a in self._pending]),
                top_ids=np.concatenate([a.top_ids for a in self._pending]),
                top_logits=np.concatenate([a.top_logits for a in self._pending]),
            )
        os.replace(partial, path)
        self._pending = []

    def load(self) -> list[Answer]:
        """Every answer on disk, by index."""
        found = [answer for path in self._shards() for answer in _read_shard(path)]
        return sorted(found, key=lambda a: a.index)

    def _shards(self) -> list[Path]:
        return sorted(self.folder.glob("answers-*.npz"))


def _arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    with reading(path), np.load(path) as shard:
        return {name: shard[name] for name in names}


def _read_shard(path: Path) -> Iterator[Answer]:
    arrays = _arrays(path, _COLUMNS)
    token, row = 0, 0
    entries = zip(arrays["index"], arrays["num_prompt_tokens"], arrays["lengths"])
    for index, num_prompt, length in ((int(i), int(p), int(n)) for i, p, n in entries):
        rows = slice(row, row + length - num_prompt)
        yield Answer(
            index, num_prompt, arrays["tokens"][token : token + length],
            arrays["top_ids"][rows], arrays["top_logits"][rows],
        )  # fmt: skip
        token, row = token + length, rows.stop


def write_answers(
    engine: Engine,
    recorder: Recorder,
    prompts: Sequence[TargetPrompt],
    store: AnswerStore,
    max_answer_tokens: int,
    on_answers: Callable[[int, int], None] = lambda num_answers, num_tokens: None,
    indices: Sequence[int] | None = None,
    features: FeatureStore | None = None,
) -> None:
    """Answers the prompts that the store lacks, of those at `indices` if given.

    on_answers(answers so far, tokens written now). features: where the recorder's go too.
    """
    done = store.done()
    wanted = range(len(prompts)) if indices is None else indices
    missing = [i for i in wanted if i not in done]
    num_done, num_tokens = len(done), 0
    on_answers(num_done, 0)
    for index, request in _answered(engine, prompts, iter(missing), max_answer_tokens):
        answer, seen = _answer(index, request, recorder)
        store.add(answer)
        if features:
            assert len(seen) == len(answer.tokens) - 1, "a prefix hit has no hidden states"
            features.add(index, seen)
        num_done, num_tokens = num_done + 1, num_tokens + answer.num_answer_tokens
        on_answers(num_done, num_tokens)
    store.flush()


def _answered(
    engine: Engine, prompts: Sequence[TargetPrompt], indices: Iterator[int], max_tokens: int
) -> Iterator[tuple[int, Request]]:
    """Finished requests in the order in which they finish."""
    running: dict[int, Request] = {}
    while True:
        while len(running) < _OUTSTANDING * engine.config.max_num_seqs:
            if (index := next(indices, None)) is None:
                break
            prompt = prompts[index]
            params = SamplingParams(
                temperature=prompt.temperature, seed=prompt.seed, max_tokens=max_tokens
            )
            running[index] = engine.add_request(prompt.token_ids, params)
        if not running:
            return
        if any(output.finish for output in engine.step()):
            for index in [i for i, request in running.items() if request.finished]:
                yield index, running.pop(index)


def _answer(index: int, request: Request, recorder: Recorder) -> tuple[Answer, Tensor]:
    (seq,) = request.seqs
    if seq.finish and seq.finish.reason == "error":
        raise ValueError(f"The target failed on training prompt {index}: {seq.finish.detail}")
    record = recorder.take(seq.seq_id)
    assert len(record.top_ids) == len(seq.output_token_ids)
    tokens = np.array(seq.token_ids, np.int32)
    answer = Answer(index, seq.num_prompt_tokens, tokens, record.top_ids, record.top_logits)
    return answer, record.features
