"""A multi-token-prediction block trained to go on from its own output (as FastMTP, 2025, does)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.train.acceptance import TrainingResult
from specfast.train.card import Card, check_out, save_folder, without_folders
from specfast.train.corpus import feature_sources, write_corpus
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.features import FeatureRequest
from specfast.train.frozen import Frozen
from specfast.train.head_run import HeadRun, K
from specfast.train.loop import LoopSettings
from specfast.train.mtp_head import MtpHead, own_block
from specfast.train.writers import Report
from specfast.validation import MANY, check_integer, check_number

_NORM_START = 0.3  # of the target's last norm, so that the first logits are nearly even


@dataclass(frozen=True)
class MtpSettings:
    """How a block learns; its shape is the target's layers'. As EagleSettings."""

    unroll: int = 4
    context: int = 2048
    label_weight: float = 0.3
    dropout: float = 0.0
    batch_size: int = 8
    bfloat16: bool = False

    def __post_init__(self) -> None:
        for name in ("unroll", "batch_size"):
            check_integer(self, name, 1, MANY)
        check_integer(self, "context", 4, MANY)
        check_number(self, "dropout", lambda share: 0 <= share < 1, "lie in [0, 1)")
        check_number(self, "label_weight", lambda weight: 0 <= weight <= 1, "lie in [0, 1]")


def train_mtp(
    corpus_settings: CorpusSettings,
    settings: MtpSettings,
    loop: LoopSettings,
    out: Path,
    work: Path,
    device: str,
    report: Report,
    num_writers: int = 1,
    max_feature_bytes: int = 20 * 2**30,
) -> TrainingResult:
    """Writes the corpus with hidden states, trains, measures, and saves a folder for `mtp`.

    The target's own block, where it has one, is where training begins. Goes on from what `work`
    holds. ValueError, before anything is written, for what could not end well; and if `work`
    belongs to other settings.
    """
    check_out(out, "block")
    model, tokenizer = load(corpus_settings.target, corpus_settings.dtype)
    kept = FeatureRequest((model.config.num_layers,), max_feature_bytes)
    corpus = write_corpus(model, tokenizer, corpus_settings, work, report, num_writers, kept)
    source, held_out = feature_sources(model, tokenizer, corpus, work, kept)
    dtype = torch.bfloat16 if settings.bfloat16 else torch.float32
    frozen = Frozen.of(model, None, dtype, device)
    torch.manual_seed(corpus_settings.seed)
    longest = max(len(a.tokens) for a in (*corpus.train, *corpus.held_out))
    head = _new_head(corpus_settings.target, model, longest + max(K, settings.unroll)).to(device)
    head.set_dropout(settings.dropout)
    identity = {"corpus": asdict(corpus_settings), "mtp": asdict(settings)}
    run = HeadRun(
        head, frozen, corpus, source, held_out, settings, loop, corpus_settings.seed, report
    )
    run.train(work / f"{out.name}.pt", identity)
    result = run.measure()
    card = _card({**identity, "loop": asdict(loop)}, result)
    values = {"architectures": ["MiMoMTPModel"], "num_nextn_predict_layers": 1}
    values |= {"hidden_size": model.config.hidden_size, "dtype": "bfloat16"}
    save_folder(out, head.tensors(torch.bfloat16), values, card)
    return result


def _new_head(target: str, model: Model, num_positions: int) -> MtpHead:
    decoder = replace(model.config, num_layers=1, windows=(0,), rotary_layers=(True,))
    head = MtpHead(decoder, num_positions)
    if (tensors := own_block(target)) is not None:
        head.load_block(tensors)
    else:
        with torch.no_grad():
            head.block.final_layernorm.weight.copy_(_NORM_START * model.weights.final_norm)
    return head


def _card(recipe: dict[str, dict[str, Any]], result: TrainingResult) -> Card:
    recipe = {name: without_folders(settings) for name, settings in recipe.items()}
    target = recipe["corpus"]["target"]
    return Card(
        title=f"MTP block for {target}",
        summary=(
            f"A block of multi-token prediction for `{target}`: specfast's `mtp` proposer loads "
            "it. It was trained to go on from its own output, on text that the target wrote; its "
            "figures come from prompts that it was not trained on, in greedy decoding, by replay "
            "of the target's own answers."
        ),
        command=f"specfast train mtp {target} --out ...",
        recipe=recipe,
        figures=result.figures(),
    )
