"""What steps of the target take by rows and context, as measured once."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seqs
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from specfast.validation import read_object, require


@dataclass(frozen=True)
class CostProfile:
    """seconds[i]: a decoding step with rows[i] rows, ascending, with next to no context. What each
    token of context adds: context_seconds once a sequence, whose KV is read, and
    row_context_seconds for each of its rows, which attend to it.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    context_seconds: float = 0.0
    row_context_seconds: float = 0.0

    def __post_init__(self) -> None:
        ok = len(self.rows) == len(self.seconds) > 0 and self.rows[0] == 1
        ok = ok and all(a < b for a, b in zip(self.rows, self.rows[1:]))
        ok = ok and all(np.isfinite(s) and s > 0 for s in self.seconds)
        ok = ok and 0 <= self.context_seconds < np.inf and 0 <= self.row_context_seconds < np.inf
        require(ok, f"This is no cost profile: {self}.")

    def of_rows(self, num_rows: np.ndarray) -> np.ndarray:
        """Seconds without context: never less for more rows (what was measured so is pooled),
        straight between and beyond those measured.
        """
        rows, seconds = np.array(self.rows, float), _rising(self.seconds)
        if len(rows) == 1:
            return seconds[0] * np.ones_like(num_rows, float)
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        beyond = np.maximum(np.asarray(num_rows, float) - rows[-1], 0.0)
        return np.interp(num_rows, rows, seconds) + slope * beyond

    @property
    def ridge_point(self) -> float:
        """Rows at which computing takes as long as reading the weights: there the line through the
        largest steps meets the time of one row.
        """
        if len(self.rows) == 1:
            return float("inf")
        half = min(len(self.rows) // 2, len(self.rows) - 2)
        slope, fixed = np.polyfit(self.rows[half:], self.seconds[half:], 1)
        if slope <= 0:
            return float("inf")
        return float(max(1.0, (self.seconds[0] - min(fixed, 0.0)) / slope))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> CostProfile:
        """ValueError for a file that holds none."""
        values = read_object(path)
        try:
            return cls(
                tuple(map(int, values["rows"])),
                tuple(map(float, values["seconds"])),
                float(values["context_seconds"]),
                float(values["row_context_seconds"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no cost profile ({error!r}); delete it.") from error


def _rising(values: Seqs[float]) -> np.ndarray:
    """The nearest sequence that never falls, by least squares: neighbours that fall are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m), (b, n) = pools[-2:]
            pools[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return np.repeat(*map(np.array, zip(*pools)))
