"""What is loaded as Medusa heads, and what is refused.

The published layout's names and shapes are those of FasterDecoding/Medusa: medusa/train/
train_legacy.py saves `medusa_head.state_dict()` as medusa_lm_head.pt beside MedusaConfig's
config.json (medusa_num_heads, medusa_num_layers, base_model_name_or_path), and medusa/model/
medusa_model.py builds each head as Sequential(ResBlock, ..., Linear), the block's matrix being its
`linear` [H, H] with a bias and the last one [V, H] without: so `{j}.{r}.linear.weight`, `.bias` and
`{j}.{R}.weight`. huggingface/text-generation-inference, layers/medusa.py, reads the same names from
medusa_lm_head.safetensors, and takes the target's head where there is no `{j}.{R}.weight`.
"""

from __future__ import annotations

import json

import pytest
import torch

from specfast.config import EngineConfig
from specfast.models.loader import kind_of
from specfast.models.medusa import MedusaConfig, load_medusa
from specfast.proposers.registry import make_proposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig
from tests.unit.medusa_heads import config_of, random_heads, save_heads
from tests.unit.tiny_models import native, oracle
from tests.unit.toy_model import ToyTokenizer

V, H = 101, 64
FEATURES = torch.randn(3, H, generator=torch.Generator().manual_seed(1))
PUBLISHED = random_heads(H, V, num_layers=2)
SHARED = random_heads(H, V, own=False)


@pytest.fixture(scope="module")
def target():
    return native(oracle("llama3"))


@pytest.mark.parametrize("tensors", [PUBLISHED, SHARED], ids=["own", "shared"])
def test_every_file_says_the_same(tensors, target, tmp_path):
    logits = []
    for file in ("model.safetensors", "medusa_lm_head.safetensors", "medusa_lm_head.pt"):
        folder = save_heads(tmp_path / file, tensors, file)
        config, heads = load_medusa(str(folder), target)
        assert kind_of(str(folder)) == "medusa"
        assert (config.medusa_num_heads, heads.num_heads, heads.d2t) == (3, 3, None)
        logits.append(heads.logits(FEATURES, 3))
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
    assert logits[0].std() > 0.1


def test_fewer_heads_than_there_are(target, tmp_path):
    """Published configurations tell of fewer than their file holds."""
    whole = load_medusa(str(save_heads(tmp_path / "a", PUBLISHED)), target)[1].logits(FEATURES, 3)
    folder = save_heads(tmp_path / "b", PUBLISHED, medusa_num_heads=2)
    assert torch.equal(load_medusa(str(folder), target)[1].logits(FEATURES, 2), whole[:2])
    heads = load_medusa(str(save_heads(tmp_path / "c", PUBLISHED)), target, 1)[1]
    assert heads.num_heads == 1 and torch.equal(heads.logits(FEATURES, 1), whole[:1])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(stored, target, tmp_path):
    folder = save_heads(tmp_path, {name: t.to(stored) for name, t in PUBLISHED.items()})
    exact = load_medusa(str(folder), target, dtype="float32")[1].logits(FEATURES, 3)
    wanted = {name: t.to(stored).float() for name, t in PUBLISHED.items()}
    same = load_medusa(str(save_heads(tmp_path / "wide", wanted)), target)[1].logits(FEATURES, 3)
    assert torch.equal(exact, same)
    if stored != torch.bfloat16:  # what is stored wider is not narrowed
        assert torch.equal(load_medusa(str(folder), target)[1].logits(FEATURES, 3), exact)


def without(name):
    return lambda t: t.pop(name)


def with_tensor(name, *shape, dtype=torch.float32):
    return lambda t: t.update({name: torch.zeros(*shape, dtype=dtype)})


WRONG = {
    "no tensor '2.0.linear.weight'": without("2.0.linear.weight"),
    "no tensor '1.1.linear.bias'": without("1.1.linear.bias"),
    "no tensor '1.2.weight'": without("1.2.weight"),
    "'0.0.linear.weight' has shape .32, 32.; .* it must be .64, 64.": with_tensor(
        "0.0.linear.weight", 32, 32
    ),
    "'1.1.linear.bias' has shape .63.": with_tensor("1.1.linear.bias", 63),
    "'2.2.weight' has shape .100, 64.; .* it must be .101, 64.": with_tensor("2.2.weight", 100, 64),
    "does not use, the first being 'fc.weight'": with_tensor("fc.weight", 64, 128),
    "does not use, the first being '0.3.linear.weight'": with_tensor("0.3.linear.weight", 64, 64),
    "'d2t' must hold ascending tokens": with_tensor("d2t", 5, dtype=torch.int32),
    "ascending tokens of the target, below 101": lambda t: t.update(d2t=torch.tensor([3, 101])),
}


@pytest.mark.parametrize("message", WRONG)
def test_the_tensor_that_does_not_fit_is_named(message, target, tmp_path):
    tensors = dict(PUBLISHED)
    WRONG[message](tensors)
    folder = save_heads(tmp_path, tensors, medusa_num_heads=3, medusa_num_layers=2)
    with pytest.raises(ValueError, match=message):
        load_medusa(str(folder), target)


BAD_CONFIGS = {
    "no 'medusa_num_heads': these are no Medusa heads": {"medusa_num_heads": ...},
    "no 'medusa_num_layers'": {"medusa_num_layers": ...},
    "medusa_num_heads must be an integer from 1": {"medusa_num_heads": 0},
    "medusa_num_layers must be an integer of at least 1": {"medusa_num_layers": 0},
    "medusa_choices must be a list of lists": {"medusa_choices": [0, 1]},
    r"medusa_choices: \[0, 1, 0\] comes without \[0, 1\]": {"medusa_choices": [[0], [0, 1, 0]]},
    "lists of candidates from 0 on": {"medusa_choices": [[0], [-1]]},
    r"not \[\]": {"medusa_choices": [[]]},
    "medusa_accuracies must hold, for each head": {"medusa_accuracies": [[0.5]]},
    "shares from 0 to 1": {"medusa_accuracies": [[0.5], [1.5], [0.1]]},
}


@pytest.mark.parametrize("message", BAD_CONFIGS)
def test_a_config_that_can_not_be_is_refused(message):
    values = {**config_of(PUBLISHED), **BAD_CONFIGS[message]}
    with pytest.raises(ValueError, match=message):
        MedusaConfig.from_hf({k: v for k, v in values.items() if v is not ...})


def test_a_pickle_that_is_no_state_dict_is_refused(target, tmp_path):
    folder = save_heads(tmp_path, PUBLISHED, "medusa_lm_head.pt")
    for content in ([1, 2], {"a": 1}, torch.nn.Linear(2, 2)):
        torch.save(content, folder / "medusa_lm_head.pt")
        with pytest.raises(ValueError, match=r"medusa_lm_head\.pt"):
            load_medusa(str(folder), target)


def test_by_name_and_without_one(target, tmp_path):
    folder = save_heads(tmp_path, SHARED)
    for model in (str(folder), None):
        spec = SpeculativeConfig("medusa", 3, model=model)
        config = EngineConfig("toy", speculative_config=spec)
        whole = Target(target, ToyTokenizer(), config)
        if model:
            assert make_proposer(whole).heads.num_heads == 3
        else:
            with pytest.raises(ValueError, match="'medusa' needs a model"):
                make_proposer(whole)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="these are no Medusa heads"):
        load_medusa(str(folder), target)
