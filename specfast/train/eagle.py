"""An EAGLE-3 head trained on its target's hidden states."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specfast.models.config import ModelConfig
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.train.acceptance import TrainingResult
from specfast.train.card import Card, check_out, save_folder, without_folders
from specfast.train.corpus import Corpus, feature_sources, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.eagle_folder import head_decoder, head_json, head_tensors
from specfast.train.eagle_head import EagleHead, HeadConfig
from specfast.train.eagle_settings import EagleSettings
from specfast.train.feature_source import FeatureSource
from specfast.train.features import FeatureRequest
from specfast.train.frozen import Frozen
from specfast.train.head_run import HeadRun, K
from specfast.train.loop import LoopSettings
from specfast.train.reduction import head_tokens
from specfast.train.writers import Report

_SCALE_ANSWERS = 32
_NORM_START = 0.3


def train_eagle(
    corpus_settings: CorpusSettings,
    settings: EagleSettings,
    loop: LoopSettings,
    out: Path,
    work: Path,
    device: str,
    report: Report,
    num_writers: int = 1,
    max_feature_bytes: int = 20 * 2**30,
) -> TrainingResult:
    """Writes the corpus with hidden states, trains, measures, and saves a folder for `eagle`.

    Goes on from what `work` holds. ValueError, before anything is written, for what could not end
    well; and if `work` belongs to other settings.
    """
    check_out(out, "head")
    model, tokenizer = load(corpus_settings.target, corpus_settings.dtype)
    settings = settings.of_target(model.config)
    decoder = head_decoder(model.config, settings)
    values = head_json(decoder, settings)
    kept = FeatureRequest(settings.layers, max_feature_bytes)
    corpus = write_corpus(model, tokenizer, corpus_settings, work, report, num_writers, kept)
    source, held_out = feature_sources(model, tokenizer, corpus, work, kept)
    d2t = head_tokens(corpus.train, model.config.vocab_size, settings.draft_vocab_size)
    frozen = Frozen.of(model, d2t, torch.bfloat16 if settings.bfloat16 else torch.float32, device)
    torch.manual_seed(corpus_settings.seed)
    head = new_head(decoder, settings, corpus, source, model).to(device)
    identity = {"corpus": asdict(corpus_settings), "eagle": asdict(settings)}
    run = HeadRun(
        head, frozen, corpus, source, held_out, settings, loop, corpus_settings.seed, report
    )
    run.train(work / f"{out.name}.pt", identity)
    result = run.measure()
    card = _card({**identity, "loop": asdict(loop)}, result)
    save_folder(out, head_tensors(head, d2t, model.config.vocab_size), values, card)
    return result


def new_head(
    decoder: ModelConfig,
    settings: EagleSettings,
    corpus: Corpus,
    source: FeatureSource,
    model: Model,
) -> EagleHead:
    """It reads features at about unit size, and ends in the target's own norm, made small: so its
    first logits are nearly even.
    """
    sample = torch.cat(source.of(corpus.train[:_SCALE_ANSWERS])).float()
    scale = sample.square().mean(0).sqrt()
    config = HeadConfig(
        decoder,
        len(settings.layers),
        settings.own_head,
        settings.norm_before_residual,
        settings.norm_output,
    )
    longest = max(len(a.tokens) for a in (*corpus.train, *corpus.held_out))
    head = EagleHead(config, longest + max(K, settings.unroll), scale.where(scale > 0, 1.0))
    with torch.no_grad():
        head.norm.weight.copy_(_NORM_START * model.weights.final_norm)
        if settings.own_head:
            d2t = head_tokens(corpus.train, decoder.vocab_size, settings.draft_vocab_size)
            tokens = torch.arange(decoder.vocab_size) if d2t is None else d2t
            head.lm_head.weight.copy_(model.weights.head_rows(tokens))
    head.set_dropout(settings.dropout)
    return head


def _card(recipe: dict[str, dict[str, Any]], result: TrainingResult) -> Card:
    recipe = {name: without_folders(settings) for name, settings in recipe.items()}
    target = recipe["corpus"]["target"]
    return Card(
        title=f"EAGLE-3 head for {target}",
        summary=(
            f"A drafting head for speculative decoding with `{target}`: specfast's `eagle` "
            "proposer loads it. It reads the target's hidden states and drafts with the target's "
            "own embedding and head. It was trained on text that the target wrote, and its figures "
            "come from prompts that it was not trained on, in greedy decoding, by replay of the "
            "target's own answers."
        ),
        command=f"specfast train eagle {target} --out ...",
        recipe=recipe,
        figures=result.figures(),
    )
