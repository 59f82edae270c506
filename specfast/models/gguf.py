"""The GGUF container: metadata as plain values, tensors mapped from the file.

The `gguf` package knows the format's types and how to dequantise; its own reader takes seconds for
a vocabulary's worth of strings, so the header is walked here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from torch import Tensor

_SCALARS = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4", GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}  # fmt: skip
_Kind = TypeVar("_Kind", bound=IntEnum)
# Elements dequantised at a time: the temporaries of one slice stay in cache.
_SLICE = 1 << 17


@dataclass(frozen=True)
class StoredTensor:
    """shape as the model sees it (rows first); data begins `offset` bytes into the data section."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int

    @property
    def num_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape)) // block * size


class _UnknownKind(Exception):
    """A number that stands for no type that we know."""


class GgufFile:
    """A GGUF file, versions 2 and 3. ValueError if it is none, or cut short, damaged or split."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty. Fetch it again.")
        self._bytes = np.memmap(path, np.uint8, "r").view(np.ndarray)
        try:
            self._read_header(_Cursor(self._bytes))
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path} is cut short: {error}. Fetch it again.") from error
        except _UnknownKind as error:
            raise ValueError(
                f"{path} has {error}: it is damaged, or newer than the gguf package here."
            ) from error

    def tensor(self, name: str) -> Tensor:
        """Dequantised: float32, or bfloat16 where it is stored so."""
        stored = self.tensors[name]
        data = self._data[stored.offset : stored.offset + stored.num_bytes]
        if stored.kind == GGMLQuantizationType.BF16:
            bits = torch.from_numpy(data.view(np.int16).copy())
            return bits.view(torch.bfloat16).view(stored.shape)
        rows = data.reshape(-1, data.size * stored.shape[-1] // int(np.prod(stored.shape)))
        out = np.empty((len(rows), stored.shape[-1]), np.float32)
        step = max(1, _SLICE // stored.shape[-1])
        try:
            for first in range(0, len(out), step):
                out[first : first + step] = dequantize(rows[first : first + step], stored.kind)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path}: tensor {name!r} is quantised as {stored.kind.name}, which can't be "
                "read; convert the file to another type, Q8_0 for instance."
            ) from error
        return torch.from_numpy(out).view(stored.shape)

    def _read_header(self, cursor: _Cursor) -> None:
        if bytes(self._bytes[:4]) != b"GGUF":
            raise ValueError(f"{self.path} is not a GGUF file.")
        version = cursor.skip(4).scalar("<u4")
        if version not in (2, 3):
            raise ValueError(f"{self.path} has GGUF version {version}; 2 and 3 are read.")
        num_tensors, num_values = cursor.scalar("<u8"), cursor.scalar("<u8")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.kind(GGUFValueType))
        if self.metadata.get("split.count", 1) > 1:
            raise ValueError(f"{self.path} is one part of several; merge them with gguf-split.")
        self.tensors = dict(cursor.tensor() for _ in range(num_tensors))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-cursor.offset // alignment) * alignment
        self._data = self._bytes[start:]
        end = max((t.offset + t.num_bytes for t in self.tensors.values()), default=0)
        if end > len(self._data):
            raise IndexError(f"{end} bytes of tensors expected, {len(self._data)} found")


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data.data
        self.offset = 0

    def skip(self, num_bytes: int) -> _Cursor:
        self.offset += num_bytes
        return self

    def scalar(self, dtype: str) -> Any:
        return self._array(np.dtype(dtype), 1)[0].item()

    def string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self.offset)
        begin = self.offset + 8
        self.offset = begin + length
        if self.offset > len(self._data):
            raise IndexError("a string runs past the end")
        return str(self._data[begin : self.offset], "utf-8", "replace")

    def kind(self, kinds: type[_Kind]) -> _Kind:
        number = self.scalar("<u4")
        try:
            return kinds(number)
        except ValueError:
            raise _UnknownKind(f"type {number}, which is no {kinds.__name__}") from None

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind != GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind])
        element, length = self.kind(GGUFValueType), self.scalar("<u8")
        if element in _SCALARS:
            return self._array(np.dtype(_SCALARS[element]), length).tolist()
        return [self.value(element) for _ in range(length)]

    def tensor(self) -> tuple[str, StoredTensor]:
        name, rank = self.string(), self.scalar("<u4")
        shape = tuple(self.scalar("<u8") for _ in range(rank))[::-1]
        kind = self.kind(GGMLQuantizationType)
        return name, StoredTensor(shape, kind, self.scalar("<u8"))

    def _array(self, dtype: np.dtype[Any], length: int) -> np.ndarray:
        end = self.offset + length * dtype.itemsize
        if end > len(self._data):
            raise IndexError("a value runs past the end")
        values = np.frombuffer(self._data, dtype, length, self.offset)
        self.offset = end
        return values
