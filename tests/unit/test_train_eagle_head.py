"""The unroll against each chain by itself, in float64; the loss against torch's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specfast.models.config import ModelConfig
from specfast.train.batches import collate_features
from specfast.train.data import Answer
from specfast.train.eagle_head import EagleHead, HeadConfig
from specfast.train.head_loss import best_rows, head_loss, target_law
from specfast.train.student import llama_config
from tests.unit.unrolled import Alone

VOCAB, HIDDEN, FEATURES, TOP, STEPS = 30, 32, 2, 4, 4
DECODER = ModelConfig.from_hf(
    llama_config(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_layers=1, head_dim=16, num_kv_heads=1,
        intermediate_size=40, context=64, max_position_embeddings=64,
    )
)  # fmt: skip


def texts(rng, sizes=((3, 9), (6, 2), (1, 14), (4, 1), (2, 5))):
    answers = []
    for index, (prompt, length) in enumerate(sizes):
        tokens = rng.integers(1, VOCAB, prompt + length).astype(np.int32)
        ids = np.stack([rng.permutation(VOCAB)[:TOP] for _ in range(length)]).astype(np.int32)
        logits = -np.sort(rng.random((length, TOP)).astype(np.float16), axis=1)
        answers.append(Answer(index, prompt, tokens, ids, logits - logits[:, :1]))
    width = FEATURES * HIDDEN
    features = [
        torch.from_numpy(rng.standard_normal((len(a.tokens) - 1, width))).bfloat16()
        for a in answers
    ]
    return answers, features


def batch_of(rng):
    answers, features = texts(rng)
    batch = collate_features(answers, features, 64)
    return answers, features, replace(batch, features=batch.features.double())


def new_head(**options):
    torch.manual_seed(5)
    scale = torch.rand(FEATURES * HIDDEN) + 0.5
    head = EagleHead(HeadConfig(DECODER, FEATURES, **options), 64, scale)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return head.double()


@pytest.mark.parametrize("before_residual", [False, True])
@pytest.mark.parametrize("norm_output", [False, True])
def test_every_chain_is_what_it_is_by_itself(before_residual, norm_output):
    """Its own growing cache, from the saved tensors alone; other texts and padding don't show."""
    rng = np.random.default_rng(8)
    answers, features, batch = batch_of(rng)
    head = new_head(norm_before_residual=before_residual, norm_output=norm_output)
    embedding = torch.from_numpy(rng.standard_normal((VOCAB, HIDDEN)))
    alone = Alone(head.tensors(torch.float64), embedding, DECODER, before_residual, norm_output)
    drafts = list(head.unroll(embedding, batch, STEPS))
    seen = 0
    for step, draft in enumerate(drafts):
        rows = iter(zip(draft.hidden, draft.tokens.tolist(), draft.law.tolist()))
        for b, chain in draft.counts.nonzero().tolist():
            hidden, token, law = next(rows)
            answer = answers[b]
            first = answer.num_prompt_tokens - 1 + chain
            assert token == answer.tokens[first + step + 2]
            decided = first + step + 2 - answer.num_prompt_tokens
            assert batch.top_ids[law].tolist() == answer.top_ids[decided].tolist()
            cache, fed = [], None
            for slot in range(first + 1):
                feature = alone.fuse(features[b][slot].double())
                expected, fed = alone.slot(feature, answer.tokens[slot + 1], slot, cache)
            for slot in range(first + 1, first + step + 1):
                expected, fed = alone.slot(fed, answer.tokens[slot + 1], slot, cache)
            assert (hidden - expected).abs().max() < 1e-9
            seen += 1
    assert seen == sum(max(0, a.num_answer_tokens - 1 - s) for a in answers for s in range(STEPS))


def test_the_scale_is_folded_into_what_is_saved():
    head = new_head()
    tensors = head.tensors(torch.bfloat16)
    assert "scale" not in tensors and not any("rotary" in name for name in tensors)
    assert all(t.dtype == torch.bfloat16 for t in tensors.values())
    folded = head.tensors(torch.float64)["fc.weight"]
    x = torch.randn(FEATURES * HIDDEN, dtype=torch.float64)
    assert torch.allclose(folded @ x, head.fc(x / head.scale), atol=1e-12)


def law(rng, rows):
    ids = torch.from_numpy(np.stack([rng.permutation(VOCAB)[:TOP] for _ in range(rows)]))
    logits = torch.from_numpy(-np.sort(rng.random((rows, TOP)), axis=1))
    return ids, logits - logits[:, :1]


def test_the_loss_and_its_gradients_are_torchs_own(monkeypatch):
    """In parts, with a head that does not know every token."""
    monkeypatch.setattr("specfast.train.head_loss._ROWS", 4)
    rng = np.random.default_rng(3)
    ids, logits = law(rng, 11)
    row_of = torch.where(torch.arange(VOCAB) % 3 == 0, torch.arange(VOCAB) // 3, -1)
    rows, weights = target_law(ids, logits, row_of, label_weight=0.25)
    hidden = torch.randn(11, HIDDEN, dtype=torch.float64, requires_grad=True)
    head = torch.randn(VOCAB // 3, HIDDEN, dtype=torch.float64, requires_grad=True)
    loss, best = head_loss(hidden, head, rows, weights)
    found = torch.autograd.grad(3 * loss, (hidden, head))
    log_q = (hidden @ head.T).log_softmax(1)
    expected = torch.zeros((), dtype=torch.float64)
    for r in range(11):
        law_of_row = logits[r].softmax(0)
        for rank, token in enumerate(ids[r].tolist()):
            if token % 3 == 0:
                weight = 0.75 * law_of_row[rank] + 0.25 * (rank == 0)
                expected = expected - weight * log_q[r, token // 3] / 11
    assert abs(loss.item() - expected.item()) < 1e-12
    for one, other in zip(found, torch.autograd.grad(3 * expected, (hidden, head))):
        assert (one - other).abs().max() < 1e-12
    assert torch.equal(best, log_q.argmax(1))
    assert torch.equal(best, best_rows(hidden, head))
