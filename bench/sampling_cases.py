"""The ops that decide tokens, as cases to time."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.cases import F32, Call, Case, Place, width
from specfast import ops, workspace

FILTERS = {
    "none": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
}


def logits_of(place: Place, rows: int, vocab: int) -> tuple[Tensor, int]:
    """[copies, rows, vocab], as peaked as a language model's."""
    size = rows * vocab * width(place.dtype)
    return 4 * place.normal(place.copies(size), rows, vocab), size


def drawn_by(
    place: Place, rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[Tensor, ...]:
    """temperature, top_k, top_p, min_p, seeds, positions."""
    return (
        place.full(rows, temperature, F32),
        place.full(rows, top_k),
        place.full(rows, top_p, F32),
        place.full(rows, 0.0, F32),
        place.ints(range(rows), torch.int64),
        place.ints(range(rows)),
    )


def sample_rows(place: Place, rows: int, vocab: int, filter: str = "none") -> Case:
    logits, size = logits_of(place, rows, vocab)
    law, (tokens, status) = drawn_by(place, rows, **FILTERS[filter]), place.ints([[0] * rows] * 2)

    def multinomial(i: int) -> Tensor:
        return torch.multinomial(logits[i].float().softmax(-1), 1)

    def argmax(i: int) -> Tensor:
        return logits[i].argmax(-1)

    def topk(i: int) -> Tensor:
        best = logits[i].float().topk(50)
        return best.indices.gather(1, torch.multinomial(best.values.softmax(-1), 1))

    def sorting(i: int) -> Tensor:
        probs, ids = logits[i].float().softmax(-1).sort(descending=True)
        probs[probs.cumsum(-1) - probs > 0.9] = 0.0
        return ids.gather(1, torch.multinomial(probs, 1))

    theirs = {"none": multinomial, "greedy": argmax, "top_k": topk, "top_p": sorting}[filter]
    room = place.room(workspace.sample_rows(rows, vocab))

    def ours(i: int) -> None:
        ops.sample_rows(logits[i], *law, tokens, status, workspace=room)

    return Case(ours, {theirs.__name__: theirs}, size, len(logits))


def rank_candidates(place: Place, rows: int, vocab: int, m: int = 8) -> Case:
    logits, size = logits_of(place, rows, vocab)
    temperature, _, _, _, seeds, positions = drawn_by(place, rows)
    ids, scores = place.ints([[0] * m] * rows), place.empty(rows, m, dtype=F32)

    def gumbel_topk(i: int) -> Tensor:
        noise = torch.empty_like(logits[i], dtype=F32).exponential_().log_()
        return (logits[i] - noise).topk(m).indices

    room = place.room(workspace.rank_candidates(rows, vocab, m))

    def ours(i: int) -> None:
        ops.rank_candidates(logits[i], temperature, seeds, positions, ids, scores, workspace=room)

    return Case(ours, {"gumbel_topk": gumbel_topk}, size, len(logits))


def draw_candidates(place: Place, rows: int, vocab: int, m: int = 4) -> Case:
    logits, size = logits_of(place, rows, vocab)
    law, nodes, roots = drawn_by(place, rows), place.full(rows, -1), place.full(rows, 5)
    ids, laws = place.ints([[0] * m] * rows), place.empty(rows, vocab, dtype=F32)

    def multinomial(i: int) -> Tensor:
        return torch.multinomial(logits[i].float().softmax(-1), m)

    room = place.room(workspace.draw_candidates(rows, vocab, m))

    def ours(i: int) -> None:
        ops.draw_candidates(logits[i], *law, nodes, roots, ids, laws, workspace=room)

    return Case(ours, {"multinomial": multinomial}, size + laws.numel() * 4, len(logits))


# --- chains of `nodes` drafts a sequence ---


def _trees(place: Place, batch: int, nodes: int, vocab: int) -> tuple[Tensor, ...]:
    """row_status, row_base, draft_tokens, parents, lengths; then the four outputs."""
    row_base = place.ints(range(0, batch * (nodes + 1), nodes + 1))
    status = place.full(batch * (nodes + 1), 0)
    draft = torch.randint(vocab, (batch, nodes), device=place.device).int()
    parents = place.ints([[*range(-1, nodes - 1)]] * batch)
    outputs = (place.ints([[0] * nodes] * batch), *place.ints([[0] * batch] * 3))
    return status, row_base, draft, parents, place.full(batch, nodes), *outputs


def accept_path(place: Place, batch: int, nodes: int) -> Case:
    status, base, draft, *rest = _trees(place, batch, nodes, 1000)
    tokens = torch.randint(1000, (batch, nodes + 1), device=place.device).int()
    tokens[:, :nodes] = torch.where(draft % 3 > 0, draft, tokens[:, :nodes])

    def cumprod(i: int) -> Tensor:
        accepted = (tokens[:, :nodes] == draft).int().cumprod(1).sum(1, keepdim=True)
        return tokens.gather(1, accepted)

    flat = tokens.flatten()
    ours: Call = lambda i: ops.accept_path(flat, status, base, draft, *rest)  # noqa: E731
    return Case(ours, {"cumprod": cumprod}, 4 * batch * (6 * nodes + 7))


def rejection_sample(place: Place, batch: int, nodes: int, vocab: int) -> Case:
    """Drafts from laws near the target's, so that most are accepted; the block rule."""
    rows = batch * (nodes + 1)
    logits, size = logits_of(place, rows, vocab)
    law, trees = drawn_by(place, rows), _trees(place, batch, nodes, vocab)
    status, base, draft, parents, lengths, *outputs = trees
    laws = logits[0].float().view(batch, nodes + 1, vocab)[:, :nodes]
    laws = (laws + 0.3 * torch.randn_like(laws)).reshape(-1, vocab)
    draft.copy_(torch.multinomial(laws.softmax(-1), 1).view(batch, nodes))
    law_row, roots = place.ints(range(batch * nodes)).view(batch, nodes), place.full(batch, 0)

    def softmaxes(i: int) -> Tensor:
        p = logits[i].float().softmax(-1).view(batch, nodes + 1, vocab)
        q = laws.softmax(-1).view(batch, nodes, vocab)
        at = draft.long()[:, :, None]
        ratio = (p[:, :nodes].gather(2, at) / q.gather(2, at)).squeeze(2)
        accepted = (torch.rand_like(ratio) < ratio).int().cumprod(1).sum(1)
        each = torch.arange(batch, device=place.device)
        residual = p[each, accepted] - q[each, accepted.clamp(max=nodes - 1)]
        return torch.multinomial(residual.clamp(min=1e-20), 1)

    room = place.room(workspace.rejection_sample(rows, vocab, batch, *laws.shape))

    def ours(i: int) -> None:
        ops.rejection_sample(
            logits[i], *law, status, base, roots, draft, parents, lengths, False, *outputs,
            laws, law_row, workspace=room,
        )  # fmt: skip

    return Case(ours, {"softmaxes": softmaxes}, size + laws.numel() * 4, len(logits))


def typical_sample(place: Place, batch: int, nodes: int, vocab: int) -> Case:
    rows = batch * (nodes + 1)
    logits, size = logits_of(place, rows, vocab)
    law, trees = drawn_by(place, rows), _trees(place, batch, nodes, vocab)
    status, base, draft, parents, lengths, *outputs = trees

    def softmax(i: int) -> Tensor:
        p = logits[i].float().softmax(-1).view(batch, nodes + 1, vocab)
        entropy = torch.special.entr(p[:, :nodes]).sum(-1)
        likely = p[:, :nodes].gather(2, draft.long()[:, :, None]).squeeze(2)
        enough = likely >= (0.3 * torch.exp(-entropy)).clamp(max=0.09)
        accepted = enough.int().cumprod(1).sum(1)
        each = torch.arange(batch, device=place.device)
        return torch.multinomial(p[each, accepted], 1)

    room = place.room(workspace.typical_sample(rows, vocab, batch))

    def ours(i: int) -> None:
        ops.typical_sample(
            logits[i], *law, status, base, draft, parents, lengths, 0.09, 0.3, *outputs,
            workspace=room,
        )  # fmt: skip

    return Case(ours, {"softmax": softmax}, size, len(logits))
