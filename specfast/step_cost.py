"""What a decoding step costs by its number of rows, and its share of the memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from specfast import ops
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.intervals import Interval, bootstrap
from specfast.kv_cache import fitting
from specfast.models.decoder import Model
from specfast.proposers.base import Needs, Proposal
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import SpeculativeConfig
from specfast.tokenizer import Tokenizer

WARM_UP_ROUNDS = 4
READ_CHUNK = 1024  # int32s


@dataclass(frozen=True)
class StepCost:
    """Whole engine steps of one sequence, sampling included.

    rows_ratio: a step with `num_rows` rows over one with a single row; read_bandwidth: bytes a
    second of our streaming read of weight_bytes with the same threads; bandwidth_share:
    weight_bytes over single_row_seconds, over that.
    """

    num_rows: int
    context: int
    single_row_seconds: float
    rows_ratio: Interval
    weight_bytes: int
    read_bandwidth: float
    bandwidth_share: float


class FixedDrafts:
    """Always drafts the same chain, right or wrong: a step then has 1 + its length rows."""

    needs: ClassVar[Needs] = Needs()

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def propose(self, batch: Batch) -> Proposal:
        depths = batch.draft_limits.min(axis=1).tolist()
        return Proposal.chains([self.tokens[:depth] for depth in depths])

    def observe(self, batch: Batch, proposal: Proposal, forward: object, result: object) -> None:
        """Learns nothing."""

    def release(self, seq: Sequence) -> None:
        """Keeps nothing."""

    def reset(self) -> None:
        """Keeps nothing."""


class Decoding:
    """An engine that decodes one sequence with num_rows rows a step, over and over."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, config: EngineConfig, num_rows: int, context: int
    ) -> None:
        self.num_rows = num_rows
        self.prompt = [1 + i % (model.config.vocab_size - 1) for i in range(context)]
        drafts = num_rows - 1
        speculation = SpeculativeConfig("ngram", drafts, policy="fixed") if drafts else None
        config = replace(fitting(config, model, 3 * context), speculative_config=speculation)
        proposer = FixedDrafts(self.prompt[:drafts]) if drafts else None
        self.engine = Engine(model, tokenizer, config, proposer)
        self._start()

    def step(self) -> None:
        self.engine.step()

    def prepare(self) -> None:
        """Starts anew where the context is about to end."""
        if self.request.seqs[0].num_remaining_tokens <= self.num_rows:
            self.engine.cancel(self.request.request_id)
            self._start()

    def _start(self) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        self.request = self.engine.add_request(self.prompt, params)
        while not self.request.seqs[0].output_token_ids:
            self.engine.step()


def measure_step_cost(
    model: Model,
    tokenizer: Tokenizer,
    config: EngineConfig,
    *,
    num_rows: int = 5,
    context: int = 256,
    num_rounds: int = 60,
) -> StepCost:
    """Steps of one row, of num_rows rows, and plain reads of as many bytes, in turn."""
    context = min(context, model.config.max_position_embeddings // 3)
    single, several = (Decoding(model, tokenizer, config, n, context) for n in (1, num_rows))
    weight_bytes = model.weights.arena.nbytes
    read = _reader(weight_bytes)
    seconds: tuple[list[float], ...] = ([], [], [])
    runs = (single.step, several.step, read)
    for _ in range(num_rounds + WARM_UP_ROUNDS):
        single.prepare()
        several.prepare()
        for kind in (0, 1, 2, 2, 1, 0):
            seconds[kind].append(_seconds(runs[kind]))
    one, more, reading = (np.array(s[2 * WARM_UP_ROUNDS :]) for s in seconds)
    bandwidth = weight_bytes / float(np.median(reading))
    return StepCost(
        num_rows=num_rows,
        context=context,
        single_row_seconds=float(np.median(one)),
        rows_ratio=bootstrap(more / one, np.median),
        weight_bytes=weight_bytes,
        read_bandwidth=bandwidth,
        bandwidth_share=weight_bytes / float(np.median(one)) / bandwidth,
    )


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _reader(num_bytes: int) -> Callable[[], object]:
    chunks = num_bytes // (4 * READ_CHUNK)
    data = torch.empty(chunks, READ_CHUNK, dtype=torch.int32)
    ops.advise_huge_pages(data)
    data.fill_(1)
    sums = torch.empty(chunks, dtype=torch.int32)
    return lambda: ops.stream_read(data, sums)
