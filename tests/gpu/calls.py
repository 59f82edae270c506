"""Calls of every op that runs on CUDA: random arguments of fixed shapes, padding among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specfast import ops, workspace
from tests.unit import paged
from tests.unit.verification_ops import Trees

CPU_ONLY = {"linear", "decoder_layers"}
# Arguments that may be bf16 on CUDA; the CPU op gets them widened.
ACTIVATIONS = {
    "x",
    "residual",
    "out",
    "sum_out",
    "gate_up",
    "qkv",
    "q_out",
    "k",
    "v",
    "q",
    "logits",
}


@dataclass(frozen=True)
class Call:
    """An op and its arguments by the schema's names, all on the CPU."""

    op: str
    arguments: dict[str, Any]

    @property
    def schema(self) -> Any:
        return getattr(torch.ops.specfast, self.op).default._schema

    @property
    def outputs(self) -> list[str]:
        """Those that the op writes, and that are given."""
        written = (a.name for a in self.schema.arguments if a.alias_info and a.alias_info.is_write)
        results = (name for name in written if name != "workspace")
        return [name for name in results if self.arguments[name] is not None]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {n: a for n, a in self.arguments.items() if isinstance(a, Tensor)}

    def changed(self, **arguments: Any) -> Call:
        return Call(self.op, {**self.arguments, **arguments})

    def with_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Call:
        return self.changed(**{name: change(name, t) for name, t in self.tensors.items()})

    def to(self, device: str | torch.device) -> Call:
        """On CUDA it gets a workspace of junk, if it needs one."""
        moved = self.with_tensors(lambda _, t: _copy(t, device))
        size = workspace_of(self.op, self.arguments) if torch.device(device).type == "cuda" else 0
        if not size or "workspace" in self.arguments:
            return moved
        return moved.changed(workspace=torch.full((size,), 0xA5, dtype=torch.uint8, device=device))

    def activations(self, dtype: torch.dtype) -> Call:
        return self.with_tensors(lambda n, t: t.to(dtype) if n in ACTIVATIONS else t)

    def run(self) -> list[Tensor]:
        """The outputs, on the CPU."""
        getattr(torch.ops.specfast, self.op)(**self.arguments)
        return [self.arguments[name].cpu() for name in self.outputs]

    def on_cpu(self) -> list[Tensor]:
        """What the CPU op gives, in the dtypes of these arguments."""
        outputs = self.activations(torch.float32).to("cpu").run()
        return [o.to(self.arguments[name].dtype) for name, o in zip(self.outputs, outputs)]


def workspace_of(op: str, a: dict[str, Any]) -> int:
    """Bytes."""
    if op == "tree_attention":
        (rows, heads, dim), blocks = a["q"].shape, a["block_tables"]
        _, _, block_size, kv_heads, _ = a["kv_cache"].shape
        context = blocks.shape[1] * block_size
        sizes = (rows, heads, kv_heads, dim, len(blocks), context, a["window"])
        return workspace.tree_attention(*sizes)
    if op == "sample_rows":
        logprobs = None if a["logprobs"] is None else a["logprobs"].shape[1] - 1
        return workspace.sample_rows(*a["logits"].shape, logprobs)
    if op in ("rank_candidates", "draw_candidates"):
        return getattr(workspace, op)(*a["logits"].shape, a["ids"].shape[1])
    if op == "rejection_sample":
        laws = () if a["draft_laws"] is None else a["draft_laws"].shape
        return workspace.rejection_sample(*a["logits"].shape, len(a["lengths"]), *laws)
    if op == "typical_sample":
        return workspace.typical_sample(*a["logits"].shape, len(a["lengths"]))
    return 0


def _copy(t: Tensor, device: str | torch.device) -> Tensor:
    """Its strides too: rows may lie apart."""
    copy = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
    return copy.copy_(t)


def _junk(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, 77, dtype=dtype)


def _junk_ints(*shape: int) -> Tensor:
    return _junk(*shape, dtype=torch.int32)


class Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def ints(self, low: int, high: int, *shape: int) -> Tensor:
        """low <= x < high."""
        return torch.randint(low, high, shape, generator=self.generator).int()

    def choice(self, values: list, *shape: int) -> Tensor:
        return torch.tensor(values)[self.ints(0, len(values), *shape).long()]

    def strided(self, rows: int, width: int, gap: int = 8) -> Tensor:
        return self.normal(rows, width + gap)[:, :width]


