"""Off is the plain path: the same operators, with the same shapes, in the same order."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specfast import LLM, SamplingParams

PROMPTS = ["def add(a, b):\n    return", "One, two, three, one, two,"]
OFF = {"speculative": False}
CONFIGS = [
    {"method": "ngram"},
    {"method": "suffix"},
    {"method": "recycle", "max_tree_nodes": 16},
    {"method": "draft_model", "model": "tiny-draft-s", "num_speculative_tokens": 3},
    {"method": "hybrid", "model": "tiny-draft-s", "num_speculative_tokens": 3},
    {"method": "medusa", "model": "tiny-medusa"},
    {"method": "eagle", "model": "tiny-eagle", "num_speculative_tokens": 3},
    {"method": "mtp", "num_speculative_tokens": 3},
]


# They may compute nothing; what is looked at in numpy differs.
LOOKS = ("aten.detach", "aten.resolve_conj", "aten.resolve_neg", "aten.to.dtype_layout")
LOOKS += ("aten.lift_fresh",)


class OpTrace(TorchDispatchMode):
    """Records each operator and the shapes that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not (func.is_view or str(func).startswith(LOOKS)):
            shapes = tuple(a.shape for a in args if isinstance(a, torch.Tensor))
            self.ops.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


def trace(config, prompts=PROMPTS, prepare=lambda llm: None, **params):
    """-> the operators of an answer to all prompts, and the answers."""
    llm = LLM("tiny", speculative_config=config)
    prepare(llm)
    values = {"temperature": 0.8, "seed": 3, "max_tokens": 24, "ignore_eos": True, **params}
    with OpTrace() as recorded:
        outputs = llm.generate(prompts, SamplingParams(**values), use_tqdm=False)
    assert any("specfast" in name for name, _ in recorded.ops)
    return recorded.ops, [o.outputs[0].token_ids for o in outputs]


@pytest.fixture(scope="module")
def plain():
    trace(CONFIGS[0])  # a process keeps what its largest pass allocated
    return trace(None)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["method"])
def test_a_request_without_speculation_runs_the_plain_operators(config, plain):
    assert trace(config, **OFF) == plain


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["method"])
def test_the_trace_tells_a_step_with_drafts_from_a_plain_one(config, plain):
    ops, answers = trace({**config, "policy": "fixed"})
    assert answers == plain[1]
    assert ops != plain[0]


@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda c: c["method"])
@pytest.mark.parametrize(
    "gate",
    [
        {"gate": {"max_batch_size": 1}},
        {"num_speculative_tokens_per_batch_size": [[1, 1, 8], [2, 99, 0]]},
    ],
    ids=["max_batch_size", "table"],
)
def test_a_batch_beyond_the_gate_runs_the_plain_operators(config, gate):
    long = {"max_tokens": 24, "ignore_eos": True}
    assert trace({**config, **gate}, **long) == trace(None, **long)


def test_a_closed_gate_runs_the_plain_operators(plain):
    def close(llm):
        for size in (1, 2):
            gate = llm.engine.budget.gates._gate(size)
            gate.is_open, gate._countdown = False, 10**6
            gate.renew = lambda: None

    assert trace({"method": "suffix", "policy": "auto"}, prepare=close) == plain
