"""Options of specfast train: a dataclass a group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specfast.cli.options import option


@dataclass(frozen=True)
class CorpusOptions:
    """What the target writes, and what is measured on."""

    target: Annotated[
        str, typer.Argument(help="The model to draft for: a folder, hub id, .gguf file or 'demo'.")
    ]
    prompts: Annotated[
        list[Path] | None,
        option(
            "Prompts to answer: JSON lines (as for bench), or a text to continue; repeatable.",
            panel="Corpus",
            unset="none",
        ),
    ] = None
    evaluation: Annotated[
        list[Path] | None,
        option(
            "Prompts to measure on; what overlaps with them is not trained on; repeatable.",
            panel="Corpus",
            unset="some of the training prompts, held out",
        ),
    ] = None
    num_prompts: Annotated[
        int, option("At most so many of the files', their categories in turn.", panel="Corpus")
    ] = 2000
    num_self_prompts: Annotated[
        int, option("User turns that the target itself samples.", panel="Corpus")
    ] = 0
    num_evaluation_prompts: Annotated[
        int, option("At most so many to measure on, their categories in turn.", panel="Corpus")
    ] = 96
    max_prompt_tokens: Annotated[int, option("Longer prompts are left out.", panel="Corpus")] = 256
    max_answer_tokens: Annotated[int, option("Answers end here.", panel="Corpus")] = 256
    sampled_share: Annotated[
        float, option("Share of answers at temperature 1; the rest are greedy.", panel="Corpus")
    ] = 0.2
    dtype: Annotated[
        str, option("The target's type: auto, bfloat16 or float32.", panel="Corpus")
    ] = "auto"
    seed: Annotated[int, option("Of prompts, answers and weights.", panel="Corpus")] = 0


BatchSize = Annotated[int, option("Answers a step.", panel="Training")]
Dropout = Annotated[float, option("Of what each block adds to the stream.", panel="Training")]
Unroll = Annotated[int, option("Tokens drafted from each position in training.", panel="Training")]


@dataclass(frozen=True)
class LearningOptions:
    """How a drafter learns, whatever its kind."""

    label_weight: Annotated[
        float,
        option(
            "Weight of the target's very best token beside its probabilities.", panel="Training"
        ),
    ] = 0.3
    batch_size: BatchSize = 8
    bfloat16: Annotated[
        bool, option("Multiply in bfloat16.", "--bfloat16/--float32", panel="Training")
    ] = False


@dataclass(frozen=True)
class StudentOptions(LearningOptions):
    """The draft model's shape, and how it learns."""

    hidden_size: Annotated[int, option("Width.", panel="Draft model")] = 192
    num_layers: Annotated[int, option("Depth.", panel="Draft model")] = 4
    head_dim: Annotated[int, option("Of an attention head.", panel="Draft model")] = 64
    num_kv_heads: Annotated[int, option("Heads of K and V.", panel="Draft model")] = 3
    intermediate_size: Annotated[int, option("Of the MLP.", panel="Draft model")] = 512
    draft_vocab_size: Annotated[
        int, option("Tokens it can draft: the commonest; 0 is all.", panel="Draft model")
    ] = 8192
    context: Annotated[
        int, option("Tokens it sees back, however long the text is.", panel="Draft model")
    ] = 512
    copying: Annotated[
        bool,
        option(
            "Start with heads that repeat what followed the same two tokens before.",
            "--copying/--no-copying",
            panel="Draft model",
        ),
    ] = True
    dropout: Dropout = 0.1
    batch_size: BatchSize = 12


@dataclass(frozen=True)
class HeadLearning(LearningOptions):
    """How heads learn, whatever their kind."""

    context: Annotated[
        int, option("Texts that are longer lose their beginning.", panel="Training")
    ] = 2048


@dataclass(frozen=True)
class BlockOptions(HeadLearning):
    """How an MTP block learns."""

    unroll: Unroll = 4
    dropout: Dropout = 0.0


@dataclass(frozen=True)
class HeadOptions(BlockOptions):
    """An EAGLE-3 head's shape, and how it learns."""

    unroll: Unroll = 5
    layers: Annotated[
        str | None,
        option(
            "The target's hidden states that it reads, such as 2,15,27.",
            panel="Head",
            unset="a low, a middle and a high one",
        ),
    ] = None
    intermediate_size: Annotated[int, option("Of the MLP; 0: the target's.", panel="Head")] = 0
    num_kv_heads: Annotated[int, option("Heads of K and V; 0: the target's.", panel="Head")] = 0
    draft_vocab_size: Annotated[
        int, option("Tokens it can draft: the commonest; 0 is all.", panel="Head")
    ] = 8192
    own_head: Annotated[
        bool,
        option("Learn the rows of these tokens too.", "--own-head/--shared-head", panel="Head"),
    ] = False
    norm_before_residual: Annotated[
        bool,
        option(
            "Add the layer's output to the normed feature.",
            "--norm-before-residual/--plain-residual",
            panel="Head",
        ),
    ] = False
    norm_output: Annotated[
        bool,
        option("Feed back the normed output.", "--norm-output/--plain-output", panel="Head"),
    ] = False


@dataclass(frozen=True)
class MedusaOptions(HeadLearning):
    """The heads' shape, and how they learn."""

    num_heads: Annotated[int, option("Heads, one a draft's depth.", panel="Heads")] = 4
    num_layers: Annotated[int, option("Residual blocks of each.", panel="Heads")] = 1
    draft_vocab_size: Annotated[
        int, option("Tokens they can draft: the commonest; 0 is all.", panel="Heads")
    ] = 8192


@dataclass(frozen=True)
class FeatureOptions:
    """Where hidden states are kept."""

    feature_cache_gb: Annotated[
        float, option("Disk for hidden states; what does not fit is computed each time.")
    ] = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.feature_cache_gb <= 1e9:
            raise ValueError(
                f"--feature-cache-gb must not be below 0, nor above 1e9, not "
                f"{self.feature_cache_gb}."
            )

    @property
    def max_bytes(self) -> int:
        return int(self.feature_cache_gb * 2**30)


@dataclass(frozen=True)
class LoopOptions:
    """How long to train, and where."""

    steps: Annotated[int, option("Training steps.", panel="Training")] = 3000
    learning_rate: Annotated[float, option("Its highest value.", panel="Training")] = 3e-3


@dataclass(frozen=True)
class RunOptions:
    """Where the drafter goes, and what computes."""

    out: Annotated[Path, option("The folder to write the drafter into.")]
    work: Annotated[
        Path | None, option("The folder for corpus and checkpoints.", unset="OUT.work")
    ] = None
    device: Annotated[str, option("Where the drafter trains: cpu or cuda.")] = "cpu"
    threads: Annotated[int | None, option("CPU threads.", unset="one a core")] = None
    writers: Annotated[
        int, option("Processes of one thread that write the corpus; 1: one with all threads.")
    ] = 1

    @property
    def work_folder(self) -> Path:
        return self.work or self.out.with_name(self.out.name + ".work")
