"""A draft model distilled from its target: a small decoder over the target's commonest tokens."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specfast.models.config import ModelConfig
from specfast.models.loader import load, resolve
from specfast.train.acceptance import (
    TrainingResult,
    acceptance,
    chains_of,
    matches_of,
    result_of,
)
from specfast.train.batches import Batch, Batches
from specfast.train.card import Card, check_out, copy_tokenizer, save_folder, without_folders
from specfast.train.corpus import Corpus, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.induction import ROPE_THETA, Layout, start_copying
from specfast.train.loop import LoopSettings, train
from specfast.train.reduction import head_tokens, nearest_rows, rows_of_tokens
from specfast.train.student import Student, llama_config
from specfast.train.writers import Report
from specfast.validation import MANY, check_integer, check_number, require

_PREVIEW_ANSWERS, _PREVIEW_STEPS = 48, 200


@dataclass(frozen=True)
class DraftSettings:
    """The student's shape and what it learns from. draft_vocab_size: tokens that it can draft, the
    target's commonest (0: all); context: tokens that it sees back, and the longest text that it is
    trained on; copying: whether it starts with heads that copy. The target's probabilities, over
    its recorded best tokens, count 1 - label_weight; its very best token counts the rest.
    """

    hidden_size: int = 192
    num_layers: int = 4
    head_dim: int = 64
    num_kv_heads: int = 3
    intermediate_size: int = 512
    draft_vocab_size: int = 8192
    context: int = 512
    copying: bool = True
    label_weight: float = 0.3
    dropout: float = 0.1
    batch_size: int = 12
    bfloat16: bool = False

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "head_dim", "num_kv_heads", "intermediate_size")
        for name in (*sizes, "context", "batch_size"):
            check_integer(self, name, 1, MANY)
        check_integer(self, "draft_vocab_size", 0, MANY, " (0: the whole vocabulary)")
        check_number(self, "dropout", lambda share: 0 <= share < 1, "lie in [0, 1)")
        check_number(self, "label_weight", lambda weight: 0 <= weight <= 1, "lie in [0, 1]")
        require(
            self.hidden_size % self.head_dim == 0,
            f"hidden_size ({self.hidden_size}) must be a multiple of head_dim ({self.head_dim}).",
        )


def train_draft(
    corpus_settings: CorpusSettings,
    settings: DraftSettings,
    loop: LoopSettings,
    out: Path,
    work: Path,
    device: str,
    report: Report,
    num_writers: int = 1,
) -> TrainingResult:
    """Writes the corpus, trains, measures, and saves a folder that draft_model loads.

    Goes on from what `work` holds. ValueError, before anything is written, for what could not end
    well; and if `work` belongs to other settings.
    """
    check_out(out, "draft model")
    model, tokenizer = load(corpus_settings.target, corpus_settings.dtype)
    config = student_config(model.config, settings, tokenizer.eos_token_id)
    _check_shape(ModelConfig.from_hf(config), model.config, settings.copying)
    corpus = write_corpus(model, tokenizer, corpus_settings, work, report, num_writers)
    d2t = head_tokens(corpus.train, model.config.vocab_size, settings.draft_vocab_size)
    torch.manual_seed(corpus_settings.seed)
    student = new_student(config, d2t, model.weights.embedding.float(), settings.copying)
    student.to(device).set_dropout(settings.dropout)
    identity = {"corpus": asdict(corpus_settings), "draft": asdict(settings)}
    _Distillation(student, corpus, settings, loop, corpus_settings.seed, report).run(
        work / f"{out.name}.pt", identity
    )
    result = measure(student, corpus)
    card = _card({**identity, "loop": asdict(loop)}, result)
    save_folder(out, student.tensors(torch.bfloat16), config, card)
    copy_tokenizer(resolve(corpus_settings.target), out)
    return result


def student_config(
    target: ModelConfig, settings: DraftSettings, eos_token_id: int | None
) -> dict[str, Any]:
    """The student's config.json."""
    size = settings.draft_vocab_size
    return llama_config(
        vocab_size=target.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        head_dim=settings.head_dim,
        num_kv_heads=settings.num_kv_heads,
        intermediate_size=settings.intermediate_size,
        context=settings.context,
        max_position_embeddings=target.max_position_embeddings,
        draft_vocab_size=size if 0 < size < target.vocab_size else None,
        bos_token_id=target.bos_token_id,
        eos_token_id=eos_token_id,
        dtype="bfloat16",
        **({"rope_theta": ROPE_THETA} if settings.copying else {}),
    )


