"""The test suite's family: a tokenizer, a target with an MTP block, and two drafts of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

from specfast.models.config import ModelConfig
from specfast.tokenizer import Tokenizer
from specfast.train.acceptance import TrainingResult
from specfast.train.card import RECIPE, WEIGHTS, Card, save_folder, without_folders
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.draft import DraftSettings, train_draft
from specfast.train.loop import LoopSettings, train
from specfast.train.mtp import MtpStudent
from specfast.train.mtp_tune import MtpSettings, train_mtp
from specfast.train.student import llama_config
from specfast.train.writers import Report
from specfast.validation import read_text

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|assistant|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_HELD_OUT = 0.03
_WEIGHT_DECAY = 0.01
_SHARED: dict[str, Any] = {
    "head_dim": 32,
    "num_kv_heads": 2,
    "draft_vocab_size": 0,
    "batch_size": 16,
    "copying": False,
    "dropout": 0.0,
}
DRAFTS = {
    "draft-s": DraftSettings(
        hidden_size=64,
        num_layers=1,
        intermediate_size=160,
        **_SHARED,
    ),
    "draft-m": DraftSettings(
        hidden_size=128,
        num_layers=2,
        intermediate_size=320,
        **_SHARED,
    ),
}


@dataclass(frozen=True)
class TinySettings:
    """text: files of plain text, and JSON lines with questions and answers. window: tokens of one
    training text of the target; steps: of the target; block_steps: of its MTP block, afterwards, on
    its own output; draft_steps: of each draft.
    """

    text: tuple[str, ...]
    vocab_size: int = 1024
    hidden_size: int = 192
    num_layers: int = 4
    intermediate_size: int = 512
    context: int = 512
    window: int = 256
    batch_size: int = 8
    steps: int = 700
    block_steps: int = 500
    draft_steps: int = 300
    num_prompts: int = 1000
    mtp_weight: float = 0.3
    learning_rate: float = 3e-3
    seed: int = 0


def train_tiny(settings: TinySettings, out: Path, work: Path, report: Report) -> None:
    """Writes out/target, out/draft-s and out/draft-m."""
    work.mkdir(parents=True, exist_ok=True)
    documents = [d for path in settings.text for d in read_documents(Path(path))]
    target = out / "target"
    save_tokenizer(train_tokenizer(documents, settings.vocab_size), target)
    tokens = encode_documents(documents, Tokenizer.from_folder(target))
    _train_target(settings, tokens, target, work, report)
    block = work / "block"
    result = train_mtp(
        _corpus(settings, out), MtpSettings(), LoopSettings(settings.block_steps, 2e-3), block,
        work, "cpu", report,
    )  # fmt: skip
    put_block(target, block, result)
    for name, shape in DRAFTS.items():
        _train_draft(settings, shape, name, out, work, report)


def read_documents(path: Path) -> list[str]:
    """A text file is one document; a JSON line with an answer is a conversation of two turns."""
    text = read_text(path, "a text, or JSON lines with question and answer")
    if path.suffix != ".jsonl":
        return [text + END]
    rows = map(json.loads, text.splitlines())
    pairs = ((row["question"], row["answer"]) for row in rows if "answer" in row)
    return [f"{USER}{question}{END}{ASSISTANT}{answer}{END}" for question, answer in pairs]


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE, a digit a token."""
    backend = tokenizers.Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(documents, trainer)
    return backend


