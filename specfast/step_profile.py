"""Measures what this machine takes for a target's steps, once: kept on disk by both."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict

import numpy as np
import torch

from specfast import __version__, ops
from specfast.control.cost_profile import CostProfile
from specfast.control.least_squares import nonnegative
from specfast.engine import Engine
from specfast.machine import cache_folder, cpu_name
from specfast.proposers.base import Proposal
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence, StopRule

logger = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
LONG_ROWS = (1, 8, 32)
ROWS_A_SEQUENCE = 8
SHORT, LONG = 16, 1024  # tokens of context
MAX_SECONDS = 1.2


class NoText:
    """The detokenizer of sequences that nobody reads."""

    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def cost_profile(engine: Engine) -> CostProfile:
    """This machine's for this engine's target: from the disk, or measured now and kept there. The
    engine must be idle.
    """
    path = cache_folder() / "step_costs" / f"{fingerprint(engine)}.json"
    if path.exists():
        try:
            return CostProfile.load(path)
        except ValueError as error:
            logger.warning("%s It is measured again.", error)
    profile = measure_profile(engine)
    try:
        profile.save(path)
    except OSError as error:
        logger.info("Step costs were measured and can't be kept in %s: %s", path, error)
    return profile


def fingerprint(engine: Engine) -> str:
    """Of all that a step's time depends on: the machine, the software, the target's shape."""
    cache = engine.runner.cache.data
    parts = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "tier": ops.simd_tier(),
        "specfast": __version__,
        "torch": torch.__version__,
        "target": asdict(engine.runner.model.config),
        "kv": [str(cache.dtype), engine.config.block_size],
        "rows": engine.scheduler.max_num_rows,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def measure_profile(engine: Engine, max_seconds: float = MAX_SECONDS) -> CostProfile:
    """Medians of target passes with verification, within about max_seconds: all numbers of rows get
    as much time, small steps are taken oftener, and a large target's large ones not at all. Leaves
    the block pool as it was.
    """
    assert not engine.has_unfinished
    start = time.perf_counter()
    long = min(LONG, engine.max_model_len - ROWS_A_SEQUENCE - 1)
    shapes = [(rows, SHORT) for rows in ROWS] + [(rows, long) for rows in LONG_ROWS if long > SHORT]
    taken: dict[tuple[int, int], list[float]] = {}
    for shape in shapes:
        if taken and time.perf_counter() - start > max_seconds / 2:
            break
        if (seconds := _step_seconds(engine, *shape)) is not None:
            taken[shape] = [seconds]
    while time.perf_counter() - start < max_seconds:
        shape = min(taken, key=lambda shape: sum(taken[shape]))
        seconds = _step_seconds(engine, *shape)
        assert seconds is not None
        taken[shape].append(seconds)
    return _profile(taken, long)


def _profile(taken: dict[tuple[int, int], list[float]], long: int) -> CostProfile:
    """Each one's first step warms up, unless it is the only one."""
    median = {shape: float(np.median(s[1:] or s)) for shape, s in taken.items()}
    rows = sorted(n for n, context in median if context == SHORT)
    both = [n for n in LONG_ROWS if {(n, long), (n, SHORT)} <= set(median)]
    added = np.array([(median[n, long] - median[n, SHORT]) / (long - SHORT) for n in both])
    parts = np.array([[-(-n // ROWS_A_SEQUENCE), n] for n in both], float)
    once, each = nonnegative(parts.T @ parts, parts.T @ added) if len(both) > 1 else (0.0, 0.0)
    return CostProfile(tuple(rows), tuple(median[n, SHORT] for n in rows), once, each)


def _step_seconds(engine: Engine, num_rows: int, context: int) -> float | None:
    """One step of so many rows, in sequences of ROWS_A_SEQUENCE; None: it doesn't fit."""
    blocks = engine.scheduler.blocks
    if num_rows > engine.scheduler.max_num_rows:
        return None
    sizes = [len(part) for part in np.array_split(range(num_rows), -(-num_rows // ROWS_A_SEQUENCE))]
    seqs = [_sequence(-1 - i, context) for i in range(len(sizes))]
    try:
        if not all(blocks.reserve(s, context + n) for s, n in zip(seqs, sizes)):
            return None
        starts, ones = np.full(len(seqs), context, np.int32), np.ones(len(seqs), np.int32)
        limits = np.array([[n - 1, n - 1] for n in sizes], np.int32)
        batch = Batch(tuple(seqs), starts, ones, limits)
        drafts = Proposal.chains([[1] * (n - 1) for n in sizes])
        start = time.perf_counter()
        engine.verifier.verify(batch, drafts, engine.runner.forward(batch, drafts))
        return time.perf_counter() - start
    finally:
        for seq in seqs:
            blocks.free(seq)


def _sequence(seq_id: int, context: int) -> Sequence:
    """All but the last of its tokens computed."""
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    rule = StopRule(frozenset(), context + ROWS_A_SEQUENCE + 1)
    seq = Sequence(seq_id, [1] * (context + 1), params, 0, rule, NoText())
    seq.num_computed_tokens = context
    return seq
