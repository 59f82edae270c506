"""Sampling in plain torch, one row at a time: Philox, noise, masses, filters, and the ops of them.

What a filter compares is computed in the kernels' own float32 (`_fma` rounds once), so supports
agree to the token; noise and laws are float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
_MASK = 2**32 - 1
_EXP2_POLY = (
    "0x1.c7228cp-14", "0x1.f0c584p-11", "0x1.bdbab8p-8", "0x1.418298p-5",
    "0x1.5be298p-3", "0x1.f5e464p-2", "0x1.6a09e6p-1",
)  # fmt: skip


def _fma(a: Tensor, b: Tensor | float, c: float) -> Tensor:
    """a * b + c in float32, rounded once: a double rounded to odd rounds right the next time."""
    product = a.double() * b  # exact: 48 bits
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    toward = torch.where(error > 0, math.inf, -math.inf).double()
    inexact_even = (error != 0) & (total.view(torch.int64) & 1 == 0)
    return torch.where(inexact_even, torch.nextafter(total, toward), total).float()


def philox(seed: int | Tensor, counter: Tensor) -> Tensor:
    """Philox4x32-10: counter [..., 4] int64 words -> [..., 4] int64 words; one seed, or [...]."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # they wrap, the bits are right
        high0, high1 = p0 >> 32 & _MASK, p1 >> 32 & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _MASK, high0 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = k0 + 0x9E3779B9 & _MASK, k1 + 0xBB67AE85 & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def uniform(r32: Tensor) -> Tensor:
    """v float32 in [2^-33, 1 - 2^-24] of 32 random bits."""
    return _fma(r32.float(), 2.0**-32, 2.0**-33).clamp_max(1 - 2.0**-24)


def gumbel(v: Tensor) -> Tensor:
    return -torch.log(-torch.log1p(-v.double()))


def noise(seed: int, position: int, ids: Tensor, purpose: int = 0, root: int = 0) -> Tensor:
    """G [n] float64 of target ids [n] int64. The target's own belongs to seed, position and id;
    other purposes have a node in their word and the root of the step.
    """
    key = torch.tensor([purpose, position, root]).expand(len(ids), 3)
    words = philox(seed, torch.cat((ids[:, None] // 4, key), dim=-1))
    return gumbel(uniform(words.gather(-1, ids[:, None] % 4)[:, 0]))


def exp2_poly(f: Tensor) -> Tensor:
    """2^f of float32 f in [-1, 0], the kernels' own bits."""
    g = f + 0.5
    r = torch.full_like(f, float.fromhex(_EXP2_POLY[0]))
    for coefficient in _EXP2_POLY[1:]:
        r = _fma(r, g.double(), float.fromhex(coefficient))
    return r


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """z [V] float32: one division, clamped; -inf stays."""
    z = (logits / torch.tensor(temperature)).clamp(-1e30, 1e30)
    return torch.where(logits == -math.inf, logits, z)


def masses(z: Tensor) -> Tensor:
    """Integer masses [V] int64 of z with at least one finite element."""
    y = (z * torch.tensor(1.4426950408889634)).clamp_min(-(2.0**127))
    n = y.ceil()
    exponent = (n.double() - n.max()).clamp_min(-200) + 40
    return (exp2_poly(y - n).double() * torch.exp2(exponent)).floor().long()


def _share(share: float, total: int) -> int:
    need = math.ceil(torch.tensor(share).item() * float(total))
    return max(1, min(need, total))


def support(z: Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """[V] bool: min-p, then top-k, then top-p, in order of z descending, then id."""
    order = torch.sort(z, descending=True, stable=True).indices
    mass = masses(z)[order]
    keep = z[order] > -math.inf
    if min_p > 0:
        keep &= mass >= _share(min_p, int(mass[0]))
    if top_k > 0:
        keep &= keep.cumsum(0) <= top_k
    if top_p < 1:
        kept = mass * keep
        keep &= kept.cumsum(0) - kept < _share(top_p, int(kept.sum()))
    return torch.empty_like(keep).scatter_(0, order, keep)


def sampling_probs(
    logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """The law [V] float64 that a row is drawn from."""
    if temperature < GREEDY_BELOW:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    z = tempered(logits, temperature)
    kept = torch.where(support(z, top_k, top_p, min_p), z.double(), -math.inf)
    return torch.softmax(kept, dim=-1)


def scores(
    logits: Tensor,
    temperature: float,
    seed: int,
    position: int,
    ids: Tensor,
    kept: Tensor | None = None,
) -> Tensor:
    """z + G [V] float64 over the support `kept` (-inf elsewhere); greedy: the logits."""
    if temperature < GREEDY_BELOW:
        return logits.double()
    z = tempered(logits, temperature).double()
    z = z if kept is None else torch.where(kept, z, -math.inf)
    return z + noise(seed, position, ids)


def sample_row(
    logits: Tensor,
    temperature: float,
    seed: int,
    position: int,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[int, float]:
    """The token, and the margin of its score over the next (how near float32 came to another)."""
    kept = None
    if temperature >= GREEDY_BELOW:
        kept = support(tempered(logits, temperature), top_k, top_p, min_p)
    total = scores(logits, temperature, seed, position, torch.arange(len(logits)), kept)
    best = int(total.argmax())
    others = torch.cat((total[:best], total[best + 1 :]))
    return best, float(total[best] - others.max()) if len(others) else math.inf


def rank_candidates(
    logits: Tensor, temperature: float, seed: int, position: int, m: int, d2t: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The m best target ids and their scores, -1 and -inf past the end; ties by target id."""
    ids = torch.arange(len(logits)) if d2t is None else d2t.long()
    by_id = torch.sort(ids).indices
    total = scores(logits, temperature, seed, position, ids)[by_id]
    order = torch.sort(total, descending=True, stable=True).indices[:m]
    order = order[total[order] > -math.inf]
    out_ids, out_scores = torch.full((m,), -1), torch.full((m,), -math.inf).double()
    out_ids[: len(order)] = ids[by_id][order]
    out_scores[: len(order)] = total[order]
    return out_ids, out_scores
