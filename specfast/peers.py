"""Hugging Face's generate as arms of the harness: the same weights, prompts and threads."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seqs
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specfast.measure import Sample, Task, compare
from specfast.models.gguf import GgufFile
from specfast.models.gguf_model import GgufCheckpoint, gguf_config
from specfast.models.loader import resolve
from specfast.models.safetensors import FolderCheckpoint
from specfast.models.weights import Checkpoint
from specfast.proposers.ngram import lookup_range
from specfast.speculative_config import SpeculativeConfig

PLAIN, LOOKUP = "transformers_{}", "transformers_lookup_{}"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def require_transformers() -> None:
    """ValueError that says what to install."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ValueError(
            "--baseline transformers needs transformers: pip install 'specfast[peers]'."
        ) from None


class TransformersArm:
    """Greedy generate, plain or with its own prompt lookup."""

    def __init__(
        self, name: str, model: Any, max_tokens: int, speculation: SpeculativeConfig | None = None
    ) -> None:
        self.name = name
        self.model = model
        self.options: dict[str, Any] = {"max_new_tokens": max_tokens, "do_sample": False}
        if speculation:
            self.options |= {
                "prompt_lookup_num_tokens": speculation.num_speculative_tokens,
                "max_matching_ngram_size": lookup_range(speculation)[1],
            }

    @torch.inference_mode()
    def answer(self, task: Task) -> Sample:
        ids = torch.tensor([task.prompt_token_ids])
        clock = _Clock()
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), streamer=clock, **self.options
        )
        new = output[0, ids.shape[1] :].tolist()
        assert len(clock.times) == len(new)
        return Sample(tuple(new), tuple(clock.times))


class _Clock:
    """A streamer that notes when each token came; the first thing it is given is the prompt."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        if self._saw_prompt:
            self.times += [time.perf_counter() - self.start] * value.numel()
        self._saw_prompt = True

    def end(self) -> None:
        """Nothing to flush."""


def transformers_arms(
    model: str,
    eos_token_ids: list[int],
    max_tokens: int,
    speculation: SpeculativeConfig,
    pilot: Seqs[Task],
) -> dict[str, TransformersArm]:
    """Role -> arm: "best" and "lookup" in the dtype that decodes the pilot faster, and "fp32"."""
    path = resolve(model)
    models = {name: transformers_model(path, dtype) for name, dtype in DTYPES.items()}
    for hf in models.values():
        hf.generation_config.eos_token_id = eos_token_ids or None
        hf.generation_config.pad_token_id = next(iter(eos_token_ids), None)
    plain = {n: TransformersArm(PLAIN.format(n), hf, max_tokens) for n, hf in models.items()}
    lookup = {
        n: TransformersArm(LOOKUP.format(n), hf, max_tokens, speculation)
        for n, hf in models.items()
    }
    return {
        "best": _faster(plain, pilot),
        "lookup": _faster(lookup, pilot),
        "fp32": plain["fp32"],
    }


def transformers_model(path: Path, dtype: torch.dtype) -> Any:
    """Hugging Face's own model with our checkpoint's weights, dequantised where they are packed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint: Checkpoint
    if path.is_file():
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        file = GgufFile(path)
        checkpoint = GgufCheckpoint(file, gguf_config(file))
    else:
        config = AutoConfig.from_pretrained(path)
        checkpoint = FolderCheckpoint(path)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    missing, unexpected = model.load_state_dict(
        {name: checkpoint.tensor(name) for name in checkpoint.shapes}, strict=False
    )
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


def _faster(arms: dict[str, TransformersArm], pilot: Seqs[Task]) -> TransformersArm:
    """By the median decoding speed on the pilot tasks; the first where they are too short."""
    tried = compare(list(arms.values()), pilot)
    rates = {arm.name: tried.summary(arm.name).decode_rate.value for arm in arms.values()}
    return max(arms.values(), key=lambda arm: np.nan_to_num(rates[arm.name]))
