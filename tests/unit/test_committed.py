"""The weights that the repository carries: small, with recipe and figures, worth drafting with."""

import json
from pathlib import Path

import pytest

from specfast import LLM, SamplingParams
from specfast.models.committed import DATA, FOLDERS
from specfast.models.loader import load_draft
from specfast.tokenizer import Tokenizer
from specfast.train.card import CARD, RECIPE

ROOT = Path(__file__).parents[2]
MB = 10**6
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.npz")
DRAFTS = ("demo-draft", "tiny-draft-s", "tiny-draft-m")
EAGLES = ("demo-eagle", "tiny-eagle")
MEDUSAS = ("demo-medusa", "tiny-medusa")


def weight_files(folder: Path) -> list[Path]:
    return [path for pattern in WEIGHTS for path in folder.rglob(pattern)]


def size_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def test_all_weights_are_small():
    folders = [ROOT / name for name in ("specfast", "tests", "bench", "docs")]
    assert 0 < size_of([p for f in folders for p in weight_files(f)]) <= 40 * MB
    assert size_of(weight_files(DATA / "demo-draft")) <= 14 * MB
    assert size_of(weight_files(DATA / "demo-eagle")) <= 14 * MB
    assert size_of(weight_files(DATA / "demo-medusa")) <= 3 * MB
    assert size_of(weight_files(DATA / "tiny")) <= 8 * MB
    assert sum(size_of(weight_files(FOLDERS[n])) for n in ("tiny-eagle", "tiny-medusa")) <= 2 * MB


@pytest.mark.parametrize("name", FOLDERS)
def test_recipe_card_and_figures_lie_beside(name):
    folder = FOLDERS[name]
    recipe = json.loads((folder / RECIPE).read_text())
    groups = recipe["recipe"]
    assert any("seed" in settings for settings in groups.values())
    assert groups["loop"]["steps"] > 0
    assert recipe["figures"]["parameters"] == sum_of_parameters(folder)
    card = (folder / CARD).read_text()
    for heading in ("## Figures", "## Recipe", "seed", "specfast train"):
        assert heading in card
    if name in DRAFTS:
        assert recipe["figures"]["acceptance length, k = 4"] > 1.3
        assert groups["corpus"]["prompts"]
    if name in EAGLES:
        assert recipe["figures"]["acceptance length, k = 5"] > 2
        assert groups["corpus"]["prompts"]
    if name in MEDUSAS:
        assert recipe["figures"]["acceptance length, tree of 16"] > 1.5
        assert groups["corpus"]["prompts"]


def sum_of_parameters(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            shape = file.get_slice(name).get_shape()
            size = 1
            for n in shape:
                size *= n
            total += size if name not in ("d2t", "t2d") else 0
    return total


def test_the_family_shares_one_tokenizer():
    with_one = (n for n in FOLDERS if n.startswith("tiny") and n not in (*EAGLES, *MEDUSAS))
    texts = {(FOLDERS[n] / "tokenizer.json").read_text() for n in with_one}
    assert len(texts) == 1
    tokenizer = Tokenizer.from_folder(FOLDERS["tiny"])
    assert 1000 <= tokenizer.vocab_size <= 2048
    assert tokenizer.has_chat_template
    text = "O Romeo, 12 + 30 = 42! \u00fc\u4e2d\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tiny_target_is_of_the_promised_size_with_an_mtp_block():
    parameters = sum_of_parameters(FOLDERS["tiny"])
    assert 2e6 <= parameters <= 2.5e6
    assert load_draft("tiny").config.num_nextn_predict_layers == 1
    assert sum_of_parameters(FOLDERS["tiny-draft-s"]) < sum_of_parameters(FOLDERS["tiny-draft-m"])


def test_the_tiny_target_answers_and_stops():
    llm = LLM("tiny")
    question = "Tom has 3 apples and buys 4 more. How many apples does he have?"
    (answer,) = llm.chat(
        [{"role": "user", "content": question}], SamplingParams(temperature=0, max_tokens=200)
    )
    assert answer.outputs[0].finish_reason == "stop"
    assert "####" in answer.outputs[0].text


def test_the_demos_draft_takes_the_demos_tokens():
    draft = load_draft("demo-draft")
    assert draft.config.vocab_size == 49152 == len(draft.weights.embedding)
    assert draft.config.head_size == len(draft.weights.d2t) == 8192
    assert set(draft.config.windows) == {512} and draft.config.max_position_embeddings == 8192
