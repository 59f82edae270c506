from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from specfast import ops

# A build without CUDA kernels has no such tests; test_packaging says where there must be some.
collect_ignore = [] if ops._C.cuda_images else ["test_cuda_ops.py"]

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# The relative error that one value stored in this dtype may bring.
STORAGE = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=STORAGE.items(), ids=lambda p: str(p[0]).removeprefix("torch."))
def storage(request: pytest.FixtureRequest) -> tuple[torch.dtype, float]:
    """(dtype, tolerance) of what an op reads from memory: packed weights, a KV cache."""
    return request.param


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture(autouse=True)
def _best_tier_and_one_thread() -> Iterator[None]:
    """More threads only where a test asks: small ops wait long for them on a busy machine."""
    tier, threads = ops.simd_tier(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    ops.set_simd_tier(tier)
    torch.set_num_threads(threads)
