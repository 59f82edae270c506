"""An EAGLE-3 head trained on its target's hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specfast.models.config import ModelConfig
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.train.acceptance import Acceptance, TrainingResult, chain_acceptance, result_of
from specfast.train.batches import FeatureBatch, FeatureBatches, collate_features
from specfast.train.card import Card, save_folder, without_folders
from specfast.train.corpus import Corpus, feature_sources, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.data import Answer
from specfast.train.eagle_folder import head_decoder, head_json, head_tensors
from specfast.train.eagle_head import EagleHead, HeadConfig
from specfast.train.eagle_settings import EagleSettings
from specfast.train.feature_source import FeatureSource
from specfast.train.features import FeatureRequest
from specfast.train.frozen import Frozen
from specfast.train.head_loss import best_rows, head_loss, target_law
from specfast.train.loop import LoopSettings, train
from specfast.train.reduction import head_tokens
from specfast.train.writers import Report
from specfast.validation import require

K = 5  # drafts a step that acceptance is told for
_DECAY = 0.8  # weight of a step's loss, beside the step before
_PREVIEW_ANSWERS, _PREVIEW_STEPS = 48, 200
_SCALE_ANSWERS, _EVAL_BATCH = 32, 8
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
    if out.is_file():
        raise ValueError(f"{out} is a file; give a folder to write the head into.")
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
    run = _Run(head, frozen, corpus, source, held_out, settings, loop, corpus_settings.seed, report)
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


@torch.no_grad()
def rights_of(
    head: EagleHead, frozen: Frozen, source: FeatureSource, answers: Sequence[Answer], k: int = K
) -> list[np.ndarray]:
    """Per answer [A - 1, k] bool: of the step that begins behind answer token n, which drafts are
    the text's tokens, all tokens before them given. An exact replay of greedy chains.
    """
    device, was_training = head.norm.weight.device, head.training
    head.eval()
    found = {}
    for group in _groups(answers):
        longest = max(len(a.tokens) for a in group)
        batch = collate_features(group, source.of(group), longest).to(device)
        rights = torch.stack(list(_rights(head, frozen, batch, k)), -1).cpu().numpy()
        for answer, own in zip(group, rights):
            found[answer.index] = own[: answer.num_answer_tokens - 1]
    head.train(was_training)
    return [found[a.index] for a in answers]


def _groups(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    ordered = sorted(answers, key=lambda a: a.num_answer_tokens)
    for at in range(0, len(ordered), _EVAL_BATCH):
        yield ordered[at : at + _EVAL_BATCH]


def _rights(head: EagleHead, frozen: Frozen, batch: FeatureBatch, k: int) -> Iterator[Tensor]:
    """Per step [B, N] bool."""
    rows = _head_rows(head, frozen)
    for draft in head.unroll(frozen.embedding, batch, k):
        guesses = best_rows(draft.hidden, rows)
        if frozen.d2t is not None:
            guesses = frozen.d2t.to(guesses.device)[guesses]
        right = torch.zeros_like(draft.counts)
        right[draft.counts] = guesses == draft.tokens
        yield right


def _head_rows(head: EagleHead, frozen: Frozen) -> Tensor:
    own = head.config.own_head
    return head.lm_head.weight.to(frozen.rows.dtype) if own else frozen.rows


class _Run:
    """Which batch a step takes, its loss, and a look at acceptance now and then."""

    def __init__(
        self,
        head: EagleHead,
        frozen: Frozen,
        corpus: Corpus,
        source: FeatureSource,
        held_out: FeatureSource,
        settings: EagleSettings,
        loop: LoopSettings,
        seed: int,
        report: Report,
    ) -> None:
        self.head, self.frozen, self.corpus, self.held_out = head, frozen, corpus, held_out
        self.settings, self.loop, self.seed, self.report = settings, loop, seed, report
        drafted = [a for a in corpus.train if a.num_answer_tokens > 1]
        require(bool(drafted), "No answer is longer than a token, so there is nothing to draft.")
        self.batches = FeatureBatches(source, drafted, settings.batch_size, settings.context, seed)
        self.preview = corpus.held_out[:: max(1, len(corpus.held_out) // _PREVIEW_ANSWERS)]
        self.seen: Acceptance | None = None
        self.losses = self.shares = np.zeros(0)

    def train(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        train(self.head, self._loss, self.loop, checkpoint, identity, self._on_step)

    def measure(self) -> TrainingResult:
        """With the weights as they are saved, in bfloat16."""
        saved = EagleHead(self.head.config, len(self.head.rotary.cos))
        tensors = self.head.tensors(torch.bfloat16)
        saved.load_state_dict({n: t.float() for n, t in tensors.items()}, strict=False)
        saved.to(self.head.norm.weight.device)
        rights = rights_of(saved, self.frozen, self.held_out, self.corpus.held_out)
        num_parameters = sum(t.numel() for t in tensors.values())
        return result_of(rights, self.corpus, self.frozen.row_of.cpu(), num_parameters)

    def _loss(self, step: int) -> Tensor:
        batch = self.batches.at(step).to(self.head.norm.weight.device)
        torch.manual_seed(self.seed + step)  # of dropout
        device = self.head.norm.weight.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.settings.bfloat16):
            losses, shares = unroll_losses(self.head, self.frozen, batch, self.settings)
        self._remember(torch.stack(losses).detach().cpu().numpy(), np.array(shares))
        weights = [_DECAY**s for s in range(len(losses))]
        return sum(w * loss for w, loss in zip(weights, losses)) / sum(weights)  # type: ignore[return-value]

    def _remember(self, losses: np.ndarray, shares: np.ndarray) -> None:
        if len(losses) != self.settings.unroll:
            return  # texts too short for all steps
        before = (self.losses, self.shares) if len(self.losses) else (losses, shares)
        self.losses = 0.98 * before[0] + 0.02 * losses
        self.shares = 0.98 * before[1] + 0.02 * shares

    def _on_step(self, step: int, loss: float) -> None:
        if step % _PREVIEW_STEPS == 0:
            rights = rights_of(self.head, self.frozen, self.held_out, self.preview)
            self.seen = chain_acceptance(rights)
        words = f"loss {_spaced(self.losses)}, right {_spaced(self.shares)}"
        if self.seen:
            by_position = _spaced(self.seen.per_position)
            words += f", acceptance length {self.seen.length:.2f} ({by_position})"
        self.report("training", step, self.loop.steps, words)


def _spaced(values: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def unroll_losses(
    head: EagleHead, frozen: Frozen, batch: FeatureBatch, settings: EagleSettings
) -> tuple[list[Tensor], list[float]]:
    """The mean loss of every step that some text is long enough for, and how often its best token
    was the target's.
    """
    rows, weights = target_law(
        batch.top_ids, batch.top_logits, frozen.row_of, settings.label_weight
    )
    wanted = frozen.row_of[batch.top_ids[:, 0]]
    losses, shares = [], []
    for draft in head.unroll(frozen.embedding, batch, settings.unroll):
        if not len(draft.law):
            break
        law = draft.law
        loss, best = head_loss(draft.hidden, _head_rows(head, frozen), rows[law], weights[law])
        losses.append(loss)
        shares.append(float((best == wanted[law]).float().mean()))
    return losses, shares


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
