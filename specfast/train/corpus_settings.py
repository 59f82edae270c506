"""What a training corpus is made of."""

from __future__ import annotations

from dataclasses import dataclass

from specfast.validation import DTYPES, MANY, check_integer, check_number, require


@dataclass(frozen=True)
class CorpusSettings:
    """What is written. num_prompts: of the files, their categories in turn; num_self_prompts: user
    turns that the target itself samples from an open chat template. sampled_share of the answers
    are sampled at temperature 1, the others greedy. num_evaluation_prompts of the evaluation files,
    their categories in turn, are answered greedily; what shares a fifth of its 8-grams with any
    prompt of those files is not trained on.
    """

    target: str
    prompts: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()
    num_prompts: int = 2000
    num_self_prompts: int = 0
    num_evaluation_prompts: int = 96
    max_prompt_tokens: int = 256
    max_answer_tokens: int = 256
    sampled_share: float = 0.2
    top_logits: int = 16
    max_num_seqs: int = 32
    dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.prompts or self.num_self_prompts):
            raise ValueError("There is nothing to train on: give --prompts or --num-self-prompts.")
        require(self.dtype in DTYPES, f"dtype must be one of {DTYPES}, not {self.dtype!r}.")
        check_number(self, "sampled_share", lambda share: 0 <= share <= 1, "lie in [0, 1]")
        for name in ("num_self_prompts", "seed"):
            check_integer(self, name, 0, MANY)
        lengths = ("max_prompt_tokens", "max_answer_tokens", "top_logits", "max_num_seqs")
        for name in ("num_prompts", "num_evaluation_prompts", *lengths):
            check_integer(self, name, 1, MANY)
