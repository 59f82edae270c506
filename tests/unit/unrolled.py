"""An EAGLE-3 head's inference in plain torch and float64, one slot at a time."""

import torch
from torch.nn import functional


def turned(x, position, rope):
    """x [heads, D]: pairs (i, i + D/2) turn by position times their frequency."""
    half = x.shape[-1] // 2
    angles = rope.table(position + 1, x.shape[-1])[position].double()
    cos, sin = angles[:half], angles[half:]
    low, high = x[:, :half], x[:, half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], 1)


class Alone:
    """One text, one slot at a time, from the saved tensors alone: keys and values in a list."""

    def __init__(self, tensors, embedding, shape, before_residual=False, norm_output=False):
        self.t, self.embedding, self.shape = tensors, embedding, shape
        self.before_residual, self.norm_output = before_residual, norm_output

    def rms(self, x, weight):
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.shape.rms_norm_eps).sqrt() * weight

    def fuse(self, features):
        return self.t["fc.weight"] @ features

    def slot(self, feature, token, position, cache):
        """Appends to cache; -> what the head reads, and what is fed back."""
        t, dim, rope = self.t, self.shape.head_dim, self.shape.rope
        normed = self.rms(feature, t["midlayer.hidden_norm.weight"])
        own = self.rms(self.embedding[token], t["midlayer.input_layernorm.weight"])
        x = torch.cat([own, normed])
        q, k, v = ((t[f"midlayer.self_attn.{n}_proj.weight"] @ x).view(-1, dim) for n in "qkv")
        cache.append((turned(k, position, rope), v))
        q, group = turned(q, position, rope), len(q) // len(k)
        heads = []
        for h, row in enumerate(q):
            scores = torch.stack([k[h // group] @ row for k, _ in cache]) * dim**-0.5
            values = torch.stack([v[h // group] for _, v in cache])
            heads.append(scores.softmax(0) @ values)
        residual = normed if self.before_residual else feature
        x = residual + t["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
        inner = self.rms(x, t["midlayer.post_attention_layernorm.weight"])
        gate, up = (t[f"midlayer.mlp.{n}_proj.weight"] @ inner for n in ("gate", "up"))
        x = x + t["midlayer.mlp.down_proj.weight"] @ (functional.silu(gate) * up)
        out = self.rms(x, t["norm.weight"])
        return out, out if self.norm_output else x
