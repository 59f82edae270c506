"""What torch.save wrote, whole and broken."""

from __future__ import annotations

import random
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from specfast.models.torch_checkpoint import TorchCheckpoint

STATE = {"a.weight": torch.randn(3, 4), "b.bias": torch.ones(3), "d2t": torch.arange(5)}


@pytest.mark.parametrize("is_zip", [True, False])
def test_both_formats_of_torch(is_zip, tmp_path):
    torch.save(STATE, tmp_path / "a.bin", _use_new_zipfile_serialization=is_zip)
    checkpoint = TorchCheckpoint(tmp_path / "a.bin")
    assert checkpoint.shapes == {"a.weight": (3, 4), "b.bias": (3,), "d2t": (5,)}
    assert all(torch.equal(checkpoint.tensor(name), t) for name, t in STATE.items())


def broken_pickles(whole: Path, count: int) -> list[bytes]:
    """The file again and again, a few bytes of its pickle changed."""
    rnd = random.Random(0)
    with ZipFile(whole) as file:
        members = {name: file.read(name) for name in file.namelist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))
    found = []
    for _ in range(count):
        data = bytearray(members[pickled])
        for _ in range(rnd.choice((1, 1, 2, 5))):
            data[rnd.randrange(len(data))] = rnd.randrange(256)
        with ZipFile(whole.with_name("broken.bin"), "w") as file:
            for name, content in {**members, pickled: bytes(data)}.items():
                file.writestr(name, content)
        found.append(whole.with_name("broken.bin").read_bytes())
    return found


def test_whatever_is_broken_is_a_value_error(tmp_path):
    whole, path = tmp_path / "whole.bin", tmp_path / "a.bin"
    torch.save(STATE, whole)
    data = whole.read_bytes()
    cut = [data[:size] for size in range(0, len(data), 199)]
    num_read = 0
    for content in [*broken_pickles(whole, 120), *cut, b"<html>404</html>", bytes(999)]:
        path.write_bytes(content)
        try:
            TorchCheckpoint(path)
            num_read += 1  # a changed digit of a shape or a name is no broken file
        except ValueError as error:
            assert str(path) in str(error) or "is stored as" in str(error)
    assert num_read < 60


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_runs_no_code(is_zip, tmp_path):
    mark = tmp_path / "ran"
    state = {"a": Malicious(mark)}
    torch.save(state, tmp_path / "a.bin", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(ValueError, match="is no state dict"):
        TorchCheckpoint(tmp_path / "a.bin")
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        None, [1], torch.zeros(3), {1: torch.zeros(2)}, {"a": "b"}, {"state_dict": STATE},
        {"a": torch.zeros(2, 2, dtype=torch.float64)}, {"a": torch.zeros(2, dtype=torch.int8)},
        {"a": torch.zeros(2, dtype=torch.complex64)}, {"d2t": torch.zeros(2)},
        {"a": torch.eye(3).to_sparse()}, {"a": torch.empty(3, 3, device="meta")},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_dict_of_dense_tensors_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(ValueError, match="must hold a dict of tensors|is stored as"):
        TorchCheckpoint(tmp_path / "a.bin")