def rms_norm(r: Random, width: int = 576, residual: bool = True) -> Call:
    return Call("rms_norm", {
        "x": r.strided(7, width), "residual": r.normal(7, width) if residual else None,
        "weight": r.normal(width), "eps": 1e-5, "out": _junk(7, width),
        "sum_out": _junk(7, width) if residual else None,
    })  # fmt: skip


def silu_mul(r: Random, width: int = 1536) -> Call:
    return Call("silu_mul", {"gate_up": 4 * r.normal(7, 2 * width), "out": _junk(7, width)})


def _slots(r: Random, rows: int, num_slots: int) -> Tensor:
    slots = torch.randperm(num_slots, generator=r.generator)[:rows]
    return torch.where(r.ints(0, 5, rows) == 0, -1, slots)


def _cache(r: Random, blocks: int, dtype: torch.dtype, kv_heads: int, dim: int) -> Tensor:
    return r.normal(2, blocks, 16, kv_heads, dim).to(dtype)


def _with_faults(r: Random, t: Tensor) -> Tensor:
    """One element in some hundreds is what bf16 can't hold or no number at all."""
    faults = r.choice([3.4e38, float("inf"), -float("inf"), float("nan")], *t.shape)
    return torch.where(r.ints(0, 300, *t.shape) == 0, faults, t)


