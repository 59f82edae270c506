"""An EAGLE-3 head in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specfast.models.config import ModelConfig
from specfast.train.frozen import Frozen
from specfast.train.head_unroll import HeadLayer, UnrolledHead, small_matrices
from specfast.train.student import norm


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


class EagleLayer(HeadLayer):
    """Attention reads embedding and feature side by side, each behind a norm of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = norm(config)
        self.hidden_norm = norm(config)


class EagleHead(UnrolledHead):
    """Parameters have the published names. scale [num_features H] is what fc's inputs are divided
    by; it is folded into fc in `tensors`.
    """

    scale: Tensor

    def __init__(self, config: HeadConfig, num_positions: int, scale: Tensor | None = None) -> None:
        decoder, width = config.decoder, config.num_features * config.decoder.hidden_size
        super().__init__(decoder, num_positions)
        self.config = config
        self.fc = nn.Linear(width, decoder.hidden_size, bias=False)
        self.midlayer = EagleLayer(decoder)
        self.norm = norm(decoder)
        if config.own_head:
            self.lm_head = nn.Linear(decoder.hidden_size, decoder.head_size, bias=False)
        self.register_buffer("scale", torch.ones(width) if scale is None else scale)
        small_matrices(self)

    @property
    def layer(self) -> EagleLayer:
        return self.midlayer

    def fuse(self, features: Tensor) -> Tensor:
        return self.fc(features / self.scale)

    def join(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.midlayer.hidden_norm(feature)
        x = torch.cat([self.midlayer.input_layernorm(embedded), normed], -1)
        return x, normed if self.config.norm_before_residual else feature

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(stream)
        return normed if self.config.norm_output else stream, normed

    def rows(self, frozen: Frozen) -> Tensor:
        return self.lm_head.weight.to(frozen.rows.dtype) if self.config.own_head else frozen.rows

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        state = {k: v.detach().cpu() for k, v in self.state_dict().items()}
        state["fc.weight"] = state["fc.weight"] / state.pop("scale")
        return {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}

    def saved(self) -> EagleHead:
        head = EagleHead(self.config, len(self.rotary.cos))
        tensors = {n: t.float() for n, t in self.tensors(torch.bfloat16).items()}
        head.load_state_dict(tensors, strict=False)
        return head.to(self.device)
