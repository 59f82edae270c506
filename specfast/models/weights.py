"""From named tensors to what the layers read: checked, fused, packed into one arena."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import ModelConfig

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
D2T, T2D = "d2t", "t2d"
VOCABULARY_MAPS = (D2T, T2D)
_MTP_BLOCK = re.compile(r"model\.mtp_layers\.(\d{1,4})\.")


class Checkpoint(Protocol):
    """Tensors by Hugging Face's names. dtype: what most weights are stored in."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor in any floating dtype."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: matrices packed as `linear` reads them, the rest float32."""

    input_norm: Tensor | None  # None: the first layer of an EAGLE-1 head has none
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """A whole model. embedding [V, hidden] as stored; arena holds every packed matrix.

    d2t [Vd] int32: the target's token that each row of a smaller head stands for, ascending.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
    arena: Tensor
    d2t: Tensor | None = None

    def head_rows(self, index: Tensor) -> Tensor:
        """[R, hidden]: what turns a hidden state into the logits of the tokens index [R]."""
        return ops.packed_rows(self.head, index.long())


def read_weights(config: ModelConfig, checkpoint: Checkpoint) -> Weights:
    """Packs the checkpoint's tensors in config.dtype.

    ValueError naming the tensor that is missing, unexpected or of another shape.
    """
    check_tensors(config, checkpoint.shapes)
    return _Reader(config, checkpoint).read()


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """The names and shapes that config implies, no more and no less."""
    expected = tensor_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"The checkpoint has no tensor {name!r} {list(shape)}.")
        if found[name] != shape:
            raise ValueError(
                f"Tensor {name!r} has shape {list(found[name])}, but config.json implies "
                f"{list(shape)}."
            )
    extra = sorted(name for name in found if name not in expected and not _is_beside(name, config))
    if extra:
        raise ValueError(
            f"The checkpoint has {len(extra)} tensors that a {config.model_type} model does not "
            f"use, the first being {extra[0]!r}."
        )


def _is_beside(name: str, config: ModelConfig) -> bool:
    """Old checkpoints store the rotary frequencies, tied ones their head twice; MTP blocks have
    MiMo's names and stand beside the decoder.
    """
    block = _MTP_BLOCK.match(name)
    is_mtp = block is not None and int(block[1]) < config.num_nextn_predict_layers
    return name.endswith("rotary_emb.inv_freq") or name == HEAD or is_mtp


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its Hugging Face name, and a draft's vocabulary maps."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.embedding_size, config.hidden_size)}
    for layer in range(config.num_layers):
        for name, shape in layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.head_size, config.hidden_size)
    if config.draft_vocab_size:
        shapes[D2T] = (config.draft_vocab_size,)
        if config.tie_word_embeddings:
            shapes[T2D] = (config.vocab_size,)
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    shapes: dict[str, tuple[int, ...]] = {f"{n}.weight": (size,) for n, size in norms.items()}
    for name, (rows, columns, has_bias) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


class _Reader:
    def __init__(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.arena = torch.empty(_arena_size(config), dtype=config.dtype)
        ops.advise_huge_pages(self.arena)  # False (no such pages here) costs speed alone
        self._names = tensor_shapes(config).keys()
        self._used = 0

    def read(self) -> Weights:
        stored = self.checkpoint.tensor(EMBEDDING).to(self.config.dtype)
        layers = tuple(self._layer(layer) for layer in range(self.config.num_layers))
        head = self._pack(
            [stored if self.config.tie_word_embeddings else self.checkpoint.tensor(HEAD)]
        )
        assert self._used == self.arena.numel()
        t2d = self._map(T2D, len(stored))
        embedding = stored if t2d is None else stored[t2d]
        d2t = self._map(D2T, self.config.vocab_size)
        return Weights(embedding, layers, self._vector(FINAL_NORM), head, self.arena, d2t)

    def _map(self, name: str, size: int) -> Tensor | None:
        """A vocabulary map as int32, its entries below size."""
        if name not in self._names:
            return None
        ids = self.checkpoint.tensor(name)
        if ids.min() < 0 or ids.max() >= size or (name == D2T and (ids.diff() <= 0).any()):
            raise ValueError(
                f"Tensor {name!r} must hold ids below {size}, those of d2t ascending; "
                "save the draft again."
            )
        return ids.int()

    def _layer(self, layer: int) -> LayerWeights:
        prefix = f"model.layers.{layer}."
        qkv = [f"{prefix}self_attn.{p}_proj" for p in "qkv"]
        o, down = [f"{prefix}self_attn.o_proj"], [f"{prefix}mlp.down_proj"]
        gate_up = [f"{prefix}mlp.{p}_proj" for p in ("gate", "up")]
        return LayerWeights(
            input_norm=self._vector(f"{prefix}input_layernorm.weight"),
            qkv=self._matrix(qkv),
            qkv_bias=self._bias(qkv),
            q_norm=self._optional(f"{prefix}self_attn.q_norm.weight"),
            k_norm=self._optional(f"{prefix}self_attn.k_norm.weight"),
            o=self._matrix(o),
            o_bias=self._bias(o),
            mlp_norm=self._vector(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._matrix(gate_up),
            gate_up_bias=self._bias(gate_up),
            down=self._matrix(down),
            down_bias=self._bias(down),
        )

    def _matrix(self, names: Iterable[str]) -> Tensor:
        return self._pack([self.checkpoint.tensor(f"{name}.weight") for name in names])

    def _pack(self, parts: list[Tensor]) -> Tensor:
        """The parts' rows, one after another, as one packed matrix."""
        if any(len(part) % ops.PANEL for part in parts[:-1]):
            parts = [torch.cat(parts)]
        first = self._used
        columns = parts[0].shape[1]
        for part in parts:
            panels = -(-len(part) // ops.PANEL)
            ops.pack_linear(part, self._take(panels * columns).view(panels, columns, ops.PANEL))
        return self.arena[first : self._used].view(-1, columns, ops.PANEL)

    def _take(self, panel_columns: int) -> Tensor:
        begin = self._used
        self._used += panel_columns * ops.PANEL
        return self.arena[begin : self._used]

    def _bias(self, names: Iterable[str]) -> Tensor | None:
        parts = [self._optional(f"{name}.bias") for name in names]
        present = [part for part in parts if part is not None]
        return torch.cat(present) if present else None

    def _optional(self, name: str) -> Tensor | None:
        return self._vector(name) if name in self._names else None

    def _vector(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(torch.float32, copy=True)


def _arena_size(config: ModelConfig) -> int:
    """Elements of all packed matrices: rows rounded up to whole panels."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = ((q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner))
    matrices = [*layer * config.num_layers, (config.head_size, hidden)]
    return sum(-(-rows // ops.PANEL) * ops.PANEL * columns for rows, columns in matrices)
