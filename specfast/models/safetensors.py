"""A Hugging Face folder's weights: one safetensors file, or shards with an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specfast.models.weights import VOCABULARY_MAPS
from specfast.validation import read_object

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
MAP_DTYPES = {"I32": torch.int32, "I64": torch.int64, "BOOL": torch.bool}


class FolderCheckpoint:
    """Tensors of a folder, mapped and not copied. dtype: that of most matrices. single: the file
    that holds all, where that is known.
    """

    def __init__(self, folder: Path, single: str | None = None) -> None:
        self._file_of: dict[str, Any] = {}
        for path in [folder / single] if single else weight_files(folder):
            file = _open(path)
            self._file_of |= dict.fromkeys(file.keys(), file)
        self.shapes: dict[str, tuple[int, ...]] = {}
        dtypes: Counter[torch.dtype] = Counter()
        for name, file in self._file_of.items():
            stored = file.get_slice(name)
            self.shapes[name] = tuple(stored.get_shape())
            supported = MAP_DTYPES if name in VOCABULARY_MAPS else DTYPES
            if stored.get_dtype() not in supported:
                raise ValueError(
                    f"Tensor {name!r} is stored as {stored.get_dtype()}, which is not supported; "
                    f"supported are {', '.join(supported)}."
                )
            if len(self.shapes[name]) == 2 and name not in VOCABULARY_MAPS:
                dtypes[DTYPES[stored.get_dtype()]] += 1
        self.dtype = dtypes.most_common(1)[0][0] if dtypes else torch.float32

    def tensor(self, name: str) -> Tensor:
        return self._file_of[name].get_tensor(name)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is no whole safetensors file ({error}); fetch or save it again."
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The shards that the index names, or model.safetensors. ValueError if a file is missing."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        weight_map = read_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not _all_text(weight_map.values()):
            raise ValueError(f"{index} is without a weight_map of files; fetch or save it again.")
        names = sorted(set(weight_map.values()))
    elif single.exists():
        names = [single.name]
    else:
        raise ValueError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json. Other "
            "formats are not read: save the model with save_pretrained, or give a .gguf file."
        )
    for name in names:
        if not (folder / name).exists():
            raise ValueError(f"{folder} lacks the file {name} that {index.name} names.")
    return [folder / name for name in names]


def _all_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
