"""Greedy text against transformers' own generate, on fp32 weights that transformers read itself."""

import pytest
import torch

from specfast import LLM, SamplingParams
from specfast.data.workload import load_workload
from specfast.peers import transformers_model

NUM_PROMPTS, NEW_TOKENS = 20, 32
MARGIN = 1e-3  # a top-2 margin below this may fall either way in another order of sums


@pytest.fixture(scope="module")
def reference(demo_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        demo_path.parent, gguf_file=demo_path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def llm():
    spec = {"method": "ngram", "num_speculative_tokens": 5}
    return LLM("demo", dtype="float32", max_model_len=2048, speculative_config=spec)


def greedy(reference, ids: list[int]) -> list[int]:
    out = reference.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        repetition_penalty=1.0,
    )
    return out[0, len(ids) :].tolist()


def top2_margin(reference, ids: list[int]) -> float:
    with torch.inference_mode():
        top = reference(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(top[0] - top[1])


def test_twenty_greedy_prompts(reference, llm):
    prompts = [p.turns[0][:600] for p in load_workload(None)][:NUM_PROMPTS]
    assert len(prompts) == NUM_PROMPTS
    messages = [[{"role": "user", "content": p}] for p in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)
    outputs = llm.chat(messages, params, use_tqdm=False)
    diverged = 0
    for output in outputs:
        ours, theirs = output.outputs[0].token_ids, greedy(reference, output.prompt_token_ids)
        if ours == theirs:
            continue
        diverged += 1
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        assert at is not None, "one stopped where the other went on"
        margin = top2_margin(reference, output.prompt_token_ids + theirs[:at])
        assert margin < MARGIN, f"diverged at {at} with a top-2 margin of {margin}"
    assert diverged < NUM_PROMPTS // 4, "too many near ties to be near ties"


def test_the_benchmarks_baseline_has_the_weights_that_transformers_reads(reference, demo_path):
    theirs, ours = reference.state_dict(), transformers_model(demo_path, torch.float32).state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
