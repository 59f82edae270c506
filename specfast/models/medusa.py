"""Medusa heads: published ones (FasterDecoding's layout) and our own.

Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
Heads", 2024 (arXiv 2401.10774). Head j, of residual blocks and a matrix, says from the hidden state
that decided one token which token comes j + 1 after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specfast import ops
from specfast.models.config import DTYPES
from specfast.models.decoder import Model
from specfast.models.head_reader import HeadReader
from specfast.models.loader import head_folder
from specfast.models.weights import D2T, Checkpoint
from specfast.validation import MANY, check_integer, read_object, require

MAX_HEADS = 64


@dataclass(frozen=True)
class MedusaConfig:
    """What config.json says. medusa_accuracies[j][i]: how often candidate i of head j is the
    target's token; medusa_choices: the paths of the tree, each the candidates taken by head 0, 1,
    ... None: not known, any.
    """

    medusa_num_heads: int
    medusa_num_layers: int
    medusa_accuracies: tuple[tuple[float, ...], ...] | None = None
    medusa_choices: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_integer(self, "medusa_num_heads", 1, MAX_HEADS)
        check_integer(self, "medusa_num_layers", 1, MANY)
        if self.medusa_accuracies is not None:
            self._check_accuracies(self.medusa_accuracies)
        if self.medusa_choices is not None:
            self._check_choices(self.medusa_choices)

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> MedusaConfig:
        """From config.json, whose other keys say nothing about the heads."""
        for key in ("medusa_num_heads", "medusa_num_layers"):
            require(key in values, f"config.json has no {key!r}: these are no Medusa heads.")
        lists = {
            key: _tuples(values[key], key)
            for key in ("medusa_accuracies", "medusa_choices")
            if values.get(key) is not None
        }
        return cls(values["medusa_num_heads"], values["medusa_num_layers"], **lists)

    def _check_accuracies(self, rows: tuple[tuple[float, ...], ...]) -> None:
        shares = [share for row in rows for share in row]
        require(
            len(rows) >= self.medusa_num_heads
            and all(rows)
            and all(isinstance(s, int | float) and 0 <= s <= 1 for s in shares),
            "medusa_accuracies must hold, for each head, shares from 0 to 1.",
        )

    def _check_choices(self, paths: tuple[tuple[int, ...], ...]) -> None:
        known = {(), *paths}
        for path in paths:
            require(
                all(type(rank) is int and rank >= 0 for rank in path) and path != (),
                f"medusa_choices must be lists of candidates from 0 on, not {list(path)!r}.",
            )
            require(
                path[:-1] in known, f"medusa_choices: {list(path)} comes without {list(path[:-1])}."
            )


def _tuples(rows: object, name: str) -> tuple[tuple[Any, ...], ...]:
    lists = isinstance(rows, list | tuple) and all(isinstance(row, list | tuple) for row in rows)
    require(lists, f"{name} must be a list of lists, not {rows!r}.")
    return tuple(tuple(row) for row in rows)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Block:
    """h + silu(W h + b); of the first blocks of all heads, one below another."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, H] -> what is added to it [M, N]."""
        inner = torch.empty(len(x), len(self.bias))
        ops.linear(x, self.weight, inner, self.bias)
        out = torch.empty_like(inner)
        # Not torch's own, which rounds by where in the tensor an element lies.
        ops.silu_mul(torch.cat([inner, torch.ones_like(inner)], 1), out)
        return out


class MedusaHeads:
    """first: the first block of every head; deeper[j]: the other blocks of head j; outputs: one
    packed [Vd, H] for all heads, or one each; d2t [Vd] int32: the target's tokens, None: all.
    """

    def __init__(
        self,
        first: _Block,
        deeper: Sequence[Sequence[_Block]],
        outputs: Sequence[Tensor],
        vocab_size: int,
        d2t: Tensor | None,
    ) -> None:
        self.d2t = d2t
        self.num_heads = len(deeper)
        self._first, self._deeper, self._outputs = first, deeper, outputs
        self._num_logits = vocab_size if d2t is None else len(d2t)

    def logits(self, features: Tensor, num_heads: int) -> Tensor:
        """features [B, H], behind the target's last norm -> [num_heads, B, Vd] float32."""
        added = self._first(features).unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        hidden = (features + added)[:num_heads].contiguous()
        for h, blocks in zip(hidden, self._deeper):
            for block in blocks:
                h += block(h)
        out = torch.empty(num_heads, len(features), self._num_logits)
        if len(self._outputs) == 1:
            ops.linear(hidden.flatten(0, 1), self._outputs[0], out.flatten(0, 1))
        else:
            for h, output, head in zip(hidden, self._outputs, out):
                ops.linear(h, output, head)
        return out


def load_medusa(
    name: str, target: Model, max_heads: int = MAX_HEADS, dtype: str = "auto"
) -> tuple[MedusaConfig, MedusaHeads]:
    """At most max_heads heads of the folder or hub id `name`, for this target.

    ValueError names the tensor that is missing or of another shape than target and config.json
    imply. dtype as for `loader.load`.
    """
    folder = head_folder(name)
    config = MedusaConfig.from_hf(read_object(folder.path / "config.json"))
    checkpoint = folder.checkpoint
    stored = checkpoint.dtype if dtype == "auto" else DTYPES[dtype]
    reader = HeadReader(name, checkpoint, torch.float32 if stored == torch.float16 else stored)
    count = min(max_heads, config.medusa_num_heads)
    heads = _read(reader, checkpoint, config, count, target)
    reader.check_all_used(lambda n: n.partition(".")[0] in set(map(str, range(count, MAX_HEADS))))
    return config, heads


def _read(
    reader: HeadReader, checkpoint: Checkpoint, config: MedusaConfig, count: int, target: Model
) -> MedusaHeads:
    """A head more than config.json tells of is no harm: published folders have some."""
    vocab_size, size = target.config.vocab_size, target.config.hidden_size
    layers = config.medusa_num_layers
    d2t = _d2t(reader, checkpoint, vocab_size)
    first = _block(reader, [f"{head}.0" for head in range(count)], size)
    deeper = [
        [_block(reader, [f"{head}.{r}"], size) for r in range(1, layers)] for head in range(count)
    ]
    if reader.has(f"0.{layers}.weight"):
        rows = vocab_size if d2t is None else len(d2t)
        outputs = [reader.matrix(f"{head}.{layers}.weight", rows, size) for head in range(count)]
    elif d2t is None:
        outputs = [target.weights.head]
    else:
        outputs = [ops.pack_linear(target.weights.head_rows(d2t))]
    return MedusaHeads(first, deeper, outputs, vocab_size, d2t)


def _block(reader: HeadReader, names: Sequence[str], size: int) -> _Block:
    weights = [reader.tensor(f"{name}.linear.weight", size, size) for name in names]
    biases = [reader.vector(f"{name}.linear.bias", size) for name in names]
    return _Block(ops.pack_linear(torch.cat(weights).to(reader.dtype)), torch.cat(biases))


def _d2t(reader: HeadReader, checkpoint: Checkpoint, vocab_size: int) -> Tensor | None:
    if not reader.has(D2T):
        return None
    d2t = reader.tensor(D2T, *checkpoint.shapes[D2T])
    require(
        d2t.ndim == 1 and len(d2t) > 0 and not d2t.is_floating_point()
        and int(d2t.min()) >= 0 and int(d2t.max()) < vocab_size and bool((d2t.diff() > 0).all()),
        f"{reader.name}: tensor {D2T!r} must hold ascending tokens of the target, below "
        f"{vocab_size}.",
    )  # fmt: skip
    return d2t.int()
