"""A start that can copy: weights that find where the last two tokens stood before, and repeat what
followed them.

Models repeat themselves and their prompts, but a small corpus teaches a small model its own
phrases long before it teaches it to look back. So it starts with heads that do. The residual
stream is cut into a constant, the token's embedding, and room for the embeddings of the two tokens
before. Layer 0 fills that room by heads whose rotary phases peak at lag 1 and 2; layer 1 looks for
a position whose two predecessors are the current token and the one before it, and adds that
position's embedding. Where nothing matches, attention is spread, and what it adds is small.
Everything else starts with zero output, and all of it is trained.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specfast.models.config import ModelConfig
from specfast.train.student import Attention, Student

ROPE_THETA = 1e8  # leaves enough slow frequencies to match embeddings at any distance
_LAG_FREQUENCY, _MATCH_FREQUENCY = 0.05, 1.5e-3  # radians a token: above, below
_LAG_SCORE, _MATCH_SCORE, _COPY_GAIN = 60.0, 25.0, 3.0


class Layout:
    """Where the parts of the residual stream lie, and which rotary dimensions match embeddings.

    num_components: what the target's embeddings have. ValueError for a shape that can't copy.
    """

    def __init__(self, config: ModelConfig, num_components: int) -> None:
        self.half = config.head_dim // 2
        self.frequencies = config.rope.inverse_frequencies(config.head_dim)
        slow = torch.nonzero(self.frequencies < _MATCH_FREQUENCY).flatten()
        self.matching = torch.cat([slow, slow + self.half])
        self.num_current = math.ceil(0.55 * len(self.matching))
        self.num_previous = len(self.matching) - self.num_current
        self.num_content = config.hidden_size - 1 - len(self.matching)
        self.lag1 = 1 + self.num_content
        self.lag2 = self.lag1 + self.num_current
        if config.num_layers < 2 or not 2 <= config.num_heads == config.num_kv_heads:
            raise ValueError("copying needs two layers, two heads, and as many KV heads as heads.")
        if self.num_content < self.num_current:
            raise ValueError("copying needs a wider draft, or heads of fewer dimensions.")
        if num_components < self.num_content:
            raise ValueError("copying needs a target that is wider than the draft.")


@torch.no_grad()
def start_copying(student: Student, components: Tensor) -> None:
    """components [rows, n]: the embeddings' directions, most important first, of any scale."""
    layout = Layout(student.config, components.shape[1])
    weight = student.model.embed_tokens.weight
    content = components[:, : layout.num_content]
    content = (content - content.mean(0)) / content.std(0)
    weight.zero_()
    weight[:, 0] = 1.0
    weight[:, 1 : layout.lag1] = content / content.norm(dim=1, keepdim=True)
    for layer in student.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    scale = math.sqrt(student.config.hidden_size)
    first, second = (layer.self_attn for layer in student.layers[:2])
    _look_back(first, layout, scale / math.sqrt(2.0))
    _look_up(second, layout, scale / math.sqrt(2.0 + len(layout.matching) / layout.num_content))


def _look_back(attention: Attention, layout: Layout, scale: float) -> None:
    """Head n brings the embedding of n + 1 tokens ago. scale: of a normed unit of the stream."""
    dim = 2 * layout.half
    fast = torch.nonzero(layout.frequencies > _LAG_FREQUENCY).flatten()
    size = math.sqrt(_LAG_SCORE * math.sqrt(dim) / len(fast)) / scale
    places = ((layout.lag1, layout.num_current), (layout.lag2, layout.num_previous))
    for head, (room, count) in enumerate(places):
        q, k, v = (_rows(p.weight, head, dim) for p in _projections(attention))
        for matrix in (q, k, v):
            matrix.zero_()
        phase = (head + 1) * layout.frequencies[fast]
        k[fast, 0] = size
        q[fast, 0] = size * phase.cos()
        q[fast + layout.half, 0] = -size * phase.sin()
        index = torch.arange(count)
        v[index, 1 + index] = 1.0
        attention.o_proj.weight[room + index, head * dim + index] = 1.0 / scale


def _look_up(attention: Attention, layout: Layout, scale: float) -> None:
    """All heads attend alike; each carries its share of the embedding."""
    dim, width = 2 * layout.half, layout.num_content
    share = len(layout.matching) / width  # of an embedding's squared norm
    gain = math.sqrt(_MATCH_SCORE * math.sqrt(dim) / share) / scale
    current, previous = layout.matching.split([layout.num_current, layout.num_previous])
    a, b = torch.arange(len(current)), torch.arange(len(previous))
    for head, begin in enumerate(range(0, width, dim)):
        q, k, v = (_rows(p.weight, head, dim) for p in _projections(attention))
        for matrix in (q, k, v):
            matrix.zero_()
        q[current, 1 + a] = gain
        k[current, layout.lag1 + a] = gain
        q[previous, layout.lag1 + b] = gain
        k[previous, layout.lag2 + b] = gain
        index = torch.arange(min(dim, width - begin))
        v[index, 1 + begin + index] = 1.0
        attention.o_proj.weight[1 + begin + index, head * dim + index] = _COPY_GAIN / scale


def _projections(attention: Attention) -> tuple[torch.nn.Linear, ...]:
    return attention.q_proj, attention.k_proj, attention.v_proj


def _rows(weight: Tensor, head: int, dim: int) -> Tensor:
    return weight[head * dim : (head + 1) * dim]
