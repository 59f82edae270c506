"""The target's hidden states along its answers: kept on disk while there is room."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureRequest:
    """Hidden states to keep while the target writes: of which layers, within how many bytes."""

    layers: tuple[int, ...] = ()
    max_bytes: int = 0

    def store(self, folder: Path, num_parts: int = 1) -> FeatureStore:
        """Beside the answers in folder, for one of so many parts that fill it together."""
        return FeatureStore(folder / "features", self.layers, self.max_bytes // num_parts)


NO_FEATURES = FeatureRequest()


class FeatureStore:
    """A folder with one file an answer, bfloat16 [tokens - 1, layers hidden]: row i is what
    `layers` saw of token i. What would not fit into max_bytes is not kept.
    """

    def __init__(self, folder: Path, layers: tuple[int, ...], max_bytes: int) -> None:
        self.layers = layers
        self._folder = folder / "-".join(map(str, layers))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._left = max_bytes - sum(path.stat().st_size for path in self._folder.iterdir())

    def add(self, index: int, features: Tensor) -> bool:
        """Whether it was kept: whole or not at all."""
        if self.has(index):
            return True
        data = features.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
        if data.nbytes > self._left:
            return False
        path = self._path(index)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, data)
        os.replace(partial, path)
        self._left -= data.nbytes
        return True

    def has(self, index: int) -> bool:
        return self._path(index).exists()

    def get(self, index: int) -> Tensor:
        """bfloat16 [tokens - 1, layers hidden]."""
        return torch.from_numpy(np.load(self._path(index))).view(torch.bfloat16)

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.npy"
