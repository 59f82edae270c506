"""The copying start: an untrained draft that repeats what followed the same two tokens before."""

import pytest
import torch

from specfast.models.config import ModelConfig
from specfast.train.acceptance import acceptance, matches_of
from specfast.train.data import Answer
from specfast.train.draft import DraftSettings, new_student, student_config

VOCAB = 400


def student_of(copying=True, vocab=VOCAB, width=256, **shape):
    """With random embeddings of a target, so that nothing is known of its language."""
    rng = torch.Generator().manual_seed(9)
    embedding = torch.randn(vocab, width, generator=rng)
    target = ModelConfig.from_hf(
        {"model_type": "llama", "vocab_size": vocab, "hidden_size": width, "intermediate_size": 8}
        | {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 600}
    )
    settings = DraftSettings(**{"draft_vocab_size": 0, "copying": copying} | shape)
    torch.manual_seed(1)
    return new_student(student_config(target, settings, None), None, embedding, copying).eval()


@torch.no_grad()
def share_copied(student, tokens, first):
    """Of the tokens from `first` on, how many does it guess?"""
    guesses = student.logits(student(torch.tensor([tokens])))[0].argmax(1)
    wanted = torch.tensor(tokens[first:])
    return (guesses[first - 1 : -1] == wanted).float().mean().item()


@pytest.mark.parametrize("lag", [3, 20, 240])
def test_it_repeats_a_random_text(lag):
    text = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))[:lag].tolist()
    tokens = (text * 100)[: max(2 * lag, 60)]
    assert share_copied(student_of(), tokens, lag + 2) > 0.95
    assert share_copied(student_of(copying=False), tokens, lag + 2) < 0.2


def test_the_token_before_the_last_decides_between_two_places():
    a, b, x, y, z = 11, 12, 50, 51, 52
    for first, second in ((y, z), (z, y)):
        tokens = [1, 2, 3, a, x, first, 4, 5, 6, b, x, second, 7, 8, 9, a, x]
        assert student_of().logits(student_of()(torch.tensor([tokens])))[0, -1].argmax() == first


def test_a_draft_that_copies_is_accepted_where_the_text_repeats(rng):
    text = torch.randint(0, VOCAB, (24,), generator=rng).tolist()
    tokens = torch.tensor(text * 3, dtype=torch.int32).numpy()
    none = torch.zeros(48, 1).numpy()
    answer = Answer(0, 24, tokens, none.astype("int32"), none.astype("float16"))
    assert acceptance(matches_of(student_of(), [answer])).length > 4


def test_every_weight_learns():
    """What starts with no output must still get a gradient, or train with what follows it."""
    student = student_of()
    student.logits(student(torch.arange(40)[None])).square().mean().backward()
    for layer in student.layers:
        for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
            assert matrix.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"num_layers": 1}, "needs two layers"),
        ({"num_kv_heads": 1}, "as many KV heads as heads"),
        ({"hidden_size": 64, "num_kv_heads": 1}, "two heads"),
        ({"width": 128}, "a target that is wider"),
    ],
)
def test_shapes_that_cannot_copy_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        student_of(**shape)
