"""What a user may set: validated dataclasses. A wrong value is a ValueError that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")

GREEDY_TEMPERATURE = 1e-5


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def from_mapping(
    cls: type[T], values: Mapping[str, Any], what: str, renamed: Mapping[str, str]
) -> T:
    """cls(**values); an unknown key is refused with the known ones, a renamed one with ours."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key in renamed:
            raise ValueError(f"{what}: {key!r} is {renamed[key]!r} here.")
        _require(
            key in known, f"{what}: unknown key {key!r}; known are {', '.join(sorted(known))}."
        )
    return cls(**values)


@dataclass(frozen=True)
class SpeculativeOverride:
    """A request's own word on speculation."""

    enabled: bool = True
    num_speculative_tokens: int | None = None

    @classmethod
    def parse(
        cls, value: bool | Mapping[str, Any] | SpeculativeOverride | None
    ) -> SpeculativeOverride:
        if value is None or isinstance(value, bool):
            return cls(enabled=value is not False)
        if isinstance(value, SpeculativeOverride):
            return value
        _require(
            isinstance(value, Mapping) and set(value) == {"num_speculative_tokens"},
            "speculative: give False, True, or {'num_speculative_tokens': n}.",
        )
        k = value["num_speculative_tokens"]
        _require(
            isinstance(k, int) and not isinstance(k, bool) and k >= 0,
            f"speculative: num_speculative_tokens must be an integer >= 0, not {k!r}.",
        )
        return cls(enabled=k > 0, num_speculative_tokens=k)


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded; names and defaults as in vLLM.

    n: choices, each with its own noise. temperature < 1e-5 is greedy. top_k <= 0, top_p = 1 and
    min_p = 0 are off. seed None: 64 bits of OS entropy. stop: strings that end the text (not
    included unless include_stop_str_in_output). max_tokens None: up to the context limit.
    speculative: False, or {"num_speculative_tokens": n} to go below the engine's number.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    max_tokens: int | None = 16
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    speculative: bool | Mapping[str, Any] | SpeculativeOverride | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        _require(isinstance(self.n, int) and self.n >= 1, f"n must be at least 1, not {self.n!r}.")
        _require(
            0.0 <= self.temperature < float("inf"),
            f"temperature must be >= 0, not {self.temperature!r}.",
        )
        _require(0.0 < self.top_p <= 1.0, f"top_p must lie in (0, 1], not {self.top_p!r}.")
        _require(
            isinstance(self.top_k, int) and -1 <= self.top_k < 2**31,
            f"top_k must be an integer >= 1, or 0 or -1 for off, not {self.top_k!r}.",
        )
        _require(0.0 <= self.min_p <= 1.0, f"min_p must lie in [0, 1], not {self.min_p!r}.")
        _require(
            self.seed is None or (isinstance(self.seed, int) and -(2**63) <= self.seed < 2**64),
            f"seed must be an integer of 64 bits, not {self.seed!r}.",
        )
        _require(
            self.max_tokens is None or (isinstance(self.max_tokens, int) and self.max_tokens >= 1),
            f"max_tokens must be at least 1, or None (the context limit), not {self.max_tokens!r}.",
        )
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        _require(all(isinstance(s, str) and s for s in stops), "stop must be non-empty strings.")
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        SpeculativeOverride.parse(self.speculative)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """From user data; an unknown parameter is a ValueError."""
        return from_mapping(cls, values, "SamplingParams", {})

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @cached_property
    def speculation(self) -> SpeculativeOverride:
        """`speculative`, parsed."""
        return SpeculativeOverride.parse(self.speculative)


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who drafts and how far. num_speculative_tokens counts drafts, not the root (as vLLM does)."""

    method: str
    num_speculative_tokens: int = 5
    max_tree_nodes: int | None = None
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    verification: str = "match"

    def __post_init__(self) -> None:
        _require(
            isinstance(self.num_speculative_tokens, int) and 1 <= self.num_speculative_tokens <= 64,
            f"num_speculative_tokens must lie in 1..64, not {self.num_speculative_tokens!r}.",
        )
        nodes = self.max_tree_nodes
        _require(
            nodes is None or self.num_speculative_tokens <= nodes <= 64,
            "max_tree_nodes must lie between num_speculative_tokens and 64, not "
            f"{self.max_tree_nodes!r}.",
        )
        _require(
            1 <= self.prompt_lookup_min <= self.prompt_lookup_max,
            "prompt_lookup_min must be at least 1 and not above prompt_lookup_max, not "
            f"{self.prompt_lookup_min!r} and {self.prompt_lookup_max!r}.",
        )
        _require(
            self.verification == "match",
            f"verification must be 'match' (the only rule so far), not {self.verification!r}.",
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        renamed = {
            "rejection_sample_method": "verification",
            "draft_sample_method": "verification",
            "ngram_prompt_lookup_max": "prompt_lookup_max",
            "ngram_prompt_lookup_min": "prompt_lookup_min",
        }
        return from_mapping(cls, values, "speculative_config", renamed)


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
        dtypes = ("auto", "bfloat16", "float32")
        _require(self.dtype in dtypes, f"dtype must be one of {dtypes}, not {self.dtype!r}.")
        _require(
            self.kv_cache_dtype in dtypes,
            f"kv_cache_dtype must be one of {dtypes}, not {self.kv_cache_dtype!r}.",
        )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory"):
            value = getattr(self, name)
            _require(
                isinstance(value, int) and value >= 1, f"{name} must be at least 1, not {value!r}."
            )
        for name in ("max_model_len", "num_blocks"):
            value = getattr(self, name)
            _require(
                value is None or (isinstance(value, int) and value >= 1),
                f"{name} must be at least 1, not {value!r}.",
            )
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens must not be below max_num_seqs: "
            "each running sequence needs a row a step.",
        )
        if isinstance(self.speculative_config, Mapping):
            object.__setattr__(
                self, "speculative_config", SpeculativeConfig.from_dict(self.speculative_config)
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        return from_mapping(cls, values, "LLM", {})
