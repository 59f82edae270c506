"""Acceptance by decree, to try controllers and cost models on any hardware: its text is invalid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from specfast.validation import require

NAME = "synthetic_acceptance"


@dataclass(frozen=True)
class SyntheticAcceptance:
    """per_pos[i]: how often a draft at depth i is accepted (all before it too); never rising."""

    per_pos: tuple[float, ...]

    @property
    def conditional(self) -> tuple[float, ...]:
        """How often a draft at each depth is accepted, given that those before it were."""
        pairs = zip((1.0, *self.per_pos), self.per_pos)
        return tuple(rate / before if before else 0.0 for before, rate in pairs)

    @classmethod
    def parse(cls, value: object, k: int) -> SyntheticAcceptance:
        """From rates by position (at most k; what is left out is 0), or from a number: the tokens
        that a step of k drafts emits on average, with an even rate. ValueError for what is neither.
        """
        if _is_number(value):
            require(
                1 <= value <= k + 1,  # type: ignore[operator]
                f"{NAME}={value}: a step of {k} drafts emits 1 to {k + 1} tokens.",
            )
            return cls(_even(float(value), k))  # type: ignore[arg-type]
        require(
            isinstance(value, Sequence) and len(value) > 0 and all(map(_is_number, value)),
            f"{NAME} must be tokens a step, or rates such as [0.8, 0.6], not {value!r}.",
        )
        rates = tuple(float(rate) for rate in value)  # type: ignore[attr-defined]
        require(
            all(0 <= b <= a for a, b in zip((1.0, *rates), rates)),
            f"{NAME} must lie in [0, 1] and never rise: a draft needs those before it.",
        )
        require(len(rates) <= k, f"{NAME} gives {len(rates)} rates for {k} drafts.")
        return cls(rates)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _even(length: float, k: int) -> tuple[float, ...]:
    """The rates a, a^2, ..., a^k that sum to length - 1: bisected, the sum rises with a."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        reached = sum(middle**depth for depth in range(1, k + 1))
        low, high = (middle, high) if reached < length - 1 else (low, middle)
    return tuple(high**depth for depth in range(1, k + 1))
