"""Tensors that torch.save wrote, as older drafting heads are published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from zipfile import is_zipfile

import torch
from torch import Tensor

from specfast.models.safetensors import DTYPES, MAP_DTYPES
from specfast.models.weights import VOCABULARY_MAPS


class TorchCheckpoint:
    """A state dict in one file, mapped and not copied. dtype: that of most matrices."""

    def __init__(self, path: Path) -> None:
        state = _loaded(path)
        if not isinstance(state, dict) or not all(map(_is_named_tensor, state.items())):
            raise ValueError(f"{path} must hold a dict of tensors, by name.")
        for name, tensor in state.items():
            _check_stored(name, tensor)
        self._state: dict[str, Tensor] = state
        self.shapes = {name: tuple(t.shape) for name, t in state.items()}
        dtypes = Counter(t.dtype for t in state.values() if t.ndim == 2 and t.is_floating_point())
        self.dtype = dtypes.most_common(1)[0][0] if dtypes else torch.float32

    def tensor(self, name: str) -> Tensor:
        return self._state[name]


def _loaded(path: Path) -> object:
    try:  # the format before torch 1.6 is no zip file, and can't be mapped
        return torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
    except Exception as error:  # a broken pickle can fail at any instruction
        raise ValueError(f"{path} is no state dict that torch.save wrote ({error}).") from error


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _check_stored(name: str, tensor: Tensor) -> None:
    supported = (MAP_DTYPES if name in VOCABULARY_MAPS else DTYPES).values()
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_dense or tensor.dtype not in supported:
        raise ValueError(
            f"Tensor {name!r} is stored as {tensor.dtype} ({tensor.layout}, {tensor.device}); "
            f"supported are dense ones of {', '.join(map(str, supported))}."
        )
