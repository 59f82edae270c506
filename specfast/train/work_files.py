"""Files that a run finds in its work folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Makes whatever a broken file raises a ValueError that says what to do."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{path} can't be read ({error}); delete it, and give the command again."
        ) from error
