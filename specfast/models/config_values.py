"""Single values of a config.json, each checked: a wrong one is a ValueError that names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from specfast.validation import MANY, is_integer, require


def size(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """default: where there is none, or null."""
    value = default if values.get(key) is None else values[key]
    require(
        is_integer(value) and 1 <= value <= MANY,  # type: ignore[operator]
        f"config.json: {key} must be a positive integer, not {value!r}.",
    )
    return int(value)  # type: ignore[arg-type]


def count(values: Mapping[str, Any], key: str) -> int:
    """0 where there is none, or null."""
    value = values.get(key)
    require(
        value is None or (is_integer(value) and 0 <= value <= MANY),
        f"config.json: {key} must be an integer of at least 0, not {value!r}.",
    )
    return int(value or 0)


def positive(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number. default: where there is none, or null."""
    value = default if values.get(key) is None else values[key]
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    require(
        is_number and 0 < value < math.inf,  # type: ignore[operator]
        f"config.json: {key} must be a positive number, not {value!r}.",
    )
    return float(value)  # type: ignore[arg-type]


def flag(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """default: where there is none, or null."""
    value = values.get(key)
    require(
        value is None or isinstance(value, bool),
        f"config.json: {key} must be true or false, not {value!r}.",
    )
    return default if value is None else value


def entries(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object's; none where there is no such key, or null."""
    value = values.get(key)
    require(
        value is None or isinstance(value, Mapping),
        f"config.json: {key} must be an object, not {value!r}.",
    )
    return value or {}
