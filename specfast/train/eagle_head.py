"""An EAGLE-3 head in plain torch, and the unroll that drafts every chain of a text at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specfast.models.config import ModelConfig
from specfast.train.batches import FeatureBatch
from specfast.train.student import MLP, Rotary, norm


@dataclass(frozen=True)
class HeadConfig:
    """decoder: the one layer's shape, its vocabulary the target's. num_features: hidden states that
    the target hands over a token. norm_before_residual: the layer adds to the normed feature;
    norm_output: what is fed back is normed.
    """

    decoder: ModelConfig
    num_features: int
    own_head: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


class EagleAttention(nn.Module):
    """Projections over the embedding and the feature side by side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = (
            config.num_heads, config.num_kv_heads, config.head_dim,
        )  # fmt: skip
        self.q_proj = nn.Linear(2 * config.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)

    def query(self, x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
        """x [B, N, 2 H] -> [B, kv heads, heads a group, N, D], scaled."""
        q = rotary.at(self.q_proj(x).unflatten(-1, (self.heads, self.dim)), positions)
        q = q * self.dim**-0.5
        return q.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4)

    def key_value(self, x: Tensor, positions: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """x [B, S, 2 H] -> K and V [B, kv heads, S, D]."""
        shape = (self.kv_heads, self.dim)
        k = rotary.at(self.k_proj(x).unflatten(-1, shape), positions)
        return k.transpose(1, 2), self.v_proj(x).unflatten(-1, shape).transpose(1, 2)


class EagleLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = norm(config)
        self.hidden_norm = norm(config)
        self.self_attn = EagleAttention(config)
        self.post_attention_layernorm = norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(0.0)

    def inputs(self, embedded: Tensor, feature: Tensor) -> Tensor:
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(feature)], -1)

    def output(self, residual: Tensor, attended: Tensor) -> Tensor:
        """attended [B, kv heads, heads a group, N, D]."""
        attended = attended.permute(0, 3, 1, 2, 4).flatten(2)
        x = residual + self.dropout(self.self_attn.o_proj(attended))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


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


class EagleHead(nn.Module):
    """Parameters have the published names. scale [num_features H] is what fc's inputs are divided
    by; it is folded into fc in `tensors`.
    """

    scale: Tensor

    def __init__(self, config: HeadConfig, num_positions: int, scale: Tensor | None = None) -> None:
        super().__init__()
        decoder, width = config.decoder, config.num_features * config.decoder.hidden_size
        self.config = config
        self.fc = nn.Linear(width, decoder.hidden_size, bias=False)
        self.midlayer = EagleLayer(decoder)
        self.norm = norm(decoder)
        if config.own_head:
            self.lm_head = nn.Linear(decoder.hidden_size, decoder.head_size, bias=False)
        self.rotary = Rotary(decoder, num_positions)
        self.register_buffer("scale", torch.ones(width) if scale is None else scale)
        self._initialise()

    def unroll(self, embedding: Tensor, batch: FeatureBatch, num_steps: int) -> Iterator[Draft]:
        """The drafts of every step that the engine could begin behind an answer's token.

        Chain c of text b begins at slot starts[b] - 1 + c, with the target's features; its step s
        lies at slot + s, takes the text's token after that and its own last output, and sees the
        target's slots up to its beginning and its own steps 1..s. embedding: the target's.
        """
        layer, attention = self.midlayer, self.midlayer.self_attn
        features = self.fc(batch.features / self.scale)
        features = features.to(self.norm.weight.dtype)
        x = layer.inputs(self._embed(embedding, batch.tokens[:, 1:]), features)
        positions = torch.arange(x.shape[1], device=x.device)
        prefix = attention.key_value(x, positions, self.rotary)
        slots = _chains(batch)
        hidden_from = (positions > slots[..., None]).to(prefix[0].dtype) * -1e4
        x, feature = _rows(x, slots), _rows(features, slots)
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(num_steps):
            if step:
                following = (slots + step + 1).clamp(max=batch.tokens.shape[1] - 1)
                embedded = self._embed(embedding, batch.tokens.gather(1, following))
                x = layer.inputs(embedded, feature)
                own.append(attention.key_value(x, slots + step, self.rotary))
            query = attention.query(x, slots + step, self.rotary)
            attended = _attend(query, prefix, hidden_from, own)
            before = layer.hidden_norm(feature) if self.config.norm_before_residual else feature
            out = layer.output(before, attended)
            normed = self.norm(out)
            yield _draft(batch, normed, slots + step + 2)
            feature = normed if self.config.norm_output else out

    def set_dropout(self, share: float) -> None:
        """Of what attention and MLP add to the stream, in training alone."""
        self.midlayer.dropout.p = share

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The published layout's tensors, but for the vocabulary maps."""
        state = {k: v.detach().cpu() for k, v in self.state_dict().items()}
        state["fc.weight"] = state["fc.weight"] / state.pop("scale")
        return {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}

    def _embed(self, embedding: Tensor, tokens: Tensor) -> Tensor:
        return embedding[tokens].to(self.norm.weight.dtype)

    def _initialise(self) -> None:
        """Small matrices; those that write into the residual stream are smaller."""
        for name, parameter in self.named_parameters():
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
