"""The tiny family that the package carries: drafts that were trained are accepted, and say so."""

from __future__ import annotations

import pytest

from specfast import LLM, SamplingParams

PROMPTS = [
    "Question: Anna has 12 pens and buys 3 more. How many pens does she have?\nAnswer:",
    "Question: A train goes 60 miles an hour for 2 hours. How far does it go?\nAnswer:",
    "ROMEO:\nWhat light is this",
    "KING HENRY:\n",
]
SAMPLING = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0, "top_p": 0.95}}


def run(sampling, **speculation):
    spec = {
        "method": "draft_model", "num_speculative_tokens": 4, "policy": "fixed", **speculation,
    }  # fmt: skip
    llm = LLM("tiny", speculative_config=spec if speculation else None, num_blocks=200)
    params = [
        SamplingParams(max_tokens=64, seed=i, ignore_eos=True, **SAMPLING[sampling])
        for i in range(len(PROMPTS))
    ]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [o.outputs[0].token_ids for o in outputs], llm.stats()


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_same_bytes_in_fewer_steps(sampling):
    """A tree needs no more steps than its chain, a better draft fewer than a worse one."""
    plain, stats = run(sampling)
    steps = [stats.num_plain_steps]
    for more in (
        {"model": "tiny-draft-s"},
        {"model": "tiny-draft-s", "max_tree_nodes": 16},
        {"model": "tiny-draft-m", "max_tree_nodes": 16},
    ):
        tokens, stats = run(sampling, **more)
        assert tokens == plain
        steps.append(stats.num_plain_steps + stats.num_drafts)
    assert steps == sorted(steps, reverse=True) and steps[1] < 0.75 * steps[0]
    assert steps[3] < steps[1], steps


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_draft_of_either_dtype_is_accepted_as_often(dtype):
    _, stats = run("greedy", model="tiny-draft-s", draft_dtype=dtype)
    assert stats.num_accepted_per_pos[0] > 0.4 * stats.num_drafts
