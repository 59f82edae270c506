"""Checks that validated dataclasses share: a wrong value is a ValueError that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MANY = 2**31 - 1  # what the ops can count
DTYPES = ("auto", "bfloat16", "float32")


def require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def is_integer(value: object) -> bool:
    """An integer of Python or numpy; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(values: object, name: str, low: int, high: int, why: str = "") -> None:
    value = getattr(values, name)
    require(
        is_integer(value) and low <= value <= high,
        f"{name} must be {_range(low, high)}{why}, not {value!r}.",
    )
    object.__setattr__(values, name, int(value))


def _range(low: int, high: int) -> str:
    bounds = {MANY: f"an integer of at least {low}"}
    return bounds.get(high, f"an integer from {low} to {high}")


def check_number(values: object, name: str, ok: Callable[[float], bool], range: str) -> None:
    value = getattr(values, name)
    number = isinstance(value, Real) and not isinstance(value, bool)
    require(number and ok(value), f"{name} must {range}, not {value!r}.")
    object.__setattr__(values, name, float(value))


def check_flags(values: object, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        require(isinstance(value, bool), f"{name} must be True or False, not {value!r}.")


def items(value: object, name: str, what: str) -> tuple[Any, ...]:
    """A collection as a tuple, None as an empty one."""
    ok = value is None or (isinstance(value, Collection) and not isinstance(value, str | bytes))
    require(ok, f"{name} must be a list of {what}, not {value!r}.")
    return tuple(value or ())  # type: ignore[arg-type]


def refuses_unknown(cls: type[T]) -> type[T]:
    """Makes an unknown name in cls(...) a ValueError that lists the known ones."""
    init = cls.__init__

    @wraps(init)
    def checked(self: T, *args: Any, **values: Any) -> None:
        _check_known(cls, values, cls.__name__)
        init(self, *args, **values)

    cls.__init__ = checked  # type: ignore[assignment]
    return cls


def _check_known(cls: type, values: Mapping[str, Any], what: str) -> None:
    known = {f.name for f in fields(cls)}
    for key in values:
        require(key in known, f"{what}: unknown key {key!r}; known are {', '.join(sorted(known))}.")


def from_mapping(
    cls: type[T], values: Mapping[str, Any], what: str, renamed: Mapping[str, str]
) -> T:
    """cls(**values); an unknown key is refused with the known ones, a renamed one with ours."""
    for key in values:
        require(key not in renamed, f"{what}: {key!r} is {renamed.get(key)!r} here.")
    _check_known(cls, values, what)
    for f in fields(cls):  # type: ignore[arg-type]
        required = f.default is MISSING and f.default_factory is MISSING
        require(not required or f.name in values, f"{what}: {f.name!r} is missing.")
    return cls(**values)


def read_text(path: Path, what: str) -> str:
    """A UTF-8 file's text. ValueError if there is none; `what` says what to give instead."""
    require(path.is_file(), f"There is no file {path}; give {what}.")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}).") from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); fetch or save it again.") from error
    require(isinstance(values, dict), f"{path} is not a JSON object; fetch or save it again.")
    return values
