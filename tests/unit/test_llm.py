"""LLM: arguments that vLLM takes and specfast does not are refused, never misread."""

from itertools import zip_longest

import pytest

from specfast import LLM, SamplingParams
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


@pytest.mark.parametrize("prompt", [None, 7, 1.5])
def test_what_is_no_prompt_is_refused(llm, prompt):
    for prompts in (prompt, ["a", prompt], [1.5]):
        with pytest.raises(ValueError, match="a text or a list of token ids"):
            llm.generate(prompts)


@pytest.mark.parametrize("lengths", [(3, 9), (4, 9), (9, 3), (5, 5)], ids=str)
def test_streams_read_in_turn_all_come_to_their_end(llm, lengths):
    """A step of one stream may end another's request."""
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    alone = [[o.outputs[0].token_ids for o in llm.stream("abc", p)][-1] for p in params]
    streams = [llm.stream("abc", p) for p in params]
    seen = [list(row) for row in zip_longest(*streams)]
    for i, column in enumerate(zip(*seen)):
        outputs = [o for o in column if o is not None]
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].outputs[0].token_ids == alone[i]


def test_a_stream_that_is_abandoned_is_cancelled(llm):
    left = llm.stream("a", SamplingParams(max_tokens=None, ignore_eos=True))
    next(left)
    left.close()
    llm.generate("b", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert not llm.engine.has_unfinished and not llm.engine.scheduler.running


def test_sampling_params_are_no_dict(llm):
    for call in (llm.generate, lambda *given: next(llm.stream(*given))):
        with pytest.raises(ValueError, match="from_dict"):
            call("a", {"max_tokens": 1})
        with pytest.raises(ValueError, match="takes SamplingParams"):
            call("a", 5)
