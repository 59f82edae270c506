"""What a proposer may know of the model that it drafts for, and the cache it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specfast.config import EngineConfig
from specfast.kv_cache import KVCache
from specfast.models.decoder import Model
from specfast.proposers.base import Proposer
from specfast.tokenizer import Tokenizer


@dataclass(frozen=True)
class Target:
    """The target model, its tokenizer and how the engine runs them: to read, never to change."""

    model: Model
    tokenizer: Tokenizer
    config: EngineConfig


class ModelProposer(Proposer, Protocol):
    """A proposer whose needs.kv asks for a cache."""

    def attach(self, cache: KVCache) -> None:
        """Called once, before the first step: a zeroed cache over the target's block ids."""
