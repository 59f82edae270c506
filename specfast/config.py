"""What a user may set: validated dataclasses. A wrong value is a ValueError that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from specfast.validation import (
    MANY,
    check_flags,
    check_integer,
    check_number,
    from_mapping,
    is_integer,
    items,
    refuses_unknown,
    require,
)

GREEDY_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e30  # a float32, also where a drafter scales it
MAX_CHOICES = 16384
MAX_SUFFIX_DEPTH = 256  # an append costs as many steps
MAX_LOOKUP = 256  # an append costs its square
DTYPES = ("auto", "bfloat16", "float32")
MAX_NODES = 64  # drafts a sequence and step: their ancestors are the bits of an int64
# Names that others give to our methods.
_METHODS = {"eagle3": "eagle", "deepseek_mtp": "mtp", "mimo_mtp": "mtp"}
# The rules of verification, each with its own settings and their defaults.
_VERIFICATION: dict[str, dict[str, Any]] = {
    "match": {},
    "rejection": {"rejection_rule": "block"},
    "typical": {"typical_threshold": 0.09, "typical_alpha": 0.3},
}


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
        require(
            isinstance(value, Mapping) and set(value) == {"num_speculative_tokens"},
            "speculative: give False, True, or {'num_speculative_tokens': n}.",
        )
        k = value["num_speculative_tokens"]
        require(
            is_integer(k) and k >= 0,
            f"speculative: num_speculative_tokens must be an integer >= 0, not {k!r}.",
        )
        return cls(enabled=k > 0, num_speculative_tokens=k)


@refuses_unknown
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
        check_integer(self, "n", 1, MAX_CHOICES)
        check_number(self, "temperature", lambda t: 0 <= t <= MAX_TEMPERATURE, "lie in [0, 1e30]")
        check_number(self, "top_p", lambda p: 0 < p <= 1, "lie in (0, 1]")
        check_number(self, "min_p", lambda p: 0 <= p <= 1, "lie in [0, 1]")
        check_integer(self, "top_k", -1, MANY, " (0 or -1: off)")
        if self.seed is not None:
            check_integer(self, "seed", -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            check_integer(self, "max_tokens", 1, MANY, ", or None (the context limit)")
        check_flags(self, "ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
        self._check_stops()
        SpeculativeOverride.parse(self.speculative)

    def _check_stops(self) -> None:
        """Both kinds of stop as tuples."""
        given = (self.stop,) if isinstance(self.stop, str) else self.stop
        stops = items(given, "stop", "strings")
        require(all(isinstance(s, str) and s for s in stops), "stop must be non-empty strings.")
        ids = items(self.stop_token_ids, "stop_token_ids", "token ids")
        require(
            all(is_integer(i) and 0 <= i <= MANY for i in ids),
            f"stop_token_ids must be integers >= 0, not {list(ids)!r}.",
        )
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", tuple(map(int, ids)))

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
    """Who drafts and how far. num_speculative_tokens counts drafts, not the root (as vLLM does).

    What is None is the method's own affair; a setting that its method does not know is refused.
    model: who drafts, where that is a model (a folder, hub id, .gguf file or known name).
    policy: "auto" verifies as many drafts as pay on this machine, "fixed" every one.
    draft_dtype: as EngineConfig.dtype, for that model.
    max_tree_nodes: drafts a sequence and step where the method drafts trees (None: chains).
    verification: "match" (the same bytes as without drafts), "rejection" (the same law;
    rejection_rule "block", or "token"), or "typical" (lossy: a draft counts if p >=
    min(typical_threshold, typical_alpha exp(-H)), by default 0.09 and 0.3).
    """

    method: str
    num_speculative_tokens: int = 8
    verification: str = "match"
    rejection_rule: str | None = None
    typical_threshold: float | None = None
    typical_alpha: float | None = None
    policy: str = "auto"
    model: str | None = None
    draft_dtype: str | None = None
    max_tree_nodes: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_cached_requests: int | None = None
    suffix_decoding_min_token_prob: float | None = None

    def __post_init__(self) -> None:
        require(
            isinstance(self.method, str) and bool(self.method),
            f"speculative_config: method must be a name such as 'ngram', not {self.method!r}.",
        )
        object.__setattr__(self, "method", _METHODS.get(self.method, self.method))
        check_integer(self, "num_speculative_tokens", 1, MAX_NODES)
        if self.max_tree_nodes is not None:
            why = ", at least num_speculative_tokens"
            check_integer(self, "max_tree_nodes", self.num_speculative_tokens, MAX_NODES, why)
        require(
            self.model is None or (isinstance(self.model, str) and bool(self.model)),
            f"speculative_config: model must be a name or a folder, not {self.model!r}.",
        )
        self._check_methods_own()
        shortest, longest = self.prompt_lookup_min or 1, self.prompt_lookup_max or MANY
        require(
            shortest <= longest,
            f"prompt_lookup_min={shortest} must not be above prompt_lookup_max={longest}.",
        )
        require(
            self.policy in ("auto", "fixed"),
            f"policy must be 'auto' or 'fixed', not {self.policy!r}.",
        )
        self._check_verification()

    def _check_verification(self) -> None:
        """Sets what the rule leaves open; a setting of another rule would do nothing."""
        rules = tuple(_VERIFICATION)
        require(
            self.verification in rules,
            f"verification must be one of {rules}, not {self.verification!r}.",
        )
        for rule, defaults in _VERIFICATION.items():
            for name, default in defaults.items():
                given = getattr(self, name) is not None
                require(
                    not given or rule == self.verification,
                    f"{name} does nothing with verification={self.verification!r}; it belongs to "
                    f"{rule!r}.",
                )
                if rule == self.verification and not given:
                    object.__setattr__(self, name, default)
        if self.verification == "rejection":
            require(
                self.rejection_rule in ("block", "token"),
                f"rejection_rule must be 'block' or 'token', not {self.rejection_rule!r}.",
            )
        if self.verification == "typical":
            check_number(self, "typical_threshold", lambda p: 0 < p <= 1, "lie in (0, 1]")
            check_number(self, "typical_alpha", lambda a: 0 < a <= 1, "lie in (0, 1]")

    @property
    def is_coupled(self) -> bool:
        """Drafts may be chosen by the target's noise. Under another rule they must not: which nodes
        there are would foretell the token after them.
        """
        return self.verification == "match"

    @property
    def lossless(self) -> bool:
        """The output follows the model's law, whatever is drafted."""
        return self.verification != "typical"

    def _check_methods_own(self) -> None:
        require(
            self.draft_dtype in (None, *DTYPES),
            f"draft_dtype must be one of {DTYPES}, not {self.draft_dtype!r}.",
        )
        prefix = "suffix_decoding_"
        bounds = {
            "prompt_lookup_max": (1, MAX_LOOKUP),
            "prompt_lookup_min": (1, MAX_LOOKUP),
            f"{prefix}max_cached_requests": (0, MANY),
        }
        for name, (low, high) in bounds.items():
            if getattr(self, name) is not None:
                check_integer(self, name, low, high)
        if self.suffix_decoding_max_tree_depth is not None:
            why = ", above num_speculative_tokens: a path holds a match and the drafts behind it"
            low = self.num_speculative_tokens + 1
            check_integer(self, f"{prefix}max_tree_depth", low, MAX_SUFFIX_DEPTH, why)
        if self.suffix_decoding_min_token_prob is not None:
            check_number(self, f"{prefix}min_token_prob", lambda p: 0 <= p <= 1, "lie in [0, 1]")

    @property
    def method_settings(self) -> dict[str, Any]:
        """The settings given that only some methods know."""
        rules = {name for settings in _VERIFICATION.values() for name in settings}
        general = {"method", "num_speculative_tokens", "verification", "policy"} | rules
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {k: v for k, v in given if k not in general and v is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        renamed = {
            "acceptance_method": "verification",
            "posterior_threshold": "typical_threshold",
            "posterior_alpha": "typical_alpha",
            "rejection_sample_method": "verification",
            "draft_sample_method": "verification",
            "ngram_prompt_lookup_max": "prompt_lookup_max",
            "ngram_prompt_lookup_min": "prompt_lookup_min",
            "suffix_decoding_max_spec_factor": "suffix_decoding_min_token_prob",
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
