"""Who drafts, how far, and what counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from specfast.batch_schedule import BatchSchedule
from specfast.synthetic import SyntheticAcceptance
from specfast.validation import (
    DTYPES,
    MANY,
    check_integer,
    check_number,
    from_mapping,
    is_integer,
    require,
)

MAX_SUFFIX_DEPTH = 256  # an append costs as many steps
MAX_LOOKUP = 256  # an append costs its square
MAX_NODES = 64  # drafts a sequence and step: their ancestors are the bits of an int64
POLICIES = ("auto", "simple", "fixed")
# What is the engine's to decide, whoever drafts.
_DECIDING = (
    *("policy", "gate", "num_speculative_tokens_per_batch_size", "ab_fraction"),
    "synthetic_acceptance",
)
# Names that others give to our methods.
_METHODS = {"eagle3": "eagle", "deepseek_mtp": "mtp", "mimo_mtp": "mtp"}
# The rules of verification, each with its own settings and their defaults.
_VERIFICATION: dict[str, dict[str, Any]] = {
    "match": {},
    "rejection": {"rejection_rule": "block"},
    "typical": {"typical_threshold": 0.09, "typical_alpha": 0.3},
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who drafts and how far. num_speculative_tokens counts drafts, not the root (as vLLM does).

    What is None is the method's own affair; a setting that its method does not know is refused.
    model: who drafts, where that is a model (a folder, hub id, .gguf file or known name).
    policy: "auto" verifies as many drafts as pay on this machine, "simple" goes up and down with
    each request's acceptance, "fixed" takes every one.
    gate: when not to draft at all: {"max_batch_size": n}, or "auto" (by measure; always with policy
    "auto"). num_speculative_tokens_per_batch_size: [[first, last, k], ...].
    ab_fraction: the share of requests served without drafts, to compare with.
    synthetic_acceptance: rates by position, or tokens a step: acceptance by decree, invalid text.
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
    gate: str | Mapping[str, int] | None = None
    num_speculative_tokens_per_batch_size: Sequence[Sequence[int]] | None = None
    ab_fraction: float = 0.0
    synthetic_acceptance: Sequence[float] | float | None = None

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
        self._check_verification()
        self._check_deciding()

    def _check_deciding(self) -> None:
        require(
            isinstance(self.policy, str) and self.policy in POLICIES,
            f"policy must be one of {POLICIES}, not {self.policy!r}.",
        )
        check_number(self, "ab_fraction", lambda f: 0 <= f < 1, "lie in [0, 1)")
        own = isinstance(self.gate, Mapping) and set(self.gate) == {"max_batch_size"}
        size: Any = self.gate["max_batch_size"] if own else None  # type: ignore[index]
        require(
            self.gate is None or self.gate == "auto" or (is_integer(size) and 0 < size < MANY),
            f"gate must be 'auto' or {{'max_batch_size': n}}, not {self.gate!r}.",
        )
        require(
            self.num_speculative_tokens_per_batch_size is None or not own,
            "Give gate={'max_batch_size': n} or num_speculative_tokens_per_batch_size, not both.",
        )
        require(
            self.synthetic_acceptance is None or self.verification == "match",
            "synthetic_acceptance stands in for verification: leave 'verification' out.",
        )
        _ = self.schedule, self.synthetic  # checks them
        if isinstance(self.synthetic_acceptance, list):  # a frozen value is hashable
            object.__setattr__(self, "synthetic_acceptance", tuple(self.synthetic_acceptance))

    @cached_property
    def schedule(self) -> BatchSchedule | None:
        """k by batch size, where it is set."""
        k = self.num_speculative_tokens
        if self.num_speculative_tokens_per_batch_size is not None:
            return BatchSchedule.parse(self.num_speculative_tokens_per_batch_size, k)
        if isinstance(self.gate, Mapping):
            return BatchSchedule.up_to(int(self.gate["max_batch_size"]), k)
        return None

    @cached_property
    def synthetic(self) -> SyntheticAcceptance | None:
        if self.synthetic_acceptance is None:
            return None
        return SyntheticAcceptance.parse(self.synthetic_acceptance, self.num_speculative_tokens)

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
        return self.verification != "typical" and self.synthetic_acceptance is None

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
        general = {
            "method",
            "num_speculative_tokens",
            "verification",
            *_DECIDING,
            "synthetic_acceptance",
        } | rules
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
