"""Medusa heads for tests: random ones as a published folder holds them, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def random_heads(
    hidden: int, vocab: int, num_heads: int = 3, num_layers: int = 1, own: bool = True,
    d2t: Tensor | None = None, seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Float32 tensors by FasterDecoding's names, d2t by ours."""
    rng = torch.Generator().manual_seed(seed)
    tensors = {}
    for j in range(num_heads):
        for r in range(num_layers):
            tensors[f"{j}.{r}.linear.weight"] = torch.randn(hidden, hidden, generator=rng) / 4
            tensors[f"{j}.{r}.linear.bias"] = torch.randn(hidden, generator=rng)
        if own:
            size = vocab if d2t is None else len(d2t)
            tensors[f"{j}.{num_layers}.weight"] = torch.randn(size, hidden, generator=rng) / 4
    return tensors if d2t is None else {**tensors, "d2t": d2t}


def config_of(tensors: dict[str, Tensor], **more) -> dict:
    names = [name.split(".") for name in tensors if name[0].isdecimal()]
    return {
        "base_model_name_or_path": "some/target",
        "medusa_num_heads": 1 + max(int(name[0]) for name in names),
        "medusa_num_layers": 1 + max(int(name[1]) for name in names if name[2] == "linear"),
        "transformers_version": "4.34.1",
        **more,
    }


def save_heads(
    folder: Path, tensors: dict[str, Tensor], file: str = "model.safetensors", **more
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(tensors, **more)))
    if file.endswith(".pt"):
        torch.save(tensors, folder / file)
    else:
        save_file(tensors, folder / file)
    return folder


def said_by(tensors: dict[str, Tensor], target_head: Tensor, features: Tensor) -> Tensor:
    """features [B, H], the target's head [V, H] -> logits [heads, B, Vd], all in float64."""
    about = config_of(tensors)
    num_heads, num_layers = about["medusa_num_heads"], about["medusa_num_layers"]
    logits = []
    for j in range(num_heads):
        h = features.double()
        for r in range(num_layers):
            weight, bias = (tensors[f"{j}.{r}.linear.{x}"].double() for x in ("weight", "bias"))
            inner = h @ weight.T + bias
            h = h + inner * torch.sigmoid(inner)
        rows = target_head if "d2t" not in tensors else target_head[tensors["d2t"].long()]
        logits.append(h @ tensors.get(f"{j}.{num_layers}.weight", rows).double().T)
    return torch.stack(logits)
