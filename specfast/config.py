"""How the engine runs. A wrong setting, here as elsewhere, is a ValueError that says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from specfast.speculative_config import SpeculativeConfig
from specfast.validation import DTYPES, MANY, check_flags, check_integer, from_mapping, require


@dataclass(frozen=True)
class EngineConfig:
    """How the engine runs. None: chosen from the model and this machine, and said in the log.

    dtype: "auto" (what the checkpoint stores), "bfloat16" or "float32". kv_cache_dtype: "auto" (as
    dtype). max_num_batched_tokens: rows of one forward, so also the prefill chunk. kv_cache_memory:
    bytes; num_blocks overrides it.
    """

    model: str
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int = 2**30
    enable_prefix_caching: bool = True
    speculative_config: SpeculativeConfig | None = field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.model, PathLike):
            object.__setattr__(self, "model", fspath(self.model))
        require(
            isinstance(self.model, str) and bool(self.model),
            f"model must be a folder, hub id, .gguf file or 'demo', as text, not {self.model!r}.",
        )
        require(self.dtype in DTYPES, f"dtype must be one of {DTYPES}, not {self.dtype!r}.")
        require(
            self.kv_cache_dtype in DTYPES,
            f"kv_cache_dtype must be one of {DTYPES}, not {self.kv_cache_dtype!r}.",
        )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            check_integer(self, name, 1, MANY)
        check_integer(self, "kv_cache_memory", 1, 2**62)
        for name in ("max_model_len", "num_blocks"):
            if getattr(self, name) is not None:
                check_integer(self, name, 1, MANY)
        check_flags(self, "enable_prefix_caching")
        require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens must not be below max_num_seqs: "
            "each running sequence needs a row a step.",
        )
        if isinstance(self.speculative_config, Mapping):
            object.__setattr__(
                self, "speculative_config", SpeculativeConfig.from_dict(self.speculative_config)
            )
        require(
            isinstance(self.speculative_config, SpeculativeConfig | None),
            f"speculative_config must be a dict such as {{'method': 'ngram'}}, not "
            f"{self.speculative_config!r}.",
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        return from_mapping(cls, values, "LLM", {})
