"""Hugging Face's arms: our checkpoint's weights, its own greedy text, a time for each token."""

import pytest
import torch

from specfast.measure import Task
from specfast.peers import TransformersArm, transformers_arms, transformers_model
from specfast.speculative_config import SpeculativeConfig
from tests.unit.tiny_models import oracle

TASK = Task("t", "c", tuple([5, 6, 7, 8] * 6))
EOS = [100]


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama, with its embeddings tied, as a Hugging Face folder."""
    oracle("llama3").save_pretrained(tmp_path)
    return tmp_path


def test_weights_are_the_checkpoints(folder):
    theirs, ours = oracle("llama3"), transformers_model(folder, torch.float32)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
    ids = torch.tensor([TASK.prompt_token_ids])
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("speculation", [None, SpeculativeConfig("ngram")], ids=["plain", "lookup"])
def test_an_answer_is_generates_own_with_a_time_a_token(folder, speculation):
    model = transformers_model(folder, torch.float32)
    sample = TransformersArm("hf", model, 20, speculation).answer(TASK)
    ids = torch.tensor([TASK.prompt_token_ids])
    expected = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    assert list(sample.token_ids) == expected
    assert len(sample.times) == len(expected)
    assert list(sample.times) == sorted(sample.times) and sample.times[0] > 0


def test_roles_share_the_arms_and_stop_at_our_end_of_text(folder):
    arms = transformers_arms(str(folder), EOS, 12, SpeculativeConfig("ngram"), [TASK])
    assert arms["best"].name.startswith("transformers_")
    assert arms["lookup"].name.startswith("transformers_lookup_")
    assert arms["fp32"].name == "transformers_fp32"
    assert arms["fp32"].model.generation_config.eos_token_id == EOS
    assert "prompt_lookup_num_tokens" in arms["lookup"].options


def test_a_model_without_an_end_of_text_is_no_trouble(folder):
    arms = transformers_arms(str(folder), [], 12, SpeculativeConfig("ngram"), [TASK])
    assert len(arms["fp32"].answer(TASK).token_ids) == 12
