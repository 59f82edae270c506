"""One typed wrapper an op. Every op is an out-variant: it allocates nothing and returns nothing.

On CUDA some write intermediate results to `workspace`, a uint8 tensor [bytes] with any content of
which `specfast.workspace` says how large it must be; on the CPU none is needed.

Shapes: M rows, B sequences, N draft nodes a sequence, H heads, G = H / Hkv, D head_dim,
V vocabulary. Token ids, positions, lengths and statuses are int32; slots, seeds and ancestor bits
are int64.
A tensor that an op refuses raises a RuntimeError that names it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specfast import extension

PANEL = 32
ROW_NON_FINITE_KV, ROW_NAN, ROW_NO_SUPPORT = 1, 2, 4

_OUT_VARIANTS = (
    "linear", "rms_norm", "silu_mul", "rope_kv_append", "kv_append", "kv_compact",
    "tree_attention", "decoder_layers", "sample_rows", "rank_candidates", "draw_candidates",
    "accept_path", "rejection_sample", "typical_sample",
)  # fmt: skip

_C = extension.load(_OUT_VARIANTS)
_ops = torch.ops.specfast


def simd_tier() -> str:
    """The SIMD tier in use: "scalar", "avx2" or "avx512"; all give the same bits."""
    return _C.simd_tier()


def best_simd_tier() -> str:
    """The widest tier that this build has and this CPU runs; the one in use at the start."""
    return _C.best_simd_tier()


def set_simd_tier(name: str) -> None:
    """Forces a SIMD tier. ValueError if this machine can't run it."""
    _C.set_simd_tier(name)


