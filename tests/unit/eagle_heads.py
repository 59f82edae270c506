"""EAGLE heads for tests: random ones in each published layout, a plain torch oracle of what they
draft, and a toy that foretells its target exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from specfast.kv_shape import KVShape
from specfast.models.decoder import Model
from specfast.models.rows import Rows
from tests.unit.toy_model import ToyModel

H, INNER, HEADS, KV_HEADS, DIM, V = 64, 88, 4, 2, 16, 101


@dataclass(frozen=True)
class Layout:
    """One way in which heads are published: config.json's own keys, and tensor names."""

    third: bool
    prefix: str = "layers.0."
    config: dict[str, Any] = field(default_factory=dict)
    nested: bool = False
    own_embedding: bool = False
    own_head: bool = True
    pickled: bool = False
    draft_vocab: int | None = 40


LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}

# SafeAILab/EAGLE, eagle/model/cnets1.py and cnets.py, and vllm-project/speculators' eagle3 models
# (names as vLLM's llama_eagle.py and llama_eagle3.py load them).
LAYOUTS = {
    "eagle1": Layout(False, pickled=True, own_embedding=True, draft_vocab=None),
    "eagle3": Layout(
        True, "midlayer.", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}},
        pickled=True,
    ),
    "eagle3_shared": Layout(
        True, "midlayer.", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}},
        own_head=False,
    ),
    "eagle3_post_norm": Layout(
        True, "midlayer.", {**LAYERS, "norm_output": True, "norm_before_fc": True}, draft_vocab=None
    ),
    "speculators": Layout(
        True, config={"eagle_aux_hidden_state_layer_ids": [0, 2, 3], "norm_before_fc": False},
        nested=True, own_embedding=True,
    ),
    "eagle3_windowed": Layout(
        True, "midlayer.", {**LAYERS, "model_type": "mistral", "sliding_window": 6}
    ),
}  # fmt: skip


