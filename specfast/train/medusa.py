"""Medusa heads trained on their target's hidden states, with the tree that they deserve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specfast.models.loader import load
from specfast.proposers.candidate_tree import best_paths
from specfast.speculative_config import MAX_NODES
from specfast.train.acceptance import TrainingResult, chain_acceptance, result_of
from specfast.train.batches import FeatureBatch, FeatureBatches, collate_features
from specfast.train.card import Card, check_out, save_folder, without_folders
from specfast.train.corpus import Corpus, feature_sources, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.data import Answer
from specfast.train.feature_source import FeatureSource
from specfast.train.features import FeatureRequest
from specfast.train.frozen import Frozen
from specfast.train.head_loss import head_loss, target_law
from specfast.train.loop import LoopSettings, train
from specfast.train.medusa_heads import Heads, accuracies_of, answer_rows, ranks_of, rights_in
from specfast.train.reduction import head_tokens
from specfast.train.writers import Report
from specfast.validation import MANY, check_integer, check_number, require

_DECAY = 0.8  # weight of a head's loss, beside the head before
_PREVIEW_ANSWERS, _PREVIEW_STEPS, _EVAL_BATCH = 48, 200, 8
_TREE_NODES = 16  # of the tree whose acceptance is told


@dataclass(frozen=True)
class MedusaSettings:
    """How many heads, of how many residual blocks each, over how many of the target's tokens (its
    commonest; 0: all). label_weight as for a draft model.
    """

    num_heads: int = 4
    num_layers: int = 1
    draft_vocab_size: int = 8192
    context: int = 2048
    label_weight: float = 0.3
    batch_size: int = 8
    bfloat16: bool = False

    def __post_init__(self) -> None:
        check_integer(self, "num_heads", 1, MAX_NODES)
        for name in ("num_layers", "batch_size"):
            check_integer(self, name, 1, MANY)
        check_integer(self, "context", 4, MANY)
        check_integer(self, "draft_vocab_size", 0, MANY, " (0: the whole vocabulary)")
        check_number(self, "label_weight", lambda weight: 0 <= weight <= 1, "lie in [0, 1]")


def train_medusa(
    corpus_settings: CorpusSettings,
    settings: MedusaSettings,
    loop: LoopSettings,
    out: Path,
    work: Path,
    device: str,
    report: Report,
    num_writers: int = 1,
    max_feature_bytes: int = 20 * 2**30,
) -> TrainingResult:
    """Writes the corpus with hidden states, trains, measures, and saves a folder for `medusa`.

    Goes on from what `work` holds. ValueError, before anything is written, for what could not end
    well; and if `work` belongs to other settings.
    """
    check_out(out, "heads")
    model, tokenizer = load(corpus_settings.target, corpus_settings.dtype)
    kept = FeatureRequest((model.config.num_layers,), max_feature_bytes)
    corpus = write_corpus(model, tokenizer, corpus_settings, work, report, num_writers, kept)
    source, held_out = feature_sources(model, tokenizer, corpus, work, kept)
    d2t = head_tokens(corpus.train, model.config.vocab_size, settings.draft_vocab_size)
    frozen = Frozen.of(model, d2t, torch.bfloat16 if settings.bfloat16 else torch.float32, device)
    heads = Heads(model.config.hidden_size, settings.num_heads, settings.num_layers).to(device)
    identity = {"corpus": asdict(corpus_settings), "medusa": asdict(settings)}
    run = _Run(
        heads, frozen, corpus, source, held_out, settings, loop, corpus_settings.seed, report
    )
    run.train(work / f"{out.name}.pt", identity)
    measured = run.measure()
    recipe = {**identity, "loop": asdict(loop)}
    recipe = {name: without_folders(group) for name, group in recipe.items()}
    values = heads_json(recipe["corpus"]["target"], settings, measured)
    tensors = heads.tensors(torch.bfloat16) | ({} if d2t is None else {"d2t": d2t})
    save_folder(out, tensors, values, _card(recipe, measured))
    return measured.result


@dataclass(frozen=True)
class Measured:
    """Of held-out answers: accuracies [heads][candidates], the tree's nodes, best first, and what
    its best _TREE_NODES would be accepted for.
    """

    result: TrainingResult
    accuracies: list[list[float]]
    paths: list[tuple[int, ...]]
    tree_length: float

    @classmethod
    def of(cls, ranks: Sequence[np.ndarray], result: TrainingResult) -> Measured:
        accuracies = accuracies_of(ranks)
        paths = best_paths(np.array(accuracies), MAX_NODES)
        tree = chain_acceptance([rights_in(own, paths[:_TREE_NODES]) for own in ranks])
        return cls(result, accuracies, paths, tree.length)


def heads_json(target: str, settings: MedusaSettings, measured: Measured) -> dict[str, Any]:
    """config.json: the published keys, and what the heads were measured to be worth."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": target,
        "medusa_num_heads": settings.num_heads,
        "medusa_num_layers": settings.num_layers,
        "medusa_accuracies": [[round(share, 4) for share in head] for head in measured.accuracies],
        "medusa_choices": [list(path) for path in measured.paths],
        "dtype": "bfloat16",
    }


