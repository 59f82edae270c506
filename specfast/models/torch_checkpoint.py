"""Tensors that torch.save wrote, as older drafting heads are published."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor


class TorchCheckpoint:
    """A state dict in one file, mapped and not copied. dtype: that of most matrices."""

    def __init__(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, OSError) as error:
            raise ValueError(f"{path} is no state dict that torch.save wrote ({error}).") from error
        if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
            raise ValueError(f"{path} must hold a dict of tensors, by name.")
        self._state: dict[str, Tensor] = state
        self.shapes = {name: tuple(t.shape) for name, t in state.items()}
        dtypes = Counter(t.dtype for t in state.values() if t.ndim == 2 and t.is_floating_point())
        self.dtype = dtypes.most_common(1)[0][0] if dtypes else torch.float32

    def tensor(self, name: str) -> Tensor:
        return self._state[name]
