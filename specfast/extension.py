"""Loads the compiled ops, or says in plain words how to build them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch

BUILD = "`pip install --no-build-isolation -e .` in the source folder builds them"


def load(op_names: Iterable[str]) -> ModuleType:
    """specfast._C, whose import registers the ops.

    ImportError with what to do, if it is missing, does not load, or lacks one of op_names.
    """
    try:
        from specfast import _C
    except ImportError as error:
        raise ImportError(
            f"specfast's compiled ops don't load ({error}). They need torch >= 2.10; {BUILD}."
        ) from error
    if missing := [name for name in op_names if not hasattr(torch.ops.specfast, name)]:
        raise ImportError(
            f"specfast's compiled ops are older than the package: {', '.join(missing)} not found. "
            f"{BUILD}."
        )
    return _C