def rope_kv_append(
    r: Random, storage: torch.dtype, dim: int = 64, rotary: int = 64, norms: bool = False
) -> Call:
    rows, heads, kv_heads = 21, 9, 3
    slots, positions = _slots(r, rows, 64), r.ints(0, 40, rows)
    angles = r.normal(40, rotary // 2)
    return Call("rope_kv_append", {
        "qkv": r.strided(rows, (heads + 2 * kv_heads) * dim),
        "cos_sin": torch.cat((angles.cos(), angles.sin()), 1),
        "positions": torch.where(slots < 0, -1, positions), "slots": slots,
        "q_norm": r.normal(dim) if norms else None, "k_norm": r.normal(dim) if norms else None,
        "eps": 1e-6, "q_out": _junk(rows, heads, dim),
        "kv_cache": _cache(r, 4, storage, kv_heads, dim), "status": r.ints(0, 8, rows),
    })  # fmt: skip


def kv_append(r: Random, storage: torch.dtype) -> Call:
    rows, kv_heads, dim = 40, 3, 80
    k, v = (_with_faults(r, r.normal(rows, kv_heads, dim)) for _ in "kv")
    return Call("kv_append", {
        "k": k, "v": v, "slots": _slots(r, rows, 64),
        "kv_cache": _cache(r, 4, storage, kv_heads, dim), "status": r.ints(0, 8, rows),
    })  # fmt: skip


def kv_compact(r: Random, nodes: int = 64) -> Call:
    batch, blocks = 5, 7
    paths, accepted = torch.full((batch, nodes), -1), r.ints(0, nodes + 1, batch)
    for path, n in zip(paths, accepted.tolist()):
        path[:n] = torch.randperm(nodes, generator=r.generator)[:n].sort().values
    tables = torch.randperm(batch * blocks, generator=r.generator).view(batch, blocks)
    return Call("kv_compact", {
        "cache": r.normal(3, 2, batch * blocks, 16, 3, 64).bfloat16(), "block_tables": tables.int(),
        "node_base": r.ints(0, 40, batch), "path": paths.int(), "num_accepted": accepted,
    })  # fmt: skip


def tree_attention(
    r: Random, dim: int = 128, heads: int = 8, kv_heads: int = 2, window: int = 0,
    soft_cap: float = 0.0,
) -> Call:  # fmt: skip
    """A tail and its tree over several splits, a long tail, a row of a short text."""
    lengths, g = (1200, 140, 3), r.generator
    made = paged.pool([r.normal(2, n + 64, kv_heads, dim).bfloat16() for n in lengths], 16, g)
    q = lambda n: (2 * r.normal(n, heads, dim)).bfloat16().float()  # noqa: E731, as CUDA rounds it
    tail, tree = paged.plain(q(2), 1198), paged.nodes(q(40), 1200, paged.random_tree(40, g))
    both = (torch.cat(p) for p in zip(*((t.q, t.positions, t.bits) for t in (tail, tree))))
    sequences = [paged.Rows(*both, 1200), paged.plain(q(90), 50), paged.plain(q(1), 2)]
    names = ("q", "kv_cache", "block_tables", "qo_indptr", "node_base", "kv_start", "positions",
             "node_bits")  # fmt: skip
    inputs = dict(zip(names, paged._inputs(made, sequences, paged.Law(start=1))))
    inputs["kv_cache"] = inputs["kv_cache"].nan_to_num()  # graphs replay it with other tables
    return Call("tree_attention", {
        **inputs, "scale": dim**-0.5, "window": window, "soft_cap": soft_cap,
        "out": _junk(*inputs["q"].shape),
    })  # fmt: skip


def _law(r: Random, rows: int, vocab: int) -> dict[str, Tensor]:
    """Logits and every kind of filter; the last rows have no token, a NaN and ties."""
    logits = 3 * r.strided(rows, vocab)
    logits[-1], logits[-2, vocab // 2], logits[-3] = -float("inf"), float("nan"), 1.5
    return {
        "logits": logits, "temperature": r.choice([0.0, 0.7, 1.0, 1.0, 2.0], rows),
        "top_k": r.choice([0, 0, 1, 50, 200], rows).int(),
        "top_p": r.choice([1.0, 1.0, 0.9, 0.3], rows),
        "min_p": r.choice([0.0, 0.0, 0.02], rows),
        "seeds": r.ints(-(2**31), 2**31 - 1, rows).long() * 12345,
        "positions": r.ints(0, 9000, rows),
    }  # fmt: skip


def sample_rows(r: Random, vocab: int = 20000, rows: int = 24, logprobs: int | None = 5) -> Call:
    width = None if logprobs is None else 1 + logprobs
    return Call("sample_rows", {
        **_law(r, rows, vocab), "tokens": _junk_ints(rows), "status": _junk_ints(rows),
        "logprob_ids": _junk_ints(rows, width) if width else None,
        "logprobs": _junk(rows, width) if width else None,
    })  # fmt: skip


def rank_candidates(r: Random, vocab: int = 20000, m: int = 8, mapped: bool = True) -> Call:
    law = _law(r, 12, vocab)
    return Call("rank_candidates", {
        **{name: law[name] for name in ("logits", "temperature", "seeds", "positions")},
        "d2t": _d2t(r, vocab) if mapped else None,
        "ids": _junk_ints(12, m), "scores": _junk(12, m),
    })  # fmt: skip


def _d2t(r: Random, vocab: int) -> Tensor:
    return torch.randperm(2 * vocab, generator=r.generator)[:vocab].int()


def draw_candidates(r: Random, vocab: int = 20000, m: int = 4, mapped: bool = True) -> Call:
    return Call("draw_candidates", {
        **_law(r, 12, vocab), "d2t": _d2t(r, vocab) if mapped else None,
        "nodes": r.ints(-1, 60, 12), "roots": r.ints(0, 9000, 12),
        "ids": _junk_ints(12, m), "laws": _junk(12, vocab),
    })  # fmt: skip


def _tokens(r: Random, nodes: int, vocab: int) -> list[int]:
    """All different where there are enough."""
    if vocab < nodes:
        return r.ints(0, vocab, nodes).tolist()
    return torch.randperm(vocab, generator=r.generator)[:nodes].tolist()


def _trees(r: Random, batch: int, nodes: int, vocab: int) -> tuple[dict[str, Tensor], int]:
    """Random trees, one empty and one without rows; and how many rows there are."""
    trees = Trees(
        [_tokens(r, nodes, vocab) for _ in range(batch)],
        [[max(-1, i - 1 - int(r.ints(0, 3))) for i in range(nodes)] for _ in range(batch)],
    )
    lengths, base = trees.lengths, trees.row_base
    lengths[1], base[2] = 0, -1
    rows = batch * (1 + nodes)
    return {
        "row_status": r.choice([0, 0, 0, 1, 2], rows).int(), "row_base": base,
        "draft_tokens": trees.padded(trees.tokens), "parents": trees.padded(trees.parents),
        "lengths": lengths, "path": _junk_ints(batch, nodes), "num_accepted": _junk_ints(batch),
        "next_tokens": _junk_ints(batch), "status": _junk_ints(batch),
    }, rows  # fmt: skip


def accept_path(r: Random, nodes: int = 40) -> Call:
    trees, rows = _trees(r, 9, nodes, 4)
    return Call("accept_path", {"tokens": r.ints(-1, 4, rows), **trees})


def rejection_sample(
    r: Random, by_token: bool, vocab: int = 50, nodes: int = 12, with_laws: bool = True
) -> Call:
    trees, rows = _trees(r, 9, nodes, min(vocab, 50))
    first_law = torch.arange(9).int()[:, None] * nodes
    of_siblings = first_law + trees["parents"] + 1
    law_row = torch.where(r.ints(0, 4, 9, nodes) == 0, -1, of_siblings)
    return Call("rejection_sample", {
        **_law(r, rows, vocab), **trees, "roots": r.ints(0, 9000, 9), "by_token": by_token,
        "draft_laws": r.normal(9 * nodes, vocab) if with_laws else None,
        "law_row": law_row if with_laws else None,
        "vocab_map": torch.randperm(vocab, generator=r.generator).int() if with_laws else None,
    })  # fmt: skip


def typical_sample(r: Random, vocab: int = 50, nodes: int = 12) -> Call:
    trees, rows = _trees(r, 9, nodes, min(vocab, 50))
    return Call("typical_sample", {
        **_law(r, rows, vocab), **trees, "threshold": 0.09, "alpha": 0.3,
    })  # fmt: skip


F32, BF16 = torch.float32, torch.bfloat16
# Whose bytes are those of the CPU op.
EXACT: dict[str, Callable[[Random], Call]] = {
    **{f"rms_norm {n}": partial(rms_norm, width=n) for n in (1, 33, 576, 4096, 9001)},
    "rms_norm alone": partial(rms_norm, residual=False),
    **{f"silu_mul {n}": partial(silu_mul, width=n) for n in (1, 21, 1536, 14336)},
    **{f"kv_append {str(s)[6:]}": partial(kv_append, storage=s) for s in (F32, BF16)},
    **{f"rope_kv_append {str(s)[6:]}": partial(rope_kv_append, storage=s) for s in (F32, BF16)},
    "rope_kv_append norms": partial(rope_kv_append, storage=BF16, dim=128, rotary=96, norms=True),
    **{f"kv_compact {n}": partial(kv_compact, nodes=n) for n in (1, 5, 64)},
    **{f"sample_rows {n}": partial(sample_rows, vocab=n) for n in (5, 8193, 20000, 131072)},
    "sample_rows tokens alone": partial(sample_rows, logprobs=None),
    "rank_candidates": rank_candidates,
    "rank_candidates whole": partial(rank_candidates, vocab=131072, m=64, mapped=False),
    "draw_candidates": draw_candidates,
    "draw_candidates whole": partial(draw_candidates, vocab=131072, mapped=False),
    **{f"accept_path {n}": partial(accept_path, nodes=n) for n in (1, 40, 64)},
    **{
        f"rejection_sample {rule} {n}": partial(rejection_sample, by_token=rule == "token", vocab=n)
        for rule in ("token", "block")
        for n in (50, 8300)
    },
    "rejection_sample points": partial(rejection_sample, by_token=False, with_laws=False),
    **{f"typical_sample {n}": partial(typical_sample, vocab=n) for n in (50, 8300)},
}
BOUNDED: dict[str, Callable[[Random], Call]] = {
    "tree_attention": tree_attention,
    "tree_attention 64": partial(tree_attention, dim=64, heads=9, kv_heads=3),
    "tree_attention window": partial(tree_attention, window=700),
    "tree_attention cap": partial(tree_attention, soft_cap=5.0, heads=2),
}
CALLS = {**EXACT, **BOUNDED}


def one_an_op() -> Iterator[str]:
    seen: set[str] = set()
    for name in CALLS:
        op = name.split()[0]
        if op not in seen:
            yield name
        seen.add(op)


ONE_AN_OP = list(one_an_op())
assert {name.split()[0] for name in ONE_AN_OP} == {*ops._OUT_VARIANTS} - CPU_ONLY
