"""Reads a drafting head's tensors one by one: each checked, all of them accounted for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import ModelConfig
from specfast.models.weights import Checkpoint, LayerWeights, layer_shapes


class HeadReader:
    """name: what the user gave, for messages. Matrices are packed in dtype, vectors float32."""

    def __init__(self, name: str, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.name, self.dtype = name, dtype
        self._checkpoint = checkpoint
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._checkpoint.shapes

    def tensor(self, name: str, *shape: int) -> Tensor:
        """As stored. ValueError if it is missing or of another shape."""
        found = self._checkpoint.shapes.get(name)
        if found is None:
            raise ValueError(
                f"{self.name} has no tensor {name!r} {list(shape)}, which its config.json "
                "implies; fetch or save it again."
            )
        if found != shape:
            raise ValueError(
                f"{self.name}: tensor {name!r} has shape {list(found)}; beside this target and by "
                f"its config.json it must be {list(shape)}."
            )
        self._used.add(name)
        return self._checkpoint.tensor(name)

    def vector(self, name: str, size: int) -> Tensor:
        return self.tensor(name, size).to(torch.float32, copy=True)

    def optional(self, name: str, size: int) -> Tensor | None:
        return self.vector(name, size) if self.has(name) else None

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        return ops.pack_linear(self.tensor(name, rows, columns).to(self.dtype))

    def layer(
        self, prefix: str, config: ModelConfig, columns: int, has_input_norm: bool = True
    ) -> LayerWeights:
        """A decoder layer whose attention reads vectors of so many columns."""
        shapes = layer_shapes(config)
        for p in "qkv":
            name = f"self_attn.{p}_proj.weight"
            shapes[name] = (shapes[name][0], columns)

        def packed(*names: str) -> Tensor:
            whole = [f"{name}.weight" for name in names]
            parts = [self.tensor(prefix + name, *shapes[name]) for name in whole]
            return ops.pack_linear(torch.cat(parts).to(self.dtype))

        def biases(*names: str) -> Tensor | None:
            whole = [f"{name}.bias" for name in names if f"{name}.bias" in shapes]
            parts = [self.vector(prefix + name, *shapes[name]) for name in whole]
            return torch.cat(parts) if parts else None

        def vector(name: str) -> Tensor | None:
            known = f"{name}.weight" in shapes
            return (
                self.vector(f"{prefix}{name}.weight", *shapes[f"{name}.weight"]) if known else None
            )

        return _layer(packed, biases, vector, has_input_norm)

    def check_all_used(self, ignored: Callable[[str], bool]) -> None:
        """ValueError for a tensor that nothing read: it belongs to a head of another kind."""
        left = sorted(n for n in self._checkpoint.shapes if n not in self._used and not ignored(n))
        if left:
            raise ValueError(
                f"{self.name} has {len(left)} tensors that a head of this kind does not use, the "
                f"first being {left[0]!r}. Is it a head of another method?"
            )


def _layer(
    packed: Callable[..., Tensor],
    biases: Callable[..., Tensor | None],
    vector: Callable[[str], Tensor | None],
    has_input_norm: bool,
) -> LayerWeights:
    qkv = [f"self_attn.{p}_proj" for p in "qkv"]
    gate_up = ["mlp.gate_proj", "mlp.up_proj"]
    mlp_norm = vector("post_attention_layernorm")
    assert mlp_norm is not None
    return LayerWeights(
        input_norm=vector("input_layernorm") if has_input_norm else None,
        qkv=packed(*qkv),
        qkv_bias=biases(*qkv),
        q_norm=vector("self_attn.q_norm"),
        k_norm=vector("self_attn.k_norm"),
        o=packed("self_attn.o_proj"),
        o_bias=biases("self_attn.o_proj"),
        mlp_norm=mlp_norm,
        gate_up=packed(*gate_up),
        gate_up_bias=biases(*gate_up),
        down=packed("mlp.down_proj"),
        down_bias=biases("mlp.down_proj"),
    )
