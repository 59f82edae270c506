from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

# Nothing there can run, so nothing there may count.
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]
pytest_plugins = ["pytester"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true nothing skips, for want of the demo model or of a package, unless of a GPU."""
    report = yield
    reason = str(report.longrepr)
    if report.skipped and os.environ.get("CI") == "true" and "GPU" not in reason:
        report.outcome = "failed"
        report.longrepr = f"CI must not skip: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """What is measured and kept goes to a folder of this run."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("SPECFAST_CACHE")
    os.environ["SPECFAST_CACHE"] = str(folder)
    yield folder
    os.environ.pop("SPECFAST_CACHE")
    if before is not None:
        os.environ["SPECFAST_CACHE"] = before


@pytest.fixture(scope="session")
def demo_path() -> Path:
    """The demo model's file, fetched if need be; a test that asks for it can't skip in CI."""
    from specfast.models import demo

    try:
        return demo.find()
    except ValueError as error:
        pytest.skip(str(error))
