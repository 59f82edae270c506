"""What an EAGLE-3 head is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specfast.models.config import ModelConfig
from specfast.validation import MANY, check_integer, check_number, require


@dataclass(frozen=True)
class EagleSettings:
    """The head's shape and what it learns from. layers: the target's hidden states that it reads,
    ascending, numbered as transformers does (none: a low, a middle and a high one). 0 for
    intermediate_size and num_kv_heads: the target's own. draft_vocab_size: tokens that it can
    draft, the target's commonest (0: all). own_head: it learns the rows of those tokens too.
    unroll: steps drafted in training, the first from the target's hidden states, the others from
    its own output; context: texts that are longer lose their beginning. The target's probabilities,
    over its recorded best tokens, count 1 - label_weight; its very best token counts the rest.
    """

    layers: tuple[int, ...] = ()
    intermediate_size: int = 0
    num_kv_heads: int = 0
    draft_vocab_size: int = 8192
    own_head: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    unroll: int = 5
    context: int = 2048
    label_weight: float = 0.3
    dropout: float = 0.0
    batch_size: int = 8
    bfloat16: bool = False

    def __post_init__(self) -> None:
        for name in ("unroll", "batch_size"):
            check_integer(self, name, 1, MANY)
        check_integer(self, "context", 4, MANY)
        for name in ("intermediate_size", "num_kv_heads"):
            check_integer(self, name, 0, MANY, " (0: the target's)")
        check_integer(self, "draft_vocab_size", 0, MANY, " (0: the whole vocabulary)")
        check_number(self, "dropout", lambda share: 0 <= share < 1, "lie in [0, 1)")
        check_number(self, "label_weight", lambda weight: 0 <= weight <= 1, "lie in [0, 1]")
        ascending = all(a < b for a, b in zip(self.layers, self.layers[1:]))
        require(ascending, f"layers must ascend, not be {list(self.layers)}.")

    def of_target(self, target: ModelConfig) -> EagleSettings:
        """With the target's sizes in place of 0. ValueError for what it doesn't have."""
        last = target.num_layers
        layers = self.layers or default_layers(last)
        require(
            layers[0] >= 0 and layers[-1] <= last,
            f"layers must lie in 0 to {last}, the target's number of layers, not be "
            f"{list(layers)}.",
        )
        return replace(
            self,
            layers=layers,
            intermediate_size=self.intermediate_size or target.intermediate_size,
            num_kv_heads=self.num_kv_heads or target.num_kv_heads,
        )


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high; of a shallow target, evenly spread."""
    if num_layers > 6:
        return 2, num_layers // 2, num_layers - 3
    return tuple(sorted({round(num_layers * part / 4) for part in (1, 2, 3)}))
