"""Heads that draft on from their own output, in plain torch, and the unroll that drafts every
chain of a text at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specfast.models.config import ModelConfig
from specfast.train.batches import FeatureBatch
from specfast.train.frozen import Frozen
from specfast.train.student import MLP, Rotary, norm


class HeadAttention(nn.Module):
    """q, k and v of vectors of so many columns."""

    def __init__(self, config: ModelConfig, columns: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = (
            config.num_heads, config.num_kv_heads, config.head_dim,
        )  # fmt: skip
        bias = config.qkv_bias
        self.q_proj = nn.Linear(columns, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(columns, self.kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(columns, self.kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=config.o_bias)

    def query(self, x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
        """x [B, N, columns] -> [B, kv heads, heads a group, N, D], scaled."""
        q = rotary.at(self.q_proj(x).unflatten(-1, (self.heads, self.dim)), positions)
        q = q * self.dim**-0.5
        return q.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4)

    def key_value(self, x: Tensor, positions: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """x [B, S, columns] -> K and V [B, kv heads, S, D]."""
        shape = (self.kv_heads, self.dim)
        k = rotary.at(self.k_proj(x).unflatten(-1, shape), positions)
        return k.transpose(1, 2), self.v_proj(x).unflatten(-1, shape).transpose(1, 2)


@dataclass(frozen=True)
class Draft:
    """One step of all chains. counts [B, N]: those whose draft is a token of the text; of these,
    hidden [R, H] is what the head reads, tokens [R] the text's, law [R] the batch's rows that
    decided them.
    """

    counts: Tensor
    hidden: Tensor
    tokens: Tensor
    law: Tensor


class HeadLayer(nn.Module):
    """What every head's layer has of a decoder's."""

    def __init__(self, config: ModelConfig, columns: int) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config, columns)
        self.post_attention_layernorm = norm(config)
        self.mlp = MLP(config)


class UnrolledHead(nn.Module, ABC):
    """A layer over the target's hidden states, which drafts on from its own output."""

    def __init__(self, decoder: ModelConfig, num_positions: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.rotary = Rotary(decoder, num_positions)
        self.dropout = nn.Dropout(0.0)

    @property
    @abstractmethod
    def layer(self) -> HeadLayer: ...

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [..., layers H] as one vector a token [..., H]."""

    @abstractmethod
    def join(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """-> what attention reads [..., columns], and the residual stream [..., H]."""

    @abstractmethod
    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The stream behind the layer -> what the next step takes as feature, and what the head
        reads.
        """

    @abstractmethod
    def rows(self, frozen: Frozen) -> Tensor:
        """The head's own [Vd, H], or the target's."""

    @abstractmethod
    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What is saved, under the published names, but for vocabulary maps."""

    @abstractmethod
    def saved(self) -> UnrolledHead:
        """The same head with its tensors as they are saved, in bfloat16."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def unroll(self, embedding: Tensor, batch: FeatureBatch, num_steps: int) -> Iterator[Draft]:
        """The drafts of every step that the engine could begin behind an answer's token.

        Chain c of text b begins at slot starts[b] - 1 + c, with the target's features; its step s
        lies at slot + s, takes the text's token after that and its own last output, and sees the
        target's slots up to its beginning and its own steps 1..s. embedding: the target's.
        """
        attention = self.layer.self_attn
        features = self.fuse(batch.features).to(self._dtype)
        x, stream = self.join(self._embed(embedding, batch.tokens[:, 1:]), features)
        positions = torch.arange(x.shape[1], device=x.device)
        prefix = attention.key_value(x, positions, self.rotary)
        slots = _chains(batch)
        hidden_from = (positions > slots[..., None]).to(prefix[0].dtype) * -1e4
        x, stream = _rows(x, slots), _rows(stream, slots)
        own: list[tuple[Tensor, Tensor]] = []
        feature = stream
        for step in range(num_steps):
            if step:
                following = (slots + step + 1).clamp(max=batch.tokens.shape[1] - 1)
                embedded = self._embed(embedding, batch.tokens.gather(1, following))
                x, stream = self.join(embedded, feature)
                own.append(attention.key_value(x, slots + step, self.rotary))
            query = attention.query(x, slots + step, self.rotary)
            attended = _attend(query, prefix, hidden_from, own)
            feature, read = self.outputs(self._behind(stream, attended))
            yield _draft(batch, read, slots + step + 2)

    def set_dropout(self, share: float) -> None:
        """Of what attention and MLP add to the stream, in training alone."""
        self.dropout.p = share

    @property
    def _dtype(self) -> torch.dtype:
        return self.layer.post_attention_layernorm.weight.dtype

    def _behind(self, stream: Tensor, attended: Tensor) -> Tensor:
        """attended [B, kv heads, heads a group, N, D]."""
        layer, attended = self.layer, attended.permute(0, 3, 1, 2, 4).flatten(2)
        x = stream + self.dropout(layer.self_attn.o_proj(attended))
        return x + self.dropout(layer.mlp(layer.post_attention_layernorm(x)))

    def _embed(self, embedding: Tensor, tokens: Tensor) -> Tensor:
        return embedding[tokens].to(self._dtype)


def small_matrices(module: nn.Module) -> None:
    """To start with; those that write into the residual stream are smaller."""
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2:
            std = parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2)
            nn.init.normal_(parameter, 0.0, std)


def _chains(batch: FeatureBatch) -> Tensor:
    """[B, N]: each chain's first slot, the last ones again where a text has fewer chains."""
    num_decided = (batch.law >= 0).sum(1)
    count = max(1, int(num_decided.max()) - 1)
    offsets = torch.arange(count, device=batch.law.device)
    last = (batch.tokens.shape[1] - 2,)
    return (batch.starts[:, None] - 1 + offsets).clamp(max=last[0])


def _rows(x: Tensor, slots: Tensor) -> Tensor:
    return x.gather(1, slots[..., None].expand(-1, -1, x.shape[-1]))


def _draft(batch: FeatureBatch, normed: Tensor, drafted: Tensor) -> Draft:
    """drafted [B, N]: where the drafted tokens stand in the text, or past its end."""
    width = batch.tokens.shape[1]
    law = batch.law.gather(1, drafted.clamp(max=width - 1))
    counts = (law >= 0) & (drafted < width)
    tokens = batch.tokens.gather(1, drafted.clamp(max=width - 1))
    return Draft(counts, normed[counts], tokens[counts], law[counts])


def _attend(
    query: Tensor,
    prefix: tuple[Tensor, Tensor],
    hidden_from: Tensor,
    own: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """query [B, kv heads, G, N, D] over the prefix' K and V [B, kv heads, S, D], where hidden_from
    [B, N, S] allows, and over each chain's own, one [B, kv heads, N, D] a step.
    """
    keys, values = prefix
    scores = query.flatten(2, 3) @ keys.transpose(2, 3)
    scores = scores.unflatten(2, query.shape[2:4]) + hidden_from[:, None, None]
    beside = [(query * k[:, :, None]).sum(-1, keepdim=True) for k, _ in own]
    weights = torch.cat([scores, *beside], -1).softmax(-1)
    before = weights[..., : keys.shape[2]].flatten(2, 3) @ values
    out = before.unflatten(2, query.shape[2:4])
    for step, (_, v) in enumerate(own):
        out = out + weights[..., keys.shape[2] + step, None] * v[:, :, None]
    return out
