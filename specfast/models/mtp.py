"""Multi-token-prediction blocks that a target's checkpoint carries, under MiMo's names."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specfast.models.config import DTYPES, ModelConfig
from specfast.models.config_values import count
from specfast.models.decoder import Model
from specfast.models.feature_draft import FeatureDraft
from specfast.models.head_reader import HeadReader
from specfast.models.loader import head_folder
from specfast.models.weights import LayerWeights
from specfast.validation import read_object, require


class MtpBlock(FeatureDraft):
    """One decoder layer over [norm(hidden), norm(embedding)], behind its own last norm; embedding
    and head are the target's. norms: of the hidden state, of the embedding, and the last one.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerWeights,
        target: Model,
        input_proj: Tensor,
        norms: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        super().__init__(config, layer, target.weights.embedding, target.weights.head, None)
        self.layers = (target.config.num_layers,)
        self._input_proj = input_proj
        self._hidden_norm, self._token_norm, self._last_norm = norms

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        assert self._layer.input_norm is not None
        parts = self.normed(hidden, self._hidden_norm), self.normed(embedded, self._token_norm)
        stream = self.projected(torch.cat(parts, 1), self._input_proj)
        return self.normed(stream, self._layer.input_norm), stream

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.normed(stream, self._last_norm)
        return normed, normed


def load_mtp(name: str, target: Model, dtype: str = "auto") -> tuple[MtpBlock, ...]:
    """The blocks in `name`, which is the target's own checkpoint or a folder of blocks for it.
    ValueError if there are none, or they don't fit. dtype as for `loader.load`.
    """
    folder = head_folder(name)
    num_blocks = count(read_object(folder.path / "config.json"), "num_nextn_predict_layers")
    require(
        num_blocks > 0,
        f"{name} has no MTP blocks (num_nextn_predict_layers in its config.json); use another "
        "method, or train some with `specfast train mtp`.",
    )
    stored = folder.checkpoint.dtype if dtype == "auto" else DTYPES[dtype]
    stored = torch.float32 if stored == torch.float16 else stored
    reader = HeadReader(name, folder.checkpoint, stored)
    blocks = tuple(_block(reader, f"model.mtp_layers.{n}.", target) for n in range(num_blocks))
    reader.check_all_used(lambda n: not n.startswith("model.mtp_layers."))
    return blocks


def _block(reader: HeadReader, prefix: str, target: Model) -> MtpBlock:
    config = replace(
        target.config, num_layers=1, windows=(0,), rotary_layers=(True,), draft_vocab_size=None
    )
    size = config.hidden_size
    layer = reader.layer(prefix, config, size)
    input_proj = reader.matrix(f"{prefix}input_proj.weight", size, 2 * size)
    names = ("hidden_layernorm", "token_layernorm", "final_layernorm")
    hidden, token, last = (reader.vector(f"{prefix}{n}.weight", size) for n in names)
    return MtpBlock(config, layer, target, input_proj, (hidden, token, last))
