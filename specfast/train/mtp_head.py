"""A multi-token-prediction block that drafts on from its own output, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specfast.models.config import ModelConfig
from specfast.models.loader import head_folder, resolve
from specfast.train.frozen import Frozen
from specfast.train.head_unroll import HeadLayer, UnrolledHead, small_matrices
from specfast.train.student import norm

PREFIX = "model.mtp_layers.0."  # as MiMo names its block


class MtpLayer(HeadLayer):
    """Reads [norm(hidden), norm(embedding)] through one matrix; ends in a norm of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.input_layernorm = norm(config)
        self.hidden_layernorm = norm(config)
        self.token_layernorm = norm(config)
        self.final_layernorm = norm(config)
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)


class MtpHead(UnrolledHead):
    """Embedding and head are the target's."""

    def __init__(self, decoder: ModelConfig, num_positions: int) -> None:
        super().__init__(decoder, num_positions)
        self.block = MtpLayer(decoder)
        small_matrices(self)

    @property
    def layer(self) -> MtpLayer:
        return self.block

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def join(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        block = self.block
        both = torch.cat([block.hidden_layernorm(feature), block.token_layernorm(embedded)], -1)
        stream = block.input_proj(both)
        return block.input_layernorm(stream), stream

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.block.final_layernorm(stream)
        return normed, normed

    def rows(self, frozen: Frozen) -> Tensor:
        return frozen.rows

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        state = self.block.state_dict()
        return {PREFIX + n: t.detach().cpu().to(dtype).contiguous() for n, t in state.items()}

    def saved(self) -> MtpHead:
        head = MtpHead(self.decoder, len(self.rotary.cos))
        head.load_block({n: t.float() for n, t in self.tensors(torch.bfloat16).items()})
        return head.to(self.device)

    def load_block(self, tensors: dict[str, Tensor]) -> None:
        self.block.load_state_dict({n.removeprefix(PREFIX): t for n, t in tensors.items()})


def own_block(target: str) -> dict[str, Tensor] | None:
    """The block that the target's checkpoint brings, or None."""
    if resolve(target).is_file():
        return None
    checkpoint = head_folder(target).checkpoint
    names = [n for n in checkpoint.shapes if n.startswith(PREFIX)]
    return {n: checkpoint.tensor(n).float() for n in names} or None
