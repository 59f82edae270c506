"""How far to draft, by how many sequences decode together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specfast.validation import MANY, is_integer, require


@dataclass(frozen=True)
class BatchSchedule:
    """ranges: first and last batch size, both included, and k; ascending, without overlap."""

    ranges: tuple[tuple[int, int, int], ...]

    @classmethod
    def up_to(cls, max_batch_size: int, k: int) -> BatchSchedule:
        """k as long as no more than max_batch_size sequences decode; nothing above."""
        return cls(((1, max_batch_size, k), (max_batch_size + 1, MANY, 0)))

    @classmethod
    def parse(cls, value: object, k: int) -> BatchSchedule:
        """From [[first, last, k], ...], or {"first-last": k}. ValueError for what is neither; more
        than the engine's k is refused.
        """
        name = "num_speculative_tokens_per_batch_size"
        rows = _rows(value) if isinstance(value, Mapping) else value
        require(
            isinstance(rows, Sequence) and not isinstance(rows, str | bytes) and len(rows) > 0,
            f"{name} must be a list such as [[1, 4, 5], [5, 32, 2], [33, 1024, 0]], not {value!r}.",
        )
        before = 0
        for row in rows:  # type: ignore[attr-defined]
            require(
                isinstance(row, Sequence) and len(row) == 3 and all(map(is_integer, row)),
                f"{name}: {row!r} must be [first batch size, last batch size, k].",
            )
            require(
                before < row[0] <= row[1] <= MANY,
                f"{name}: {list(row)} must start above {before} and end no earlier than it starts.",
            )
            require(
                0 <= row[2] <= k,
                f"{name}: {list(row)} asks for {row[2]} drafts; num_speculative_tokens={k} is the "
                "most.",
            )
            before = row[1]
        return cls(tuple(tuple(map(int, row)) for row in rows))  # type: ignore[attr-defined, misc]

    def depth(self, batch_size: int) -> int:
        """k for so many sequences. A gap, and what lies beyond, has the k before it; the sizes
        before the first range have its k.
        """
        below = [k for first, _, k in self.ranges if first <= batch_size]
        return below[-1] if below else self.ranges[0][2]


def _rows(table: Mapping[Any, Any]) -> list[list[Any]]:
    rows = []
    for key, k in table.items():
        first, _, last = str(key).partition("-")
        sizes = [int(s) if s.isdecimal() else s for s in (first, last or first)]
        rows.append([*sizes, k])
    return rows
