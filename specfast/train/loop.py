"""The training loop that all methods share: two optimisers, a schedule, checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specfast.train.work_files import reading
from specfast.validation import MANY, check_integer, check_number


@dataclass(frozen=True)
class LoopSettings:
    """How long and how fast. The rate rises over `warmup` steps, stays, and falls to 0 over the
    last `decay` (a share of the steps). Muon trains the matrices within, AdamW vectors, embeddings
    and heads.
    """

    steps: int
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 50
    decay: float = 0.4
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_integer(self, "steps", 1, MANY)
        check_number(self, "learning_rate", lambda rate: 0 < rate < math.inf, "be above 0, finite")

    def factor(self, step: int) -> float:
        """What the learning rate of this step is multiplied by."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup), left)


_OUTER = ("embed_tokens.weight", "head.weight")  # matrices with a row a token

Loss = Callable[[int], Tensor]  # of step s, differentiable: a function of s alone


def optimisers(module: nn.Module, settings: LoopSettings) -> list[torch.optim.Optimizer]:
    """Muon's rate is on AdamW's scale (its updates are given AdamW's usual size)."""
    named = dict(module.named_parameters())
    inner = [p for n, p in named.items() if p.ndim == 2 and not n.endswith(_OUTER)]
    inner_ids = set(map(id, inner))
    outer = [p for p in named.values() if id(p) not in inner_ids]
    rate, weight_decay = settings.learning_rate, settings.weight_decay
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def train(
    module: nn.Module,
    loss_of: Loss,
    settings: LoopSettings,
    checkpoint: Path,
    identity: dict[str, Any],
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    *,
    save_seconds: float = 60.0,
) -> None:
    """Trains the module in place for all steps, going on from the checkpoint if there is one.

    identity: what the run depends on beside the settings; a checkpoint of another identity is a
    ValueError. loss_of(step) must depend on the step alone, so that a run that was killed and
    resumed gives the same weights as one that was not. on_step(steps done, loss). A checkpoint is
    written every save_seconds and at the end.
    """
    run = _Run(module, settings, checkpoint, {**identity, "settings": asdict(settings)})
    saved = time.monotonic()
    for step in range(run.resume(), settings.steps):
        on_step(step + 1, run.step(step, loss_of(step)))
        if time.monotonic() - saved >= save_seconds:
            run.save(step + 1)
            saved = time.monotonic()
    run.save(settings.steps)


class _Run:
    def __init__(
        self, module: nn.Module, settings: LoopSettings, path: Path, identity: dict[str, Any]
    ) -> None:
        self.module, self.settings, self.path, self.identity = module, settings, path, identity
        self.optimisers = optimisers(module, settings)

    def step(self, step: int, loss: Tensor) -> float:
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.settings.learning_rate * self.settings.factor(step)
            optimiser.zero_grad(set_to_none=True)
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(f"The loss is {value} at step {step}; lower the learning rate.")
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.settings.clip)
        for optimiser in self.optimisers:
            optimiser.step()
        return value

    def resume(self) -> int:
        """-> the step to go on with."""
        if not self.path.exists():
            return 0
        with reading(self.path):
            saved = torch.load(self.path, weights_only=True)
            theirs = dict(saved["identity"])
        if theirs != self.identity:
            changed = [k for k in self.identity if theirs.get(k) != self.identity[k]]
            raise ValueError(
                f"{self.path} is of a run with other settings ({', '.join(changed)}); delete it, "
                "or give another work folder."
            )
        with reading(self.path):
            self.module.load_state_dict(saved["module"])
            for optimiser, state in zip(self.optimisers, saved["optimisers"]):
                optimiser.load_state_dict(state)
            return saved["step"]

    def save(self, step: int) -> None:
        """Whole or not at all: a kill in between leaves the older checkpoint."""
        partial = self.path.with_suffix(".partial")
        state = {
            "step": step,
            "identity": self.identity,
            "module": self.module.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
        }
        torch.save(state, partial)
        os.replace(partial, self.path)