def save_tokenizer(backend: tokenizers.Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def encode_documents(documents: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    """All documents one after another, int64."""
    return np.concatenate([np.array(tokenizer.encode(d), np.int64) for d in documents])


def target_config(settings: TinySettings) -> dict[str, Any]:
    return llama_config(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        head_dim=32,
        num_kv_heads=2,
        intermediate_size=settings.intermediate_size,
        context=settings.context,
        max_position_embeddings=settings.context,
        num_nextn_predict_layers=1,
        eos_token_id=0,
        dtype="bfloat16",
    )


def joint_loss(student: MtpStudent, windows: Tensor, mtp_weight: float) -> Tensor:
    """windows [B, T + 1]: cross entropy of the next token and of the MTP block's one after it."""
    logits, ahead = student.both(windows[:, :-1])
    return _cross_entropy(logits, windows[:, 1:]) + mtp_weight * _cross_entropy(
        ahead, windows[:, 2:]
    )


def _cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def _train_target(
    settings: TinySettings, tokens: np.ndarray, out: Path, work: Path, report: Report
) -> None:
    torch.manual_seed(settings.seed)
    config = target_config(settings)
    student = MtpStudent(ModelConfig.from_hf(config))
    length = settings.window + 1
    held = int(len(tokens) * _HELD_OUT) // length * length
    held_out, learnt = tokens[:held].reshape(-1, length), tokens[held:]

    def loss_of(step: int) -> Tensor:
        rng = np.random.default_rng((settings.seed, step))
        starts = rng.integers(0, len(learnt) - length, settings.batch_size)
        windows = torch.from_numpy(np.stack([learnt[s : s + length] for s in starts]))
        return joint_loss(student, windows, settings.mtp_weight)

    loop = LoopSettings(settings.steps, settings.learning_rate, _WEIGHT_DECAY)
    train(
        student, loss_of, loop, work / "target.pt", {"tiny": _of_target(settings)},
        lambda step, loss: report("training target", step, loop.steps, f"loss {loss:.3f}"),
    )  # fmt: skip
    figures = _figures(student, torch.from_numpy(held_out)) | {"tokens of text": len(tokens)}
    recipe = {"tiny": without_folders(_of_target(settings)), "loop": asdict(loop)}
    save_folder(out, student.tensors(torch.bfloat16), config, _target_card(recipe, figures))


def _of_target(settings: TinySettings) -> dict[str, Any]:
    """What the target depends on, beside the loop."""
    drafts = ("block_steps", "draft_steps", "num_prompts", "steps", "learning_rate")
    return {key: value for key, value in asdict(settings).items() if key not in drafts}


@torch.no_grad()
def _figures(student: MtpStudent, windows: Tensor) -> dict[str, Any]:
    logits, ahead = student.both(windows[:, :-1])
    agrees = ahead.argmax(-1) == logits[:, 1:].argmax(-1)
    return {
        "parameters": sum(p.numel() for p in student.parameters()),
        "held-out loss, nats a token": float(_cross_entropy(logits, windows[:, 1:])),
        "held-out loss of the MTP block": float(_cross_entropy(ahead, windows[:, 2:])),
        "MTP block agrees with the target's own next choice": float(agrees.float().mean()),
    }


def _target_card(recipe: dict[str, dict[str, Any]], figures: dict[str, Any]) -> Card:
    return Card(
        title="tiny: a target for tests",
        summary=(
            "A small decoder with one multi-token-prediction block, trained on verse and on "
            "arithmetic questions, so that drafts meet a law that is worth predicting. It knows "
            "nothing."
        ),
        command="specfast train tiny --text ... --out ...",
        recipe=recipe,
        figures=figures,
    )


def put_block(target: Path, block: Path, result: TrainingResult) -> None:
    """Puts a block that was trained further into its target's folder, which tells of it."""
    tensors = load_file(target / WEIGHTS) | load_file(block / WEIGHTS)
    config = json.loads((target / "config.json").read_text("utf-8"))
    own, more = (json.loads((f / RECIPE).read_text("utf-8")) for f in (target, block))
    recipe = own["recipe"] | {"mtp": more["recipe"]["mtp"], "mtp loop": more["recipe"]["loop"]}
    length = {"acceptance length of the MTP block, k = 5": result.acceptance.length}
    save_folder(target, tensors, config, _target_card(recipe, own["figures"] | length))


def _corpus(settings: TinySettings, out: Path) -> CorpusSettings:
    return CorpusSettings(
        target=str(out / "target"),
        prompts=settings.text,
        num_prompts=settings.num_prompts,
        max_prompt_tokens=192,
        max_answer_tokens=192,
        sampled_share=0.5,
        seed=settings.seed,
    )


def _train_draft(
    settings: TinySettings, shape: DraftSettings, name: str, out: Path, work: Path, report: Report
) -> TrainingResult:
    loop = LoopSettings(settings.draft_steps, settings.learning_rate, _WEIGHT_DECAY)
    return train_draft(_corpus(settings, out), shape, loop, out / name, work, "cpu", report)