def medusa_losses(
    heads: Heads, frozen: Frozen, batch: FeatureBatch, settings: MedusaSettings
) -> list[Tensor]:
    """Each head's mean cross entropy with the target's law of its token; a head for which no text
    is long enough comes last and is left out.
    """
    rows, weights = target_law(
        batch.top_ids, batch.top_logits, frozen.row_of, settings.label_weight
    )
    features, places = answer_rows(batch, settings.num_heads)
    losses = []
    for hidden, place in zip(heads(features), places):
        is_there = place >= 0
        if not is_there.any():
            break
        law = batch.law.flatten()[place[is_there]]
        loss, _ = head_loss(hidden[is_there], frozen.rows, rows[law], weights[law])
        losses.append(loss)
    return losses


class _Run:
    """Which batch a step takes, its loss, and a look at accuracy now and then."""

    def __init__(
        self,
        heads: Heads,
        frozen: Frozen,
        corpus: Corpus,
        source: FeatureSource,
        held_out: FeatureSource,
        settings: MedusaSettings,
        loop: LoopSettings,
        seed: int,
        report: Report,
    ) -> None:
        self.heads, self.frozen, self.corpus, self.held_out = heads, frozen, corpus, held_out
        self.settings, self.loop, self.report = settings, loop, report
        drafted = [a for a in corpus.train if a.num_answer_tokens > 1]
        require(bool(drafted), "No answer is longer than a token, so there is nothing to draft.")
        self.batches = FeatureBatches(source, drafted, settings.batch_size, settings.context, seed)
        self.preview = corpus.held_out[:: max(1, len(corpus.held_out) // _PREVIEW_ANSWERS)]
        self.losses = np.zeros(settings.num_heads)
        self.seen = ""

    def train(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        train(self.heads, self._loss, self.loop, checkpoint, identity, self._on_step)

    def measure(self) -> Measured:
        """With the weights as they are saved, in bfloat16."""
        self.heads.load_state_dict(self.heads.tensors(torch.bfloat16))
        ranks = self._ranks(self.corpus.held_out)
        num_parameters = sum(t.numel() for t in self.heads.parameters())
        chains = [own == 0 for own in ranks]
        result = result_of(chains, self.corpus, self.frozen.row_of.cpu(), num_parameters)
        return Measured.of(ranks, result)

    def _ranks(self, answers: Sequence[Answer]) -> list[np.ndarray]:
        """[answer tokens - 1, heads] an answer, as ranks_of says."""
        device, found = self.frozen.rows.device, []
        for begin in range(0, len(answers), _EVAL_BATCH):
            group = answers[begin : begin + _EVAL_BATCH]
            longest = max(len(a.tokens) for a in group)
            batch = collate_features(group, self.held_out.of(group), longest).to(device)
            ranks = ranks_of(self.heads, self.frozen, batch, self.settings.num_heads)
            ends = np.cumsum([a.num_answer_tokens - 1 for a in group])
            found += np.split(ranks.T.cpu().numpy(), ends[:-1])
        return found

    def _loss(self, step: int) -> Tensor:
        batch = self.batches.at(step).to(self.frozen.rows.device)
        losses = medusa_losses(self.heads, self.frozen, batch, self.settings)
        found = torch.stack(losses)
        now = found.detach().cpu().numpy()
        before = self.losses[: len(now)]
        self.losses[: len(now)] = np.where(before == 0, now, 0.98 * before + 0.02 * now)
        weights = _DECAY ** torch.arange(len(losses), device=found.device)
        return (weights * found).sum() / weights.sum()

    def _on_step(self, step: int, loss: float) -> None:
        if step % _PREVIEW_STEPS == 0:
            ranks = self._ranks(self.preview)
            best = [_spaced(head[:3]) for head in accuracies_of(ranks)]
            self.seen = f", right by head and candidate {' | '.join(best)}"
        self.report("training", step, self.loop.steps, f"loss {_spaced(self.losses)}{self.seen}")


def _spaced(values: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _card(recipe: dict[str, dict[str, Any]], measured: Measured) -> Card:
    target = recipe["corpus"]["target"]
    heads = {
        f"head {j}: its candidates are right": shares
        for j, shares in enumerate(measured.accuracies)
    }
    return Card(
        title=f"Medusa heads for {target}",
        summary=(
            f"Heads for speculative decoding with `{target}`: specfast's `medusa` proposer loads "
            "them. Head j foretells from the target's last hidden state the token j + 1 after the "
            "one that it decided, through the target's own output matrix. They were trained on "
            "text that the target wrote, and their figures come from prompts that they were not "
            "trained on, in greedy decoding, by replay of the target's own answers."
        ),
        command=f"specfast train medusa {target} --out ...",
        recipe=recipe,
        figures={
            **measured.result.figures(),
            f"acceptance length, tree of {_TREE_NODES}": measured.tree_length,
            **heads,
        },
    )
