"""How one request is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
MAX_LABEL_LENGTH = 64


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
    label: the workload that it belongs to, under which metrics count it.
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
        label = self.label
        require(
            label is None or (isinstance(label, str) and 0 < len(label) <= MAX_LABEL_LENGTH),
            f"label must be a text of 1 to {MAX_LABEL_LENGTH} characters, not {label!r}.",
        )

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
