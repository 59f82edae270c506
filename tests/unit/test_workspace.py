from __future__ import annotations

import inspect

import pytest

from specfast import workspace

OPS = [name for name, f in vars(workspace).items() if inspect.isfunction(f)]
SIZES = {
    "rows": 3, "vocabulary": 100, "logprobs": 2, "m": 4, "sequences": 2, "laws": 5,
    "law_vocabulary": 90, "heads": 8, "kv_heads": 4, "head_dim": 64, "context": 5000, "window": 0,
}  # fmt: skip
MOST = 2**31 - 1
NEVER_ZERO = {"vocabulary", "heads", "kv_heads", "head_dim"}


def sizes(op: str) -> dict[str, int]:
    return {name: SIZES[name] for name in inspect.signature(getattr(workspace, op)).parameters}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in OPS for name in sizes(op)])
def test_no_tensor_has_such_a_size(op, name):
    for size in (-1, MOST + 1, 2**62, *([0] if name in NEVER_ZERO else [])):
        message = rf"\b{name}: must be [01] to {MOST}, got {size}"
        with pytest.raises(RuntimeError, match=message):
            getattr(workspace, op)(**{**sizes(op), name: size})


@pytest.mark.parametrize("op", OPS)
def test_no_sizes_overflow(op):
    most = dict.fromkeys(sizes(op), MOST)
    if op == "tree_attention":
        most.update(heads=1, kv_heads=1, head_dim=256)
    assert getattr(workspace, op)(**most) >= 0


def test_heads_that_fit_no_cache():
    with pytest.raises(RuntimeError, match="heads: must be a multiple of the 3 of the cache"):
        workspace.tree_attention(**{**sizes("tree_attention"), "kv_heads": 3})
    with pytest.raises(RuntimeError, match="head_dim: must be at most 256, got 272"):
        workspace.tree_attention(**{**sizes("tree_attention"), "head_dim": 272})
