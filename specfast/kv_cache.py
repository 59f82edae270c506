"""The paged KV cache of one model, and the manager of the blocks that all caches of an engine
share.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specfast import ops
from specfast.config import EngineConfig
from specfast.kv_shape import KVShape
from specfast.sequence import Sequence
from specfast.speculative_config import MAX_NODES

if TYPE_CHECKING:
    from specfast.models.decoder import Model


def kv_shape_of(model: Model, dtype: str) -> KVShape:
    """What a model's cache holds; dtype as in EngineConfig.kv_cache_dtype."""
    c = model.config
    return KVShape(c.num_layers, c.num_kv_heads, c.head_dim, model.kv_dtype(dtype))


def blocks_within(num_bytes: int, bytes_per_token: int, config: EngineConfig) -> int:
    """The blocks that this much memory holds, all caches together. ValueError if it holds none."""
    block_bytes = bytes_per_token * config.block_size
    if num_bytes < block_bytes:
        raise ValueError(
            f"kv_cache_memory={num_bytes} holds no block: {config.block_size} tokens of this model "
            f"take {block_bytes} bytes."
        )
    return num_bytes // block_bytes


def fitting(config: EngineConfig, model: Model, num_tokens: int) -> EngineConfig:
    """config with no more cache than max_num_seqs of num_tokens and their drafts need.

    A num_blocks that was asked for stays.
    """
    if config.num_blocks is not None:
        return config
    bytes_per_token = kv_shape_of(model, config.kv_cache_dtype).bytes_per_token
    needed = -(-(num_tokens + MAX_NODES) // config.block_size) + 1
    num_blocks = min(
        needed * config.max_num_seqs, blocks_within(config.kv_cache_memory, bytes_per_token, config)
    )
    limit = config.max_model_len or model.config.max_position_embeddings
    max_model_len = min(limit, min(needed, num_blocks) * config.block_size)
    return replace(config, num_blocks=num_blocks, max_model_len=max_model_len)


class KVCache:
    """data: [layers, 2, blocks, block_size, Hkv, D], zeroed, so that no slot ever holds a NaN.

    A drafter's cache marks the blocks that it has filled. It needs the generations of the
    BlockManager: a mark counts for the generation in which it was made, so that no event has to
    clear it.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int,
        generations: list[int] | None = None,
    ) -> None:
        self.block_size = block_size
        self._generations = generations or []
        self._written = [-1] * len(self._generations)
        size = (shape.num_layers, 2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        try:
            self.data = torch.zeros(size, dtype=shape.dtype)
        except RuntimeError as error:  # the allocator's, with no word on which setting was wrong
            num_bytes = shape.bytes_per_token * num_blocks * block_size
            raise ValueError(
                f"A KV cache of {num_bytes:,} bytes does not fit into memory; lower "
                "kv_cache_memory or num_blocks."
            ) from error

    def compact(
        self, block_tables: Tensor, node_base: Tensor, path: Tensor, num_kept: Tensor
    ) -> None:
        """Moves each sequence's kept path into dense slots; arguments as in `ops.kv_compact`."""
        ops.kv_compact(self.data, block_tables, node_base, path, num_kept)

    def mark_written(self, block: int) -> None:
        """Every slot of the block holds the KV of the tokens that the block stands for."""
        self._written[block] = self._generations[block]

    def is_written(self, block: int) -> bool:
        """Whether it was marked since it was handed out."""
        return self._written[block] == self._generations[block]


def block_tables_of(seqs: Iterable[Sequence]) -> np.ndarray:
    """[B, W] int32, padded with 0 (a block that exists, never looked at past the length)."""
    tables = [s.block_table for s in seqs]
    out = np.zeros((len(tables), max(map(len, tables), default=0)), np.int32)
    for row, table in enumerate(tables):
        out[row, : len(table)] = table
    return out


class BlockManager:
    """Hands out blocks. Full committed blocks are published under a hash of all tokens up to them.

    A free block is blank or still cached; blank ones go first, cached ones least recently used
    first. generations[block] counts how often a block was handed out, to be filled anew.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.generations = [0] * num_blocks
        self._references: Counter[int] = Counter()
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._blank) + len(self._cached)

    def num_blocks_for(self, num_slots: int) -> int:
        return -(-num_slots // self.block_size)

    def take_prefix(self, seq: Sequence) -> int:
        """Gives an empty sequence the published blocks that its tokens[:-1] begin with; returns
        tokens hit.
        """
        assert not seq.block_table and seq.num_computed_tokens == 0
        for digest in self._digests(seq, (len(seq.token_ids) - 1) // self.block_size):
            block = self._block_of.get(digest)
            if block is None:
                break
            self._cached.pop(block, None)
            self._references[block] += 1
            seq.block_table.append(block)
            seq.block_hashes.append(digest)
        seq.num_computed_tokens = len(seq.block_table) * self.block_size
        return seq.num_computed_tokens

    def reserve(self, seq: Sequence, num_slots: int) -> bool:
        """Extends the block table to num_slots, evicting cached blocks; all or nothing."""
        missing = self.num_blocks_for(num_slots) - len(seq.block_table)
        if missing > self.num_free_blocks:
            return False
        seq.block_table.extend(self._take() for _ in range(missing))
        return True

    def reserve_spare(self, seq: Sequence, num_slots: int) -> int:
        """Extends towards num_slots with blank blocks alone (drafts never evict); returns the slots
        there are.
        """
        missing = self.num_blocks_for(num_slots) - len(seq.block_table)
        for _ in range(min(missing, len(self._blank))):
            seq.block_table.append(self._take())
        return min(num_slots, len(seq.block_table) * self.block_size)

    def truncate(self, seq: Sequence, num_tokens: int) -> None:
        """Returns the blocks past num_tokens."""
        keep = self.num_blocks_for(num_tokens)
        for block in reversed(seq.block_table[keep:]):
            self._release(block)
        del seq.block_table[keep:]

    def free(self, seq: Sequence) -> None:
        """Returns every block; published ones stay findable until they are needed."""
        self.truncate(seq, 0)
        seq.drop_kv()

    def publish(self, seq: Sequence) -> None:
        """Makes the full blocks within the committed tokens findable. Call only after commit."""
        published, full = len(seq.block_hashes), seq.num_computed_tokens // self.block_size
        if not self.enable_prefix_caching or published == full:
            return
        for index, digest in list(enumerate(self._digests(seq, full)))[published:]:
            seq.block_hashes.append(digest)
            block = seq.block_table[index]
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._hash_of[block] = digest

    def reset_prefix_cache(self) -> None:
        """Forgets every published block that no sequence holds."""
        for block in self._cached:
            del self._block_of[self._hash_of.pop(block)]
        self._blank.extend(self._cached)
        self._cached.clear()

    def check_integrity(self, seqs: Iterable[Sequence]) -> None:
        """Asserts that blocks are neither lost nor shared wrongly, given every sequence that holds
        some.
        """
        seqs = list(seqs)
        held = Counter(block for s in seqs for block in s.block_table)
        assert held == +self._references, f"references {+self._references} but tables hold {held}"
        free = self._blank + list(self._cached)
        assert len(set(free)) == len(free), "a block is free twice"
        assert not held.keys() & set(free), "a block is free and held"
        assert len(held) + len(free) == self.num_blocks, "a block is lost"
        assert {b: d for d, b in self._block_of.items()} == self._hash_of, "hash maps disagree"
        assert self._cached.keys() <= self._hash_of.keys(), "a cached block has no hash"
        assert not set(self._blank) & self._hash_of.keys(), "a blank block is still published"
        for s in seqs:
            need = self.num_blocks_for(s.num_computed_tokens)
            assert need <= len(s.block_table), "computed tokens without blocks"
            assert len(s.block_hashes) * self.block_size <= s.num_computed_tokens
            for block in s.block_table[s.num_computed_tokens // self.block_size :]:
                assert held[block] == 1, "a block that is still being written is shared"
                assert block not in self._hash_of, (
                    "a block was published before its tokens were committed"
                )

    def _digests(self, seq: Sequence, num_full_blocks: int) -> Iterable[bytes]:
        """The chained hash of each full block; those already known are not computed again."""
        if not self.enable_prefix_caching:
            return
        yield from seq.block_hashes[:num_full_blocks]
        known = len(seq.block_hashes)
        digest = seq.block_hashes[-1] if known else b""
        for index in range(known, num_full_blocks):
            tokens = seq.token_ids[index * self.block_size : (index + 1) * self.block_size]
            digest = hashlib.blake2b(
                digest + np.array(tokens, np.int32).tobytes(), digest_size=16
            ).digest()
            yield digest

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        self._references[block] = 1
        self.generations[block] += 1
        return block

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._hash_of:
            self._cached[block] = None
        else:
            self._blank.append(block)
