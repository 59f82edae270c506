"""What a drafter takes of the memory that would hold KV, in words a server's owner thinks in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from specfast.engine import Engine
from specfast.kv_cache import KVCache, kv_shape_of

CONTEXT = 4096


@dataclass(frozen=True)
class Memory:
    """weight_bytes: the drafter's tensors that are not the target's; kv_bytes_per_token: of its own
    cache, beside the target's target_bytes_per_token; budget_bytes: for the KV cache, out of which
    both are taken to come.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    target_bytes_per_token: int
    budget_bytes: int

    @property
    def num_tokens_given_up(self) -> int:
        """KV tokens that the budget would hold without the drafter, and doesn't with it."""
        alone = self.budget_bytes // self.target_bytes_per_token
        per_token = self.target_bytes_per_token + self.kv_bytes_per_token
        return alone - max(0, self.budget_bytes - self.weight_bytes) // per_token

    @property
    def num_sequences_given_up(self) -> float:
        """The same in sequences of CONTEXT tokens at once."""
        return self.num_tokens_given_up / CONTEXT


def memory_of(engine: Engine, budget_bytes: int) -> Memory:
    """Of an engine's drafter; one that holds no tensors takes nothing."""
    proposer, target = engine.proposer, engine.runner.model
    kv = proposer.needs.kv if proposer else None
    targets = {_place(t) for t in _tensors(target, set())}
    own = {_place(t): t.untyped_storage().nbytes() for t in _tensors(proposer, set())}
    return Memory(
        weight_bytes=sum(size for place, size in own.items() if place not in targets),
        kv_bytes_per_token=kv.bytes_per_token if kv else 0,
        target_bytes_per_token=kv_shape_of(target, engine.config.kv_cache_dtype).bytes_per_token,
        budget_bytes=budget_bytes,
    )


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor within reach of a value, caches apart."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (str, bytes, KVCache, type)):
        seen.add(id(value))
        for part in _parts(value):
            yield from _tensors(part, seen)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    own = list(vars(value).values()) if hasattr(value, "__dict__") else []
    declared = fields(value) if is_dataclass(value) else ()
    return own or [getattr(value, f.name) for f in declared]
