"""LLM: arguments that vLLM takes and specfast does not are refused, never misread."""

import pytest

from specfast import LLM
from tests.unit.toy_model import ToyModel, ToyTokenizer


@pytest.fixture
def llm(monkeypatch):
    monkeypatch.setattr("specfast.llm.load", lambda model, dtype: (ToyModel(), ToyTokenizer()))
    return LLM("toy", kv_cache_memory=2**16)


@pytest.mark.parametrize("prompt", [{"prompt": "a"}, {"prompt_token_ids": [1, 2]}])
def test_prompts_are_no_dicts(llm, prompt):
    for prompts in (prompt, [prompt], ["a", prompt]):
        with pytest.raises(ValueError, match="not a dict"):
            llm.generate(prompts)
    with pytest.raises(ValueError, match="not a dict"):
        next(llm.stream(prompt))


def test_sampling_params_are_no_dict(llm):
    for call in (llm.generate, lambda *given: next(llm.stream(*given))):
        with pytest.raises(ValueError, match="from_dict"):
            call("a", {"max_tokens": 1})
