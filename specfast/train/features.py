"""The target's hidden states along its answers: kept on disk while there is room."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specfast.train.work_files import reading


@dataclass(frozen=True)
class FeatureRequest:
    """Hidden states to keep: of which layers (ascending), and within how many bytes a work folder,
    whatever layers its files are of.
    """

    layers: tuple[int, ...] = ()
    max_bytes: int = 0

    def store(self, folder: Path, num_parts: int = 1) -> FeatureStore:
        """Beside the answers in folder, for one of so many parts that fill it together."""
        used = sum(path.stat().st_size for path in folder.parent.glob("*/features/*/*.npy"))
        return FeatureStore(folder / _FOLDER, self.layers, (self.max_bytes - used) // num_parts)

    def stores(self, folder: Path) -> list[FeatureStore]:
        """That store, then those beside the same answers that hold more layers."""
        others = [FeatureStore(folder / _FOLDER, layers) for layers in _stored(folder / _FOLDER)]
        more = [s for s in others if set(self.layers) < set(s.layers)]
        return [self.store(folder), *more]


NO_FEATURES = FeatureRequest()
_FOLDER = "features"
_HEADER_BYTES = 128  # of an .npy file


class FeatureStore:
    """A folder with one file an answer, bfloat16 [tokens - 1, layers hidden]: row i is what
    `layers` saw of token i. What would not fit into so many more bytes is not kept.
    """

    def __init__(self, folder: Path, layers: tuple[int, ...], max_bytes: int = 0) -> None:
        self.layers = layers
        self._folder = folder / "-".join(map(str, layers))
        self._left = max_bytes

    def add(self, index: int, features: Tensor) -> bool:
        """Whether it was kept: whole or not at all."""
        if self.has(index):
            return True
        data = features.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
        if data.nbytes + _HEADER_BYTES > self._left:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(index)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, data)
        self._left -= partial.stat().st_size
        os.replace(partial, path)
        return True

    def has(self, index: int) -> bool:
        return self._path(index).exists()

    def get(self, index: int, layers: tuple[int, ...] = ()) -> Tensor:
        """bfloat16 [tokens - 1, layers hidden], of these of the store's layers."""
        path = self._path(index)
        with reading(path):
            found = torch.from_numpy(np.load(path)).view(torch.bfloat16)
        if layers in ((), self.layers):
            return found
        columns = found.chunk(len(self.layers), 1)
        return torch.cat([columns[self.layers.index(layer)] for layer in layers], 1)

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.npy"


def _stored(folder: Path) -> list[tuple[int, ...]]:
    """The layers of every store in folder."""
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    return [tuple(map(int, name.split("-"))) for name in names]
