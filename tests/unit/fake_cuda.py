"""Tensors that torch takes for a CUDA device's, without one: enough for all but the launch."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
DL_CUDA = 2


def on_cuda(t: Tensor, index: int = 0) -> Tensor:
    """t's memory, by DLPack, under another device's name. Nothing may look at its values."""
    capsule = t.__dlpack__()
    device = ctypes.cast(_pointer(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32))
    device[0], device[1] = DL_CUDA, index
    torch.cuda._lazy_init, initialise = lambda: None, torch.cuda._lazy_init
    try:
        return torch.from_dlpack(capsule)
    finally:
        torch.cuda._lazy_init = initialise
