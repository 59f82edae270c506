"""From prompt files to a training corpus: prompts without those that evaluate, and the target's
answers to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from specfast.models.decoder import Model
from specfast.tokenizer import Tokenizer
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.data import Answer
from specfast.train.feature_source import FeatureSource
from specfast.train.features import NO_FEATURES, FeatureRequest
from specfast.train.prompts import (
    Source,
    TargetPrompt,
    decontaminated,
    evaluation_texts,
    read_sources,
)
from specfast.train.writers import Report, Writer
from specfast.validation import read_object

_HELD_OUT_EVERY = 32
_ANSWERS, _EVALUATION = "answers", "evaluation"


@dataclass(frozen=True)
class Corpus:
    """train: answers to learn from; held_out: greedy answers to measure on, with the category of
    each; the folders in `work` where they lie.
    """

    train: list[Answer]
    held_out: list[Answer]
    held_out_categories: list[str]
    train_folder: str
    held_out_folder: str


def write_corpus(
    model: Model,
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    work: Path,
    report: Report,
    num_writers: int = 1,
    kept: FeatureRequest = NO_FEATURES,
) -> Corpus:
    """Writes what `work` lacks and loads everything. ValueError if it was written for another
    corpus. More writers are processes of one thread each; they write the same.
    """
    evaluation = list(map(Path, settings.evaluation))
    texts = evaluation_texts(evaluation)
    files = decontaminated(read_sources(map(Path, settings.prompts)), texts)
    _claim(work, settings)  # not before its files are known to be there
    writer = Writer(model, tokenizer, settings, work, report, num_writers, kept)
    own = decontaminated(writer.self_written(), texts)
    chosen = in_turn(writer.fitting(files), settings.num_prompts, settings.seed)
    train, prompts = writer.answer(chosen + writer.fitting(own), settings.sampled_share, _ANSWERS)
    if evaluation:
        measured = writer.fitting(read_sources(evaluation))
        measured = in_turn(measured, settings.num_evaluation_prompts, settings.seed)
        held_out, prompts = writer.answer(measured, 0.0, _EVALUATION)
    else:
        train, held_out = _split(train, prompts)
    if not train or not held_out:
        raise ValueError(
            f"Of {len(train) + len(held_out)} answers none is left to "
            f"{'measure on' if train else 'train on'}: give more prompts (num_prompts), fewer of "
            "them sampled (sampled_share), or evaluation prompts."
        )
    categories = [prompts[a.index].category for a in held_out]
    return Corpus(train, held_out, categories, _ANSWERS, _EVALUATION if evaluation else _ANSWERS)


def feature_sources(
    model: Model, tokenizer: Tokenizer, corpus: Corpus, work: Path, kept: FeatureRequest
) -> tuple[FeatureSource, FeatureSource]:
    """Hidden states of the answers to train on, and of those held out, which are stored first: so
    both keep to what there is room for.
    """
    held_out = FeatureSource(model, tokenizer, kept, work / corpus.held_out_folder)
    if corpus.held_out_folder == corpus.train_folder:
        return held_out, held_out
    for answer in corpus.held_out:
        held_out.of([answer])
    return FeatureSource(model, tokenizer, kept, work / corpus.train_folder), held_out


def in_turn(sources: Sequence[Source], limit: int, seed: int) -> list[Source]:
    """At most so many, shuffled, the categories in turn so that each stays represented."""
    rng = np.random.default_rng(seed)
    by_category: dict[str, list[Source]] = {}
    for i in rng.permutation(len(sources)):
        by_category.setdefault(sources[i].category, []).append(sources[i])
    turns = zip_longest(*(by_category[c] for c in sorted(by_category)))
    return [s for row in turns for s in row if s is not None][:limit]


def _split(answers: list[Answer], prompts: list[TargetPrompt]) -> tuple[list[Answer], list[Answer]]:
    """Without evaluation prompts some greedy answers are held out of training."""
    greedy = [a for a in answers if prompts[a.index].temperature == 0]
    held = greedy[::_HELD_OUT_EVERY]
    indices = {a.index for a in held}
    return [a for a in answers if a.index not in indices], held


def _claim(work: Path, settings: CorpusSettings) -> None:
    work.mkdir(parents=True, exist_ok=True)
    path, mine = work / "corpus.json", json.loads(json.dumps(asdict(settings)))
    if not path.exists():
        path.write_text(json.dumps(mine, indent=1) + "\n", "utf-8")
        return
    theirs = read_object(path)
    changed = sorted(k for k in mine if theirs.get(k) != mine[k])
    if changed:
        raise ValueError(
            f"{work} holds the corpus of a run with another {', '.join(changed)}; delete it, or "
            "give another work folder."
        )
