"""A draft model for a target: its tokenizer compared, its vocabulary fitted to the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from specfast.models.decoder import Model
from specfast.models.gguf import GgufFile
from specfast.models.gguf_tokenizer import gguf_tokenizer
from specfast.models.loader import load_draft, resolve
from specfast.speculative_config import SpeculativeConfig
from specfast.tokenizer import Tokenizer


def load_draft_for(target: Model, tokenizer: Tokenizer, config: SpeculativeConfig) -> Model:
    """The model that config names. ValueError, with the reason, if it can't draft here."""
    name = check_names_model(config)
    own = tokenizer_of(resolve(name))
    if own and (difference := tokenizer.difference_from(own)):
        raise ValueError(
            f"{name} can't draft for this target: {difference}. Give a model with the same "
            "tokenizer."
        )
    draft = load_draft(name, config.draft_dtype or "auto")
    if not own and draft.config.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"{name} was made for a target with a vocabulary of {draft.config.vocab_size}, "
            f"not {target.config.vocab_size}."
        )
    return fit_vocabulary(draft, target.config.vocab_size)


def check_names_model(config: SpeculativeConfig) -> str:
    """config.model. ValueError if the method has none to draft with."""
    if config.model is None:
        raise ValueError(
            f"speculative_config: the method {config.method!r} needs a model: a folder, hub id, "
            ".gguf file, or the name of one that the package carries."
        )
    return config.model


def tokenizer_of(path: Path) -> Tokenizer | None:
    """A model's own tokenizer; a folder without one was made for one target."""
    if path.is_file():
        return gguf_tokenizer(GgufFile(path).metadata)
    return Tokenizer.from_folder(path) if (path / "tokenizer.json").exists() else None


def fit_vocabulary(draft: Model, vocab_size: int) -> Model:
    """A draft that can be fed any id of the target: those it lacks embed as zeros.

    Models round their vocabularies up, each in its own way. ValueError for a d2t past the target's.
    """
    weights = draft.weights
    last = 0 if weights.d2t is None else int(weights.d2t.max())
    if last >= vocab_size:
        raise ValueError(f"The draft's d2t names token {last}, but the target has {vocab_size}.")
    missing = vocab_size - len(weights.embedding)
    if missing <= 0:
        return draft
    padding = weights.embedding.new_zeros(missing, weights.embedding.shape[1])
    return Model(draft.config, replace(weights, embedding=torch.cat([weights.embedding, padding])))
