"""What else to compare with on a GPU, beyond what the cases themselves bring."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench.cases import BLOCK_SIZE, Call, Case, Place

try:
    import flashinfer

    FLASHINFER = flashinfer.__version__
except ImportError:
    FLASHINFER = "not importable"

# Compiling one takes seconds, so only these: (batch, rows, context, tree).
FLEX = {(32, 6, 4096), (1, 64, 4096, True), (32, 64, 4096, True)}


def of(op: str, arguments: tuple, place: Place, case: Case) -> dict[str, Callable[[], Call]]:
    """What makes each call: that may fail too."""
    found: dict[str, Callable[[], Call]] = {}
    if op == "tree_attention" and arguments in FLEX:
        found["flex_attention"] = partial(flex_attention, case)
    if FLASHINFER == "not importable":
        return found
    if op == "tree_attention" and len(arguments) == 3:
        found["flashinfer"] = partial(paged_prefill, place, case, *arguments)
    if op == "sample_rows" and arguments[-1] != "greedy":
        found["flashinfer"] = partial(flashinfer_sampling, place, *arguments)
    return found


def flex_attention(case: Case) -> Call:
    """Compiled, with the block mask of the same tree or chain."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    q, k, v = (case.notes[name] for name in ("heads", "k", "v"))
    rows, context = q.shape[2], k.shape[3]
    bits, first = case.notes["bits"], context - rows
    seen = torch.ones(rows, context, dtype=torch.bool).tril(first)
    if any(bits):
        seen[:, first:] = torch.tensor([[a >> j & 1 == 1 for j in range(rows)] for a in bits])
    seen = seen.to(q.device)

    def may_see(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return seen[i, j]

    mask = create_block_mask(may_see, None, None, rows, context, device=q.device)
    compiled = torch.compile(flex, dynamic=False)
    return lambda i: compiled(q, k[i], v[i], block_mask=mask, enable_gqa=True)


def paged_prefill(place: Place, case: Case, batch: int, rows: int, context: int) -> Call:
    """FlashInfer over pages of the same size, planned once."""
    pages = context // BLOCK_SIZE
    ints = lambda values: torch.tensor(values, dtype=torch.int32, device=place.device)  # noqa: E731
    k, v = case.notes["k"], case.notes["v"]
    shape = (batch * pages, BLOCK_SIZE, place.kv_heads, place.dim)
    caches = [(k[i].reshape(shape), v[i].reshape(shape)) for i in range(case.copies)]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(512 << 20, dtype=torch.uint8, device=place.device), "NHD"
    )
    wrapper.plan(
        ints(range(0, (batch + 1) * rows, rows)), ints(range(0, (batch + 1) * pages, pages)),
        torch.randperm(batch * pages, device=place.device).int(), ints([BLOCK_SIZE] * batch),
        place.heads, place.kv_heads, place.dim, BLOCK_SIZE, causal=True,
        q_data_type=place.dtype, kv_data_type=place.storage,
    )  # fmt: skip
    q = case.notes["heads"].transpose(1, 2).reshape(batch * rows, place.heads, place.dim)
    return lambda i: wrapper.run(q, caches[i])


def flashinfer_sampling(place: Place, rows: int, vocab: int, filter: str) -> Call:
    logits, sampling = (
        4 * place.normal(place.copies(2 * rows * vocab), rows, vocab),
        flashinfer.sampling,
    )
    draw = {
        "none": sampling.sampling_from_probs,
        "top_p": partial(sampling.top_p_sampling_from_probs, top_p=0.9),
        "top_k": partial(sampling.top_k_sampling_from_probs, top_k=50),
    }[filter]
    return lambda i: draw(logits[i].float().softmax(-1))
