"""Rotary embedding: from Hugging Face's parameters to the table that `rope_kv_append` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specfast.models.config_values import entries, flag, positive, size

_REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "default": ("factor", "original_max_position_embeddings"),
    "linear": ("original_max_position_embeddings",),
    "llama3": ("original_max_position_embeddings",),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor",
        "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
_RESCALES = "rescales by the current length, so a token's bytes would depend on what follows"
_REFUSED = {"dynamic": _RESCALES, "longrope": _RESCALES, "su": _RESCALES}
_NEUTRAL_KEYS = ("rope_type", "type", "rope_theta", "finetuned")


@dataclass(frozen=True)
class Rope:
    """Frequencies of the rotary embedding. freq_factors (GGUF) divide them, one a frequency."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], default_theta: float, max_positions: int) -> Rope:
        """Reads rope_parameters, or rope_theta with rope_scaling. ValueError for other kinds."""
        values = entries(config, "rope_scaling") or entries(config, "rope_parameters")
        kind = str(values.get("rope_type") or values.get("type") or "default")
        _check(kind, values)
        key = "original_max_position_embeddings"
        original = size(config, key, size(values, key, max_positions))
        factor = positive(values, "factor", max_positions / original)
        return cls(
            theta=positive(values, "rope_theta", positive(config, "rope_theta", default_theta)),
            kind=kind,
            factor=1.0 if kind == "default" else factor,
            original_max_positions=original,
            low_freq_factor=positive(values, "low_freq_factor", 1.0),
            high_freq_factor=positive(values, "high_freq_factor", 4.0),
            attention_factor=_yarn_attention(values, factor) if kind == "yarn" else 1.0,
            beta_fast=positive(values, "beta_fast", 32.0),
            beta_slow=positive(values, "beta_slow", 1.0),
            truncate=flag(values, "truncate", True),
        )

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """[head_dim / 2] float32, radians a position."""
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / self.theta**exponent
        if self.kind == "linear":
            frequencies = frequencies / self.factor
        elif self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        elif self.kind == "yarn":
            frequencies = self._yarn(head_dim)
        if self.freq_factors:
            frequencies = frequencies / torch.tensor(self.freq_factors, dtype=torch.float32)
        return frequencies

    def table(self, num_positions: int, head_dim: int) -> Tensor:
        """[num_positions, head_dim] float32: cos of every angle, then sin.

        The angle is rounded to float32, as in the models' own training code; cos and sin of it are
        taken in float64, so that the table is the same on every machine.
        """
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, self.inverse_frequencies(head_dim)).double()
        table = torch.cat([angles.cos(), angles.sin()], dim=1)
        return (table.float() * self.attention_factor).contiguous()

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Keeps short wavelengths, divides long ones by factor, blends in between."""
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        keep = ((turns - self.low_freq_factor) / span).clamp(0.0, 1.0)
        return (1.0 - keep) * frequencies / self.factor + keep * frequencies

    def _yarn(self, head_dim: int) -> Tensor:
        """Keeps frequencies that turn often within the original context, divides the slow ones."""
        low, high = self._yarn_range(head_dim)
        ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
        keep = 1.0 - ramp.clamp(0.0, 1.0)
        powers = self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        return (1.0 - keep) / (self.factor * powers) + keep / powers

    def _yarn_range(self, head_dim: int) -> tuple[float, float]:
        def dimension(turns: float) -> float:
            wavelength = self.original_max_positions / (turns * 2 * math.pi)
            return head_dim * math.log(wavelength) / (2 * math.log(self.theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high + 0.001 if low == high else high


def _check(kind: str, values: Mapping[str, Any]) -> None:
    if kind not in _REQUIRED:
        why = _REFUSED.get(kind, "is not implemented")
        raise ValueError(
            f"rope type {kind!r} {why}; supported are {', '.join(_REQUIRED)}. If your texts are "
            "shorter than the model's original context, set it to 'default' in config.json."
        )
    for key in _REQUIRED[kind]:
        if values.get(key) is None:
            raise ValueError(f"rope type {kind!r} needs the key {key!r} in config.json.")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor other than 1 is not implemented.")
    known = (*_NEUTRAL_KEYS, "partial_rotary_factor", *_REQUIRED[kind], *_OPTIONAL[kind])
    unknown = sorted(key for key in values if key not in known and values[key] is not None)
    if unknown:
        raise ValueError(f"rope type {kind!r} does not know {', '.join(map(repr, unknown))}.")


def _yarn_attention(values: Mapping[str, Any], factor: float) -> float:
    """What cos and sin are scaled by, so that attention's temperature follows the stretch."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if values.get("attention_factor") is not None:
        return positive(values, "attention_factor")
    weights = "mscale", "mscale_all_dim"
    if all(values.get(key) for key in weights):
        mscale, mscale_all = (scale(positive(values, key)) for key in weights)
        return mscale / mscale_all
    return scale(1.0)
