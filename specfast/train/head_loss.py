"""Cross entropy behind a large head, without ever holding all logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 512  # whose logits are held at a time


def target_law(
    top_ids: Tensor, top_logits: Tensor, row_of: Tensor, label_weight: float
) -> tuple[Tensor, Tensor]:
    """What to learn: for each of the target's best tokens [R, K] its row in the head and its
    weight, which is its probability mixed with its being the very best. Tokens without a row
    (row_of [V] is -1) weigh nothing.
    """
    weights = top_logits.softmax(1) * (1 - label_weight)
    weights[:, 0] += label_weight
    rows = row_of[top_ids]
    return rows.clamp(min=0), weights * (rows >= 0)


def head_loss(hidden: Tensor, head: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy of softmax(head hidden) with the law in rows and weights [R, K], and the
    head's best rows [R]. hidden [R, H], head [Vd, H]; products are in head's dtype.
    """
    return _HeadLoss.apply(hidden, head, rows, weights)


def best_rows(hidden: Tensor, head: Tensor) -> Tensor:
    """The head's best row for each of hidden [R, H]."""
    parts = hidden.to(head.dtype).split(_ROWS)
    return torch.cat([(part @ head.T).argmax(1) for part in parts])


class _HeadLoss(torch.autograd.Function):
    """Takes the gradients along with the loss, part by part."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, rows: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        total = hidden.new_zeros(())
        hidden_grad = torch.empty_like(hidden)
        head_grad = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        best = rows.new_empty(len(rows))
        for at in range(0, len(hidden), _ROWS):
            part = slice(at, at + _ROWS)
            inputs = hidden[part].to(head.dtype)
            logits = (inputs @ head.T).to(hidden.dtype)
            best[part] = logits.argmax(1)
            log_q = logits.log_softmax(1)
            total -= (weights[part] * log_q.gather(1, rows[part])).sum()
            slope = log_q.exp_().mul_(weights[part].sum(1, keepdim=True))
            slope.scatter_add_(1, rows[part], -weights[part].to(slope.dtype))
            slope = slope.div_(len(hidden)).to(head.dtype)
            hidden_grad[part] = (slope @ head).to(hidden.dtype)
            if head_grad is not None:
                head_grad += slope.T @ inputs
        ctx.save_for_backward(hidden_grad, head_grad)
        ctx.mark_non_differentiable(best)
        return total / len(hidden), best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden_grad, head_grad = ctx.saved_tensors
        (outer, _) = grads
        own = None if head_grad is None else head_grad * outer
        return hidden_grad * outer, own, None, None