def _check_shape(student: ModelConfig, target: ModelConfig, copying: bool) -> None:
    """ValueError, before anything is written, for a student that could not be built after it."""
    if copying:
        Layout(student, min(target.hidden_size, student.head_size))


def new_student(
    config: dict[str, Any], d2t: Tensor | None, embedding: Tensor, copying: bool = False
) -> Student:
    """A student whose embeddings are the principal components of the target's [V, hidden]."""
    shape = ModelConfig.from_hf(config)
    rows = embedding if d2t is None else embedding[d2t]
    t2d = None if d2t is None else nearest_rows(embedding, d2t)
    student = Student(shape, d2t, t2d)
    weight = student.model.embed_tokens.weight
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    count = min(shape.hidden_size, len(sizes))
    components = rows @ directions[:count].T / sizes[:count].sqrt()
    if copying:
        start_copying(student, components)
        return student
    with torch.no_grad():
        weight[:, :count] = components * (weight.std() / components.std())
    return student


def distillation_loss(
    student: Student, batch: Batch, row_of: Tensor, label_weight: float
) -> Tensor:
    """Cross entropy with the target's probabilities, which is KL plus what no student can change.

    row_of [V]: a token's row in the head, -1 for none; such tokens count nothing.
    """
    log_q = student.logits(student(batch.tokens).flatten(0, 1)[batch.rows]).float().log_softmax(1)
    p = batch.top_logits.softmax(1) * (1 - label_weight)
    p[:, 0] += label_weight
    rows = row_of[batch.top_ids]
    return -((p * (rows >= 0)) * log_q.gather(1, rows.clamp(min=0))).sum(1).mean()


def measure(student: Student, corpus: Corpus) -> TrainingResult:
    """Held-out acceptance with the weights as they are saved, in bfloat16."""
    state = {k: _rounded(v) for k, v in student.state_dict().items()}
    rounded = Student(student.config, state.get("d2t"), state.get("t2d"))
    rounded.load_state_dict(state)
    return result_of(
        chains_of(matches_of(rounded, corpus.held_out)),
        corpus,
        rows_of_tokens(rounded.d2t, student.config.vocab_size),
        sum(p.numel() for p in rounded.parameters()),
    )


def _rounded(tensor: Tensor) -> Tensor:
    cpu = tensor.cpu()
    return cpu.bfloat16().float() if cpu.is_floating_point() else cpu


def _card(recipe: dict[str, dict[str, Any]], result: TrainingResult) -> Card:
    recipe = {name: without_folders(settings) for name, settings in recipe.items()}
    target = recipe["corpus"]["target"]
    return Card(
        title=f"Draft model for {target}",
        summary=(
            f"A draft model for speculative decoding with `{target}`: specfast's `draft_model` "
            "proposer loads it. It was distilled from text that the target wrote, and its figures "
            "come from prompts that it was not trained on, in greedy decoding, by replay of the "
            "target's own answers."
        ),
        command=f"specfast train draft {target} --out ...",
        recipe=recipe,
        figures=result.figures(),
    )


class _Distillation:
    """One run: which batch a step takes, its loss, and a look at acceptance now and then."""

    def __init__(
        self,
        student: Student,
        corpus: Corpus,
        settings: DraftSettings,
        loop: LoopSettings,
        seed: int,
        report: Report,
    ) -> None:
        self.student, self.settings, self.loop, self.report = student, settings, loop, report
        self.seed = seed
        self.device = next(student.parameters()).device
        self.batches = Batches(corpus.train, settings.batch_size, settings.context, seed)
        self.row_of = rows_of_tokens(student.d2t, student.config.vocab_size).to(self.device)
        self.preview = corpus.held_out[:: max(1, len(corpus.held_out) // _PREVIEW_ANSWERS)]
        self.length = float("nan")
        self.mean_loss = float("nan")

    def run(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        train(self.student, self._loss, self.loop, checkpoint, identity, self._on_step)

    def _loss(self, step: int) -> Tensor:
        batch = self.batches.at(step).to(self.device)
        torch.manual_seed(self.seed + step)  # of dropout
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bfloat16):
            return distillation_loss(self.student, batch, self.row_of, self.settings.label_weight)

    def _on_step(self, step: int, loss: float) -> None:
        if step % _PREVIEW_STEPS == 0:
            self.length = acceptance(matches_of(self.student, self.preview)).length
        before = loss if math.isnan(self.mean_loss) else self.mean_loss
        self.mean_loss = 0.98 * before + 0.02 * loss
        words = f"loss {self.mean_loss:.3f}, acceptance length {self.length:.2f}"
        self.report("training", step, self.loop.steps, words)
