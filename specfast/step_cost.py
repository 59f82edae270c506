"""What a decoding step costs by its number of rows, and its share of the memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from specfast import ops
from specfast.config import EngineConfig, SamplingParams, SpeculativeConfig
from specfast.engine import Engine
from specfast.measure import Interval, bootstrap
from specfast.models.decoder import Model
from specfast.proposers.base import Needs, Proposal
from specfast.sequence import Batch, Sequence
from specfast.tokenizer import Tokenizer

WARM_UP_STEPS = 4
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


def measure_step_cost(
    model: Model,
    tokenizer: Tokenizer,
    config: EngineConfig,
    *,
    num_rows: int = 5,
    context: int = 256,
    num_steps: int = 60,
) -> StepCost:
    """Steps of one row, of num_rows rows, and plain reads of as many bytes, in turn."""
    prompt = [1 + i % (model.config.vocab_size - 1) for i in range(context)]
    single, several = (_engine(model, tokenizer, config, n, prompt) for n in (1, num_rows))
    weight_bytes = model.weights.arena.nbytes
    read = _reader(weight_bytes)
    rounds = [single, several, read, read, several, single]
    seconds: dict[Callable[[], object], list[float]] = {single: [], several: [], read: []}
    for step in range(num_steps + WARM_UP_STEPS):
        for run in rounds:
            start = time.perf_counter()
            run()
            if step >= WARM_UP_STEPS:
                seconds[run].append(time.perf_counter() - start)
    one, more, reading = (np.array(seconds[run]) for run in (single, several, read))
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


def _engine(
    model: Model, tokenizer: Tokenizer, config: EngineConfig, num_rows: int, prompt: list[int]
) -> Callable[[], object]:
    """The step of an engine that decodes the prompt's continuation with num_rows rows a step."""
    drafts = num_rows - 1
    speculation = SpeculativeConfig("ngram", num_speculative_tokens=drafts) if drafts else None
    config = replace(config, speculative_config=speculation)
    engine = Engine(model, tokenizer, config, FixedDrafts(prompt[:drafts]) if drafts else None)
    engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    while not engine.metrics.stats.num_emitted_tokens:
        engine.step()
    return engine.step


def _reader(num_bytes: int) -> Callable[[], object]:
    chunks = num_bytes // (4 * READ_CHUNK)
    data = torch.empty(chunks, READ_CHUNK, dtype=torch.int32)
    ops.advise_huge_pages(data)
    data.fill_(1)
    sums = torch.empty(chunks, dtype=torch.int32)
    return lambda: ops.stream_read(data, sums)
