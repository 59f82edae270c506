"""A multi-token-prediction block: the target's next hidden state, and so the token after next."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specfast.models.config import ModelConfig
from specfast.train.student import Layer, Rotary, Student, norm


class MtpBlock(Layer):
    """One decoder layer over [norm(hidden), norm(embedding of the next token)], named as MiMo's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.hidden_layernorm = norm(config)
        self.token_layernorm = norm(config)
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.final_layernorm = norm(config)

    def predict(self, hidden: Tensor, embedded: Tensor, rotary: Rotary) -> Tensor:
        """hidden [B, T, H] behind the target's last norm, and the embeddings of the tokens after
        -> what the head turns into logits of the tokens after those.
        """
        joined = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedded)], -1)
        return self.final_layernorm(self(self.input_proj(joined), rotary))


class MtpStudent(Student):
    """A decoder with one MTP block beside it, under model.mtp_layers.0."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        block = MtpBlock(config)
        nn.init.normal_(block.input_proj.weight, 0.0, (2 * config.hidden_size) ** -0.5)
        self.model.mtp_layers = nn.ModuleList([block])

    @property
    def mtp_layers(self) -> list[MtpBlock]:
        return list(self.model.mtp_layers)  # type: ignore[arg-type]

    def both(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> logits of tokens 1..T [B, T, V] (the last past the end), and the MTP
        block's of tokens 2..T [B, T - 1, V].
        """
        embedded = self.embed(tokens)
        hidden = self.model.norm(self.residual(embedded))
        (block,) = self.mtp_layers
        ahead = block.predict(hidden[:, :-1], embedded[:, 1:], self.rotary)
        return self.logits(hidden), self.logits(ahead)
