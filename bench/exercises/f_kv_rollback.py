"""Exercise f: every rejected draft's KV slot accounted for, and planted bugs caught.

    python bench/exercises/f_kv_rollback.py --plot f.png

A step writes the KV of all drafts behind the committed tokens. What is rejected is rolled back by
arithmetic alone: the length goes down, spare blocks go back, stale slots are written over. Here the
block manager is watched: after every step each drafted slot must be kept (by an accepted draft's
KV), stale behind the end, or returned with its block; and the KV of all committed tokens must be
bit for bit what a pass over them alone computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.exercises.common import Lab, draw, options, show
from bench.exercises.planted_bugs import BUGS, Patch
from specfast.engine import Engine
from specfast.kv_cache import BlockManager, KVCache
from specfast.measure import EngineArm, Task
from specfast.proposers.base import Proposal
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import SpeculativeConfig

SPECULATION = SpeculativeConfig("suffix", 6, max_tree_nodes=12, policy="fixed")
FATES = ("kept", "stale", "returned")


class WatchedBlocks:
    """The block manager; asks `check` about a sequence whenever its tail was cut."""

    def __init__(self, blocks: BlockManager, check: Callable[[Sequence], None]) -> None:
        self._blocks, self._check = blocks, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        self._blocks.truncate(seq, num_tokens)
        if num_tokens:
            self._check(seq)


class Ledger:
    """Follows each drafted slot of one engine to its fate; AssertionError where one gets lost."""

    def __init__(self, engine: Engine, twin: Engine) -> None:
        self.engine, self.twin = engine, twin
        self.fates: Counter[str] = Counter()
        self.history: list[tuple[int, int]] = []  # step by step: drafts rejected, slots stale
        self._drafted: dict[int, tuple[int, int, list[int]]] = {}
        self._forward = engine.runner.forward
        engine.runner.forward = self._watched_forward  # type: ignore[method-assign]
        blocks = engine.scheduler.blocks
        engine.scheduler.blocks = WatchedBlocks(blocks, self._check)  # type: ignore[assignment]

    def run(self, tasks: list[Task], params: SamplingParams) -> None:
        for task in tasks:
            self.engine.add_request(task.prompt_token_ids, params)
        assert params.max_tokens
        most = 2 * len(tasks) * (params.max_tokens + max(len(t.prompt_token_ids) for t in tasks))
        while self.engine.has_unfinished:
            assert len(self.history) < most, "no progress"
            before = self.fates.copy()
            self.engine.step()
            self.engine.check_integrity()
            new = self.fates - before
            self.history.append((sum(new.values()) - new["kept"], new["stale"]))
        blocks = self.engine.scheduler.blocks
        assert blocks.num_free_blocks == blocks.num_blocks, "blocks are lost at the end"

    def _watched_forward(self, batch: Batch, proposal: Proposal) -> Any:
        for row, seq in enumerate(batch.seqs):
            base, count = int(batch.node_base[row]), int(proposal.lengths[row])
            self._drafted[seq.seq_id] = base, count, list(seq.block_table)
        return self._forward(batch, proposal)

    def _check(self, seq: Sequence) -> None:
        base, count, table = self._drafted.pop(seq.seq_id)
        size, end = self.engine.config.block_size, seq.num_computed_tokens
        held = len(seq.block_table) * size
        num_kept = max(0, end - base)
        assert seq.block_table == table[: len(seq.block_table)], "a block changed under its tokens"
        assert held < end + size, "a block that holds nothing was kept"
        assert num_kept <= count, "more was kept than was drafted"
        self.fates["kept"] += num_kept
        for slot in range(base + num_kept, base + count):
            self.fates["stale" if slot < held else "returned"] += 1
        own = kv_of(self.engine.runner.cache, seq, end)
        expected = computed(self.twin, seq.token_ids[:end])
        assert torch.equal(own, expected), "the KV of committed tokens is not theirs"


def kv_of(cache: KVCache, seq: Sequence, count: int) -> Tensor:
    """[L, 2, count, Hkv, D] of the sequence's first tokens."""
    table = torch.tensor(seq.block_table)
    return cache.data[:, :, table].flatten(2, 3)[:, :, :count].clone()


def computed(engine: Engine, token_ids: list[int]) -> Tensor:
    """Their KV as passes over these tokens alone compute it."""
    request = engine.add_request([*token_ids, 0], SamplingParams(temperature=0.0, max_tokens=1))
    (seq,) = request.seqs
    found: list[Tensor] = []
    free = engine.scheduler.blocks.free
    blocks = engine.scheduler.blocks

    def keep(ended: Sequence) -> None:
        if ended is seq and not found:
            found.append(kv_of(engine.runner.cache, seq, len(token_ids)))
        free(ended)

    blocks.free = keep  # type: ignore[method-assign]
    try:
        while engine.has_unfinished:
            engine.step()
    finally:
        blocks.free = free  # type: ignore[method-assign]
    return found[0]


def main() -> None:
    given = options(__doc__, num_prompts=4, max_tokens=64)
    given.set_defaults(batch_size=4)
    parsed = given.parse_args()
    lab = Lab(parsed, SamplingParams(temperature=0.0, max_tokens=parsed.max_tokens))
    twin = lab.arm("twin", None)
    tasks = lab.tasks(twin)[: parsed.num_prompts]
    ledger = watched(lab, twin)
    ledger.run(tasks, lab.params)
    stats = ledger.engine.metrics.stats
    drafted = sum(ledger.fates.values())
    assert drafted == stats.num_draft_tokens, "a draft has no fate"
    rows = [(fate, ledger.fates[fate], f"{ledger.fates[fate] / drafted:.1%}") for fate in FATES]
    show(f"Where {drafted} drafted slots went", ("fate", "slots", "share"), rows)
    show(
        "Planted bugs",
        ("bug", "caught by"),
        [(n, caught(lab, twin, tasks, b)) for n, b in BUGS.items()],
    )
    rejected, stale = np.array(ledger.history).T

    def paint(axes: Any) -> None:
        axes.plot(np.cumsum(rejected), label="drafts rejected so far")
        axes.plot(stale, label="stale slots behind the ends")
        axes.set_xlabel("step")
        axes.legend()

    draw(parsed.plot, paint)


def watched(lab: Lab, twin: EngineArm, plant: Patch = lambda engine: None) -> Ledger:
    engine = lab.arm("watched", SPECULATION).engine
    plant(engine)
    return Ledger(engine, twin.engine)


def caught(lab: Lab, twin: EngineArm, tasks: list[Task], bug: Patch) -> str:
    """What noticed the bug, in its own words."""
    ledger = watched(lab, twin, bug)
    try:
        ledger.run(tasks, lab.params)
    except (AssertionError, ValueError, IndexError, RuntimeError) as error:
        return str(error) or type(error).__name__
    raise SystemExit(f"{bug.__name__} was not caught")


if __name__ == "__main__":
    main()
