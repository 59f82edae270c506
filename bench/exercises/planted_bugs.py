"""Ways to get the rollback of KV wrong, each planted in one engine; exercise f must catch them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specfast.engine import Engine
from specfast.scheduler import Scheduler
from specfast.sequence import Sequence

Patch = Callable[[Engine], None]


def forgets_compaction(engine: Engine) -> None:
    """Accepted nodes of a branch stay where they were drafted."""
    engine.scheduler._compact = lambda *_: None  # type: ignore[method-assign]


def keeps_rejected_blocks(engine: Engine) -> None:
    """Blocks of rejected drafts are never returned."""
    blocks = engine.scheduler.blocks
    cut = blocks.truncate
    blocks.truncate = lambda s, n: cut(s, n) if n == 0 else None  # type: ignore[method-assign]


def returns_one_too_many(engine: Engine) -> None:
    """The block that the last committed tokens lie in goes back too."""
    blocks = engine.scheduler.blocks
    cut = blocks.truncate
    size = engine.config.block_size
    blocks.truncate = lambda s, n: cut(s, max(0, n - size))  # type: ignore[method-assign]


def publishes_drafts(engine: Engine) -> None:
    """A block is published though its last slot holds a draft."""
    blocks, size = engine.scheduler.blocks, engine.config.block_size
    publish = blocks.publish

    def early(seq: Sequence) -> None:
        computed_tokens = seq.num_computed_tokens
        seq.num_computed_tokens = min(-(-computed_tokens // size) * size, len(seq.token_ids))
        publish(seq)
        seq.num_computed_tokens = computed_tokens

    blocks.publish = early  # type: ignore[method-assign]


def moves_one_off(engine: Engine) -> None:
    """The accepted path is moved one slot too far."""
    cache = engine.runner.cache
    compact = cache.compact

    def off(tables: Tensor, base: Tensor, path: Tensor, kept: Tensor) -> None:
        compact(tables, base, torch.where(path > 0, path - 1, path), kept)

    cache.compact = off  # type: ignore[method-assign]


def counts_a_rejected_draft(engine: Engine) -> None:
    """A draft that was rejected counts as computed, in place of the token that was decided."""
    commit = Scheduler._commit_kv

    def one_more(self: Scheduler, seq: Sequence, num_computed: int) -> None:
        commit(self, seq, num_computed)
        if (
            seq.block_table
            and seq.num_computed_tokens < len(seq.block_table) * self.blocks.block_size
        ):
            seq.num_computed_tokens += 1

    engine.scheduler._commit_kv = one_more.__get__(engine.scheduler)  # type: ignore[method-assign]


BUGS: dict[str, Patch] = {
    bug.__name__: bug
    for bug in (
        forgets_compaction,
        moves_one_off,
        keeps_rejected_blocks,
        returns_one_too_many,
        publishes_drafts,
        counts_a_rejected_draft,
    )
}
