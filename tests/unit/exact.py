"""What the op tests share: bytes, and running an op on every SIMD tier and thread count."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from specfast import ops

THREADS = (1, 2, 3, 4)


def _available(tier: str) -> bool:
    before = ops.simd_tier()
    try:
        ops.set_simd_tier(tier)
    except ValueError:
        return False
    ops.set_simd_tier(before)
    return True


TIERS = [tier for tier in ("scalar", "avx2", "avx512") if _available(tier)]


def raw(tensor: Tensor) -> bytes:
    """The tensor's bytes in row-major order, so that NaN equals NaN and 0.0 is not -0.0."""
    dense = tensor.cpu().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes)


def same_bytes(run: Callable[[], Tensor]) -> Tensor:
    """run() on every tier with 1 to 4 threads; all results must be the same bytes.

    Tier and thread count are put back by an autouse fixture.
    """
    expected = None
    for tier in TIERS:
        ops.set_simd_tier(tier)
        for threads in THREADS:
            torch.set_num_threads(threads)
            got = run()
            expected = got.clone() if expected is None else expected
            assert raw(got) == raw(expected), f"{tier} with {threads} threads gives other bytes"
    assert expected is not None
    return expected


def strided(tensor: Tensor, gap: int = 3) -> Tensor:
    """A copy whose rows lie `gap` elements apart, NaN (or the lowest integer) between them."""
    rows, width = tensor.shape
    junk = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min
    wide = torch.full((rows, width + gap), junk, dtype=tensor.dtype)
    wide[:, :width] = tensor
    return wide[:, :width]