def tensors_of(layout: Layout, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, at: float = 0.0) -> Tensor:
        return at + 0.2 * torch.randn(*shape, generator=generator)

    columns, p = (2 * H if layout.third else H), layout.prefix
    found = {
        "fc.weight": random(H, (3 if layout.third else 2) * H),
        f"{p}self_attn.q_proj.weight": random(HEADS * DIM, columns),
        f"{p}self_attn.k_proj.weight": random(KV_HEADS * DIM, columns),
        f"{p}self_attn.v_proj.weight": random(KV_HEADS * DIM, columns),
        f"{p}self_attn.o_proj.weight": random(H, HEADS * DIM),
        f"{p}mlp.gate_proj.weight": random(INNER, H),
        f"{p}mlp.up_proj.weight": random(INNER, H),
        f"{p}mlp.down_proj.weight": random(H, INNER),
        f"{p}post_attention_layernorm.weight": random(H, at=1.0),
    }
    if layout.third:
        for name in (f"{p}input_layernorm", f"{p}hidden_norm", "norm"):
            found[f"{name}.weight"] = random(H, at=1.0)
        if layout.config.get("norm_before_fc"):
            found["input_norm.weight"] = random(3 * H, at=1.0)
        if layout.own_head:
            found["lm_head.weight"] = random(layout.draft_vocab or V, H)
    else:
        found["fc.bias"] = random(H)
    if layout.own_embedding:
        found["embed_tokens.weight"] = random(V, H)
    if size := layout.draft_vocab:
        ids = torch.randperm(V, generator=generator)[:size].sort().values
        found["d2t"] = ids - torch.arange(size)
        found["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    return found


def save_head(folder: Path, layout: Layout, tensors: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    layer = {
        "model_type": "llama", "hidden_size": H, "intermediate_size": INNER, "vocab_size": V,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": 1,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    vocab = {"draft_vocab_size": layout.draft_vocab} if layout.draft_vocab else {}
    if layout.nested:
        config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
    else:
        config = layer
    config = {**config, **vocab, **layout.config, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    if layout.pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


class Oracle:
    """The same head in float64, one slot at a time, its past in lists."""

    def __init__(self, layout: Layout, tensors: dict[str, Tensor], target: Model) -> None:
        self.layout = layout
        self.t = {k: v.double() if v.is_floating_point() else v for k, v in tensors.items()}
        self.target = target
        self.norm_before_residual = layout.config.get("norm_before_residual", layout.nested)
        self.layers = layers_of(layout, target.config.num_layers)

    def chain(self, features: Tensor, tokens: list[int], k: int, kv_start: int = 0) -> list[Tensor]:
        """features [L - 1, width] of tokens 0..L-2 -> the logits [Vd] of k greedy drafts."""
        self.keys, self.values = [], []
        hidden = normed = torch.empty(0)
        for slot in range(len(tokens) - 1):
            fed = self.fuse(features[slot].double())
            hidden, normed = self.slot(fed, tokens[slot + 1], slot, kv_start)
        found = []
        for depth in range(k):
            found.append(self.head(normed))
            if depth + 1 < k:
                token = self.to_target(int(found[-1].argmax()))
                slot = len(tokens) - 1 + depth
                hidden, normed = self.slot(hidden, token, slot, kv_start)
        return found

    def fuse(self, features: Tensor) -> Tensor:
        if not self.layout.third:
            return features
        if "input_norm.weight" in self.t:
            features = rms(features, self.t["input_norm.weight"])
        return self.t["fc.weight"] @ features

    def slot(self, hidden: Tensor, token: int, slot: int, start: int) -> tuple[Tensor, Tensor]:
        t, p = self.t, self.layout.prefix
        own = t.get("embed_tokens.weight")
        embedded = (self.target.weights.embedding.double() if own is None else own)[token]
        if self.layout.third:
            normed = rms(hidden, t[f"{p}hidden_norm.weight"])
            x = torch.cat([rms(embedded, t[f"{p}input_layernorm.weight"]), normed])
            stream = normed if self.norm_before_residual else hidden
        else:
            x = t["fc.weight"] @ torch.cat([embedded, hidden]) + t["fc.bias"]
            stream = x
        stream = stream + self.attention(x, slot, start)
        inner = rms(stream, t[f"{p}post_attention_layernorm.weight"])
        gate, up = (t[f"{p}mlp.{n}_proj.weight"] @ inner for n in ("gate", "up"))
        stream = stream + t[f"{p}mlp.down_proj.weight"] @ (functional.silu(gate) * up)
        if not self.layout.third:
            return stream, stream
        normed = rms(stream, t["norm.weight"])
        return (normed if self.layout.config.get("norm_output") else stream), normed

    def attention(self, x: Tensor, slot: int, start: int) -> Tensor:
        def projected(name: str, heads: int) -> Tensor:
            weight = self.t[f"{self.layout.prefix}self_attn.{name}_proj.weight"]
            return (weight @ x).view(heads, DIM)

        self.keys.append(rotated(projected("k", KV_HEADS), slot))
        self.values.append(projected("v", KV_HEADS))
        if slot < start:  # nobody will ask
            return x.new_zeros(H)
        if window := self.layout.config.get("sliding_window"):
            start = max(start, slot + 1 - window)
        q = rotated(projected("q", HEADS), slot)
        keys, values = (
            torch.stack(past[start:]).repeat_interleave(HEADS // KV_HEADS, 1)
            for past in (self.keys, self.values)
        )
        weights = (torch.einsum("hd,nhd->hn", q, keys) * DIM**-0.5).softmax(1)
        out = torch.einsum("hn,nhd->hd", weights, values).flatten()
        return self.t[f"{self.layout.prefix}self_attn.o_proj.weight"] @ out

    def head(self, normed: Tensor) -> Tensor:
        if "lm_head.weight" in self.t:
            return self.t["lm_head.weight"] @ normed
        ids = torch.tensor([self.to_target(i) for i in range(self.layout.draft_vocab or V)])
        return self.target.weights.head_rows(ids).double() @ normed

    def to_target(self, row: int) -> int:
        return row + int(self.t["d2t"][row]) if "d2t" in self.t else row


def layers_of(layout: Layout, num_layers: int) -> tuple[int, ...]:
    if not layout.third:
        return (num_layers,)
    key = "eagle_aux_hidden_state_layer_ids"
    given = layout.config.get(key) or layout.config.get("eagle_config", {}).get(key)
    return tuple(given or (2, num_layers // 2, num_layers - 3))


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-5).sqrt() * weight


def rotated(x: Tensor, position: int) -> Tensor:
    """Halves paired, as in Llama."""
    half = DIM // 2
    angle = position / 10000.0 ** (torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1)


class ToyHead:
    """Foretells a ToyModel exactly from its hash of the tokens before: so each draft is accepted,
    as long as it is given the right hidden state and the right token.
    """

    d2t = None

    def __init__(self, model: ToyModel, layers: tuple[int, ...] = (1,)) -> None:
        self.model, self.layers = model, layers
        self.num_fed = 0

    def kv_shape(self, dtype: str) -> KVShape:
        return KVShape(1, 1, 1, torch.float32)

    def fuse(self, features: Tensor) -> Tensor:
        return features[:, :1]

    def forward(self, hidden: Tensor, rows: Rows, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        self.num_fed += len(hidden)
        pairs = zip(hidden[:, 0].tolist(), rows.token_ids.tolist())
        after = [(int(h) * 1_000_003 + token + 1) % 2**52 for h, token in pairs]
        state = torch.tensor(after, dtype=torch.float64)[:, None]
        return state, state

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden, torch.arange(len(hidden)))
