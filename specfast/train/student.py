"""A decoder of the Llama family that can be trained: plain torch under Hugging Face's names."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from specfast.models.config import ModelConfig


class Rotary(nn.Module):
    """Turns q and k [B, heads, T, D] by their position, as the native decoder's table says."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, num_positions: int) -> None:
        super().__init__()
        table = config.rope.table(num_positions, config.head_dim)
        cos, sin = table.chunk(2, dim=1)
        self.register_buffer("cos", torch.cat([cos, cos], 1), persistent=False)
        self.register_buffer("sin", torch.cat([-sin, sin], 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        turned = x * self.cos[:length] + x.roll(x.shape[-1] // 2, -1) * self.sin[:length]
        return turned.to(x.dtype)

    def at(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turns x [..., heads, D] by positions [...]."""
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self._shape = (config.num_heads, config.num_kv_heads, dim)
        self.q_proj = nn.Linear(hidden, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        batch, length, _ = x.shape
        heads, kv_heads, dim = self._shape

        def split(projected: Tensor, count: int) -> Tensor:
            return projected.view(batch, length, count, dim).transpose(1, 2)

        q, k = rotary(split(self.q_proj(x), heads)), rotary(split(self.k_proj(x), kv_heads))
        k, v = (
            t.repeat_interleave(heads // kv_heads, 1) for t in (k, split(self.v_proj(x), kv_heads))
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, heads * dim))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = norm(config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), rotary))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Body(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.embedding_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = norm(config)


class Student(nn.Module):
    """Tokens of the target in, logits over the head's tokens out; sees at most `context` tokens.

    d2t [Vd] int32 maps the head's rows to the target's tokens; with a tied head, t2d [V] int32 says
    which of its rows embeds each token. State dict and config are a Hugging Face checkpoint's.
    """

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(
        self, config: ModelConfig, d2t: Tensor | None = None, t2d: Tensor | None = None
    ) -> None:
        super().__init__()
        plain = not (config.qkv_bias or config.o_bias or config.mlp_bias or config.qk_norm)
        assert plain and all(config.rotary_layers), "a student has no biases and no q/k norm"
        self.config = config
        self.context = min([config.max_position_embeddings, *filter(None, config.windows)])
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.head_size, bias=False)
        self.rotary = Rotary(config, self.context)
        self.register_buffer("d2t", d2t)
        self.register_buffer("t2d", t2d)
        self._initialise()
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def layers(self) -> list[Layer]:
        return list(self.model.layers)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] of the target's vocabulary -> hidden states behind the last norm."""
        return self.model.norm(self.residual(self.embed(tokens)))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.embed_tokens(tokens if self.t2d is None else self.t2d[tokens])

    def residual(self, x: Tensor) -> Tensor:
        """The residual stream behind the last layer."""
        assert x.shape[1] <= self.context, "the window would cut what attention sees"
        for layer in self.layers:
            x = layer(x, self.rotary)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def set_dropout(self, share: float) -> None:
        """Of what each block adds to the stream, in training alone."""
        for layer in self.layers:
            layer.dropout.p = share

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What model.safetensors holds, matrices and vectors in dtype."""
        state = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        if self.config.tie_word_embeddings:
            del state["lm_head.weight"]
        return {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}

    def _initialise(self) -> None:
        """Small matrices; those that write into the residual stream are smaller the deeper."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = parameter.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * self.config.num_layers)
                nn.init.normal_(parameter, 0.0, std)


def norm(config: ModelConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


def llama_config(
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    head_dim: int,
    num_kv_heads: int,
    intermediate_size: int,
    context: int,
    max_position_embeddings: int,
    draft_vocab_size: int | None = None,
    **others: object,
) -> dict[str, object]:
    """config.json of a tied model that sees `context` tokens back, however long the text is."""
    draft = {} if draft_vocab_size is None else {"draft_vocab_size": draft_vocab_size}
    windowed = context < max_position_embeddings
    window = {"sliding_window": context} if windowed else {}
    return {
        "architectures": ["MistralForCausalLM" if windowed else "LlamaForCausalLM"],
        "model_type": "mistral" if windowed else "llama",
        **window,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // head_dim,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        **draft,
        **others,
    }
