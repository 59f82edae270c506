from __future__ import annotations

import pytest
import torch


def pytest_report_header() -> str:
    from specfast import ops

    major, minor = torch.cuda.get_device_capability()
    return (
        f"{torch.cuda.get_device_name()} (sm_{major}{minor}), torch {torch.__version__}, "
        f"kernels for {ops._C.cuda_images or 'no GPU'}"
    )


@pytest.fixture(autouse=True)
def _free_memory() -> None:
    torch.cuda.empty_cache()