def pack_linear(weight: Tensor, out: Tensor | None = None) -> Tensor:
    """weight [N, K] -> [ceil(N / 32), K, 32] in its own dtype, or out's, as `linear` reads it.

    A bf16 panel is interleaved (columns 0, 16, 1, 17, ...): one load and two shifts widen it.
    """
    n, k = weight.shape
    panels = -(-n // PANEL)
    padded = weight.new_zeros(panels * PANEL, k) if n % PANEL else weight
    if n % PANEL:
        padded[:n] = weight
    packed = padded.view(panels, PANEL, k).transpose(1, 2)
    out = torch.empty(panels, k, PANEL, dtype=weight.dtype) if out is None else out
    if out.dtype == torch.bfloat16:
        packed = packed.unflatten(2, (2, PANEL // 2)).transpose(2, 3)
        out.unflatten(2, (PANEL // 2, 2)).copy_(packed)
    else:
        out.copy_(packed)
    return out


def packed_rows(packed: Tensor, index: Tensor) -> Tensor:
    """The rows index [R] of the matrix that was packed -> [R, K] in its dtype."""
    panel, row = index // PANEL, index % PANEL
    if packed.dtype == torch.bfloat16:
        row = row % (PANEL // 2) * 2 + row // (PANEL // 2)
    return packed[panel, :, row]


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """out [M, N] = x [M, K] @ W^T + bias [N] + residual [M, N], summed in fp32.

    weight is W [N, K] as `pack_linear` lays it out.
    """
    _ops.linear(x, weight, bias, residual, out)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    residual: Tensor | None = None,
    sum_out: Tensor | None = None,
) -> None:
    """h = x [M, D] + residual; out = h / sqrt(mean(h^2) + eps) * weight [D]; sum_out = h."""
    _ops.rms_norm(x, residual, weight, eps, out, sum_out)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """out [M, F] = silu(gate_up[:, :F]) * gate_up[:, F:]."""
    _ops.silu_mul(gate_up, out)


def rope_kv_append(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    q_out: Tensor,
    kv_cache: Tensor,
    status: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Splits qkv [M, (H + 2 Hkv) D], norms q and k if given [D], rotates them, stores K and V.

    cos_sin [P, R] holds cos then sin of R / 2 angles a position (R = 0: no rotary; R < D: the
    first R dims, halves paired); positions [M] int32, -1: padding, whose q is 0; slots [M] int64,
    -1 stores nothing; q_out [M, H, D]; kv_cache [2, blocks, block_size, Hkv, D], D a multiple of
    16 up to 256. A K or V element that is not finite, or would not be in the cache's dtype, is
    stored as 0 and sets ROW_NON_FINITE_KV in status [M] int32. A position past cos_sin or a slot
    past the cache is refused before anything is stored.
    """
    _ops.rope_kv_append(
        qkv, cos_sin, positions, slots, q_norm, k_norm, eps, q_out, kv_cache, status
    )


def kv_append(k: Tensor, v: Tensor, slots: Tensor, kv_cache: Tensor, status: Tensor) -> None:
    """Stores k, v [M, Hkv, D] at slots [M]; non-finite elements as in `rope_kv_append`."""
    _ops.kv_append(k, v, slots, kv_cache, status)


def kv_compact(
    cache: Tensor, block_tables: Tensor, node_base: Tensor, path: Tensor, num_accepted: Tensor
) -> None:
    """Moves node path[b, j], j < num_accepted[b], to logical slot node_base[b] + j, in all layers.

    cache [layers, 2, blocks, block_size, Hkv, D]; block_tables [B, max_blocks] int32;
    node_base [B]; path [B, N] increasing, path[b, j] >= j.
    """
    _ops.kv_compact(cache, block_tables, node_base, path, num_accepted)


def tree_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    qo_indptr: Tensor,
    node_base: Tensor,
    kv_start: Tensor,
    positions: Tensor,
    node_bits: Tensor,
    out: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    workspace: Tensor | None = None,
) -> None:
    """Paged GQA attention of q [M, H, D] for any mix of tail rows and draft nodes; out [M, H, D].

    Row r of sequence b (qo_indptr [B + 1]) has logical position positions[r] (-1: padding) and sees
    logical positions max(kv_start[b], positions[r] + 1 - window) .. positions[r]. Those below
    node_base[b] lie in their own slots; the others are its ancestors, node i at slot
    node_base[b] + i, given by node_bits[r] (ancestor-or-self bits as int64, 0 for a tail row).
    A row that sees nothing gives 0. window 0, soft_cap 0: off.
    """
    _ops.tree_attention(
        q, kv_cache, block_tables, qo_indptr, node_base, kv_start, positions, node_bits,
        scale, window, soft_cap, out, workspace,
    )  # fmt: skip


def decoder_layers(
    scratch: list[Tensor],
    weights: list[Tensor | None],
    rows: list[Tensor],
    kv_caches: list[Tensor],
    windows: list[int],
    eps: float,
    scale: float,
) -> None:
    """Layers in turn, each as nine of the ops above: adds attention and MLP to scratch[0] in place.

    scratch: the fields of models.layers.Scratch; weights: for each layer, those of LayerWeights and
    its cos_sin; rows: those of Rows; kv_caches, windows: one a layer.
    """
    _ops.decoder_layers(scratch, weights, rows, kv_caches, windows, eps, scale)


def sample_rows(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    tokens: Tensor,
    status: Tensor,
    logprob_ids: Tensor | None = None,
    logprobs: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """Decides one token a row of processed logits [R, V] by Gumbel-max over the filtered support.

    temperature (< 1e-5: greedy), top_k (<= 0: off), top_p (>= 1: off), min_p (<= 0: off), seeds,
    positions (absolute, of the token decided): all [R]. tokens [R] is -1 and status [R] set where a
    row has a NaN or no finite logit. logprob_ids, logprobs [R, 1 + L]: the chosen token, then the L
    likeliest, under the logits as given (temperature 1, no filter).
    """
    _ops.sample_rows(
        logits, temperature, top_k, top_p, min_p, seeds, positions,
        tokens, status, logprob_ids, logprobs, workspace,
    )  # fmt: skip


def rank_candidates(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    ids: Tensor,
    scores: Tensor,
    d2t: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """The m best target ids a row by draft_logits / T + G(seed, position, target id).

    ids, scores [R, m]; logits [R, Vd]; d2t [Vd] int32 maps draft to target ids. Greedy rows rank
    the plain logits.
    """
    _ops.rank_candidates(logits, d2t, temperature, seeds, positions, ids, scores, workspace)


def draw_candidates(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    nodes: Tensor,
    roots: Tensor,
    ids: Tensor,
    laws: Tensor,
    d2t: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """Draws m target ids a row of draft logits [R, Vd] without replacement, for rejection.

    The row's parameters as in `sample_rows`; nodes [R] int32: whose children are drawn (-1: the
    root); roots [R] int32: position of the step's first undecided token. The noise is keyed by
    (node, position, root) and independent of the target's. ids [R, m], in the order drawn, -1 past
    the end; laws [R, Vd]: the law drawn from, as logits at temperature 1 (greedy rows take the m
    best and have the plain logits).
    """
    _ops.draw_candidates(
        logits, d2t, temperature, top_k, top_p, min_p, seeds, positions, nodes, roots, ids, laws,
        workspace,
    )  # fmt: skip


def accept_path(
    tokens: Tensor,
    row_status: Tensor,
    row_base: Tensor,
    draft_tokens: Tensor,
    parents: Tensor,
    lengths: Tensor,
    path: Tensor,
    num_accepted: Tensor,
    next_tokens: Tensor,
    status: Tensor,
) -> None:
    """Walks each proposal tree: a child is accepted iff it is the token its parent's row decided.

    tokens, row_status [rows]; row_base [B]: the root's row, node i's is row_base + 1 + i, -1: no
    rows; draft_tokens, parents [B, N], lengths [B] -> path [B, N] (then -1), num_accepted [B],
    next_tokens [B] (-1: none), status [B] of the rows on the path and its last row.
    """
    _ops.accept_path(
        tokens, row_status, row_base, draft_tokens, parents, lengths,
        path, num_accepted, next_tokens, status,
    )  # fmt: skip


def rejection_sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    row_status: Tensor,
    row_base: Tensor,
    roots: Tensor,
    draft_tokens: Tensor,
    parents: Tensor,
    lengths: Tensor,
    by_token: bool,
    path: Tensor,
    num_accepted: Tensor,
    next_tokens: Tensor,
    status: Tensor,
    draft_laws: Tensor | None = None,
    law_row: Tensor | None = None,
    vocab_map: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """Accepts drafts by p/q rejection: what is emitted follows the target's law, whatever drafted.

    Rows and their parameters as in `sample_rows`, trees and outputs as in `accept_path`; roots [B]:
    position of the step's first undecided token. A node of law_row [B, N] >= 0 was drawn from that
    row of draft_laws [laws, Vd] (logits at temperature 1; vocab_map [Vd] int32: target ids) less
    its earlier siblings' tokens; -1, and every node without laws: a point mass. by_token: each node
    by itself from the root on; else block verification, on trees traversal. Greedy rows match.
    """
    _ops.rejection_sample(
        logits, temperature, top_k, top_p, min_p, seeds, positions, row_status, row_base, roots,
        draft_tokens, parents, lengths, draft_laws, law_row, vocab_map, by_token,
        path, num_accepted, next_tokens, status, workspace,
    )  # fmt: skip


def typical_sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    row_status: Tensor,
    row_base: Tensor,
    draft_tokens: Tensor,
    parents: Tensor,
    lengths: Tensor,
    threshold: float,
    alpha: float,
    path: Tensor,
    num_accepted: Tensor,
    next_tokens: Tensor,
    status: Tensor,
    workspace: Tensor | None = None,
) -> None:
    """Accepts the longest path of drafts with p >= min(threshold, alpha exp(-H)): lossy.

    Arguments as in `rejection_sample`. Greedy rows match.
    """
    _ops.typical_sample(
        logits, temperature, top_k, top_p, min_p, seeds, positions, row_status, row_base,
        draft_tokens, parents, lengths, threshold, alpha,
        path, num_accepted, next_tokens, status, workspace,
    )  # fmt: skip


def advise_huge_pages(t: Tensor) -> bool:
    """Asks for huge pages under t's memory; call before the first write. False: not available."""
    return _ops.advise_huge_pages(t)


def stream_read(data: Tensor, sums: Tensor) -> None:
    """Reads data [chunks, 1024] int32 once with every thread: the bandwidth that shares refer to.

    sums [chunks] int32 keeps the read from being optimised away.
    """
    _ops.stream_read(data, sums)


# Out-variants return nothing, so under a fake tensor mode there is nothing to compute.
for _name in _OUT_VARIANTS:
    torch.library.register_fake(f"specfast::{_name}", lambda *args, **kwargs: None)
