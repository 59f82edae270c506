"""The draft-model proposer with the native decoder: its KV byte for byte, and what it loads."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.decoder import Model
from specfast.models.drafts import fit_vocabulary, load_draft_for
from specfast.models.gguf_tokenizer import gguf_tokenizer
from specfast.models.loader import load
from specfast.ops import pack_linear
from specfast.proposers import growing
from specfast.proposers.draft_model import DraftModelProposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.tokenizer import Tokenizer
from tests.unit.exact import raw
from tests.unit.test_gguf_tokenizer import byte_level_metadata
from tests.unit.test_loader import save
from tests.unit.test_tokenizer import byte_level_backend
from tests.unit.tiny_models import BLOCK_SIZE, native, new_cache, oracle, tail_rows
from tests.unit.toy_model import ToyTokenizer

GREEDY = {"temperature": 0.0}
COUPLED = {"temperature": 1.0, "seed": 5}
V = 101


def make_engine(model, draft=None, k=4, nodes=None, **config) -> Engine:
    spec = SpeculativeConfig("draft_model", k, max_tree_nodes=nodes, policy="fixed")
    values = {"num_blocks": 80, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 64}
    values |= {"max_num_seqs": 8, **config}
    settings = EngineConfig("tiny", speculative_config=spec if draft else None, **values)
    target = Target(model, ToyTokenizer(), settings)
    proposer = DraftModelProposer(spec, target, draft) if draft else None
    return Engine(model, ToyTokenizer(), settings, proposer)


def run(engine: Engine, prompts, params, after_step=lambda: None) -> list[list[int]]:
    requests = [engine.add_request(p, params) for p in prompts]
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()
        after_step()
    return [r.seqs[0].output_token_ids for r in requests]


def prompts_of(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(3, V) for _ in range(13)]
    return [
        [*shared[: rng.choice([0, 6, 13])], *(rng.randrange(3, V) for _ in range(1 + 3 * i))]
        for i in range(count)
    ]


def params_of(sampling, count=20, **more) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **sampling, **more)


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(growing, "MIN_SURVIVAL", 0.0)
    monkeypatch.setattr(growing, "MIN_EXTENDED", 0.0)


@pytest.fixture(scope="module")
def target() -> Model:
    return native(oracle("llama3"))


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("nodes", [None, 12])
@pytest.mark.parametrize("family", ["mistral", "qwen3", "smollm3_windows"])
def test_on_and_off_are_the_same_bytes(eager, target, family, nodes, sampling):
    prompts, params = prompts_of(1, 6), params_of(sampling)
    off = run(make_engine(target), prompts, params)
    engine = make_engine(target, native(oracle(family)), nodes=nodes, max_num_batched_tokens=24)
    assert run(engine, prompts, params) == off
    assert engine.metrics.stats.num_draft_tokens > 100


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_target_that_drafts_for_itself_accepts_everything(eager, target, sampling):
    prompts, params = prompts_of(2, 6), params_of(sampling)
    engine = make_engine(target, target, max_num_seqs=6)
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    stats = engine.metrics.stats
    assert stats.num_draft_tokens == stats.num_accepted_tokens > 50


@pytest.mark.parametrize("nodes", [None, 12])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_drafts_kv_is_that_of_a_fresh_prefill(eager, target, nodes, dtype):
    """After every step, rejections and preemptions included, byte for byte."""
    draft, again = native(oracle("qwen3")), native(oracle("qwen3"))
    engine = make_engine(
        target, draft, nodes=nodes, num_blocks=26, max_num_batched_tokens=16, kv_cache_dtype=dtype
    )
    kv, checked = engine.proposer._kv, []

    def check():
        for seq in engine.scheduler.running:
            epoch, _, end = kv._ranges.get(seq.seq_id, (None, 0, 0))
            if epoch == seq.kv_epoch and end:
                blocks = seq.block_table[: -(-end // BLOCK_SIZE)]
                got = kv.cache.data[:, :, blocks].flatten(2, 3)[:, :, :end]
                fresh = new_cache(draft, len(blocks), kv.cache.data.dtype)
                again.forward(tail_rows(seq.token_ids[:end], 0, range(len(blocks))), fresh)
                assert raw(got) == raw(fresh.flatten(2, 3)[:, :, :end])
                checked.append(end)

    run(engine, prompts_of(3, 6), params_of(GREEDY, 30), check)
    stats = engine.metrics.stats
    assert engine.scheduler.stats.num_preempted and len(checked) > 50
    assert stats.num_draft_tokens > stats.num_accepted_tokens


def test_past_the_rotary_table_there_are_no_drafts(eager, target):
    short = native(oracle("qwen2"))
    short = Model(replace(short.config, max_position_embeddings=30), short.weights)
    prompts, params = prompts_of(4, 5), params_of(GREEDY, 40)
    engine = make_engine(target, short)
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    assert not engine.budget._switched_off, "a row past the table was refused"
    assert engine.metrics.stats.num_draft_tokens and engine.metrics.stats.num_plain_steps > 20


@pytest.mark.parametrize("spoil", ["nan", "inf", "random"])
def test_spoilt_weights_change_nothing(eager, target, spoil, caplog):
    draft = native(oracle("qwen2"))
    matrices = draft.weights.arena
    if spoil == "random":
        matrices.copy_(torch.randn(matrices.shape, generator=torch.Generator().manual_seed(1)))
    else:
        matrices[::7] = float(spoil)
    prompts, params = prompts_of(5, 4), params_of(COUPLED)
    engine = make_engine(target, draft, nodes=12)
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    assert not caplog.records


@pytest.mark.parametrize("size", [90, 101, 120])
def test_vocabularies_of_other_sizes(eager, target, size):
    """A target's token that the draft lacks embeds as zeros, one that it has too many is never
    drafted.
    """
    whole = native(oracle("qwen2"))
    rows = torch.arange(size) % V
    embedding = whole.weights.embedding[rows]
    packed = oracle("qwen2").get_output_embeddings().weight.detach()[rows] * (
        1 + rows[:, None] / 50
    )
    weights = replace(whole.weights, embedding=embedding, head=pack_linear(packed))
    draft = fit_vocabulary(Model(replace(whole.config, vocab_size=size), weights), V)
    assert len(draft.weights.embedding) == max(size, V)
    prompts, params = prompts_of(6, 4), params_of(GREEDY)
    engine = make_engine(target, draft)
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    assert not engine.budget._switched_off and engine.metrics.stats.num_draft_tokens > 50


# --- what is loaded ---


def spec_of(model, **more) -> SpeculativeConfig:
    return SpeculativeConfig("draft_model", model=str(model), **more)


def test_a_folder_and_its_dtype(target, tmp_path):
    folder = save("qwen2", tmp_path, torch.bfloat16)
    _, tokenizer = load(str(folder))
    assert load_draft_for(target, tokenizer, spec_of(folder)).config.dtype == torch.bfloat16
    wide = load_draft_for(target, tokenizer, spec_of(folder, draft_dtype="float32"))
    assert wide.config.dtype == torch.float32
    with pytest.raises(ValueError, match="draft_dtype"):
        spec_of(folder, draft_dtype="int4")
    with pytest.raises(ValueError, match="needs a model"):
        load_draft_for(target, tokenizer, SpeculativeConfig("draft_model"))


def with_backend(change) -> Tokenizer:
    """The tests' byte-level tokenizer with something changed in its JSON."""
    content = json.loads(byte_level_backend().to_str())
    change(content)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), {})


def swap_ids(content):
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def drop_token(content):
    content["added_tokens"].pop()


def swap_merges(content):
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def drop_merge(content):
    content["model"]["merges"].pop()


def make_plain(content):
    content["added_tokens"][0]["special"] = False


MISMATCHES = {
    "ids": (
        swap_ids,
        r"the token 'a' has id 97 in the target's vocabulary and has id 98 in its own",
    ),
    "missing": (drop_token, r"'\u6f22' has id \d+ .* and does not exist in its own"),
    "order of merges": (swap_merges, r"merge 0 is 'h' \+ 'e' for the target and 'l' \+ 'l'"),
    "number of merges": (drop_merge, r"merge 4 is .* for the target and none for its own"),
    "special": (make_plain, r"'<s>' is a special token in the target's tokenizer alone"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_tokenizer_that_differs_is_named(case):
    change, message = MISMATCHES[case]
    whole, other = with_backend(lambda content: None), with_backend(change)
    assert whole.difference_from(whole) is None
    assert re.search(message, whole.difference_from(other))
    assert other.difference_from(whole)


def test_kinds_of_tokenizers_differ():
    vocab = {token: i for i, token in enumerate("ab")}
    kinds = []
    for model in (models.BPE(vocab, []), models.WordLevel(vocab, unk_token="a")):
        backend = tokenizers.Tokenizer(model)
        backend.decoder = decoders.ByteLevel()
        kinds.append(Tokenizer(backend, {}))
    assert "BPE and its own WordLevel" in kinds[0].difference_from(kinds[1])


def test_padding_is_no_difference():
    metadata = byte_level_metadata(pre="qwen2")
    padded = byte_level_metadata(pre="qwen2")
    padded["tokenizer.ggml.tokens"] += [f"[PAD{n}]" for n in range(260, 300)]
    assert gguf_tokenizer(metadata).difference_from(gguf_tokenizer(padded)) is None


def test_the_refusal_says_which_model_and_why(target, tmp_path):
    folder = save("qwen2", tmp_path)
    other = with_backend(swap_ids)
    with pytest.raises(ValueError, match=rf"{folder} can't draft .*'a' has id 98.*same tokenizer"):
        load_draft_for(target, other, spec_of(folder))


def reduced_folder(tmp_path, d2t):
    """A tied draft that knows the tokens of d2t, as `specfast train draft` writes it."""
    folder = save("llama_tied", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    t2d = torch.zeros(V, dtype=torch.int32)
    t2d[d2t.long()] = torch.arange(len(d2t), dtype=torch.int32)
    embedding = tensors["model.embed_tokens.weight"][d2t.long().clamp(max=V - 1)].clone()
    tensors |= {"model.embed_tokens.weight": embedding, "d2t": d2t, "t2d": t2d}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": len(d2t)}))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


def test_a_reduced_vocabulary_without_a_tokenizer_of_its_own(eager, target, tmp_path):
    d2t = torch.arange(2, V, 3, dtype=torch.int32)
    draft = load_draft_for(
        target, with_backend(lambda c: None), spec_of(reduced_folder(tmp_path, d2t))
    )
    prompts, params = prompts_of(7, 4), params_of(COUPLED)
    engine = make_engine(target, draft, nodes=12)
    drafted = set()
    propose = engine.proposer.propose

    def recording(batch):
        proposal = propose(batch)
        drafted.update(proposal.tokens.flatten().tolist())
        return proposal

    engine.proposer.propose = recording
    assert run(engine, prompts, params) == run(make_engine(target), prompts, params)
    assert drafted - {-1} <= set(d2t.tolist()) and len(drafted) > 10


def test_a_draft_for_another_vocabulary_is_refused(target, tmp_path):
    folder = reduced_folder(tmp_path, torch.arange(2, V, 3, dtype=torch.int32))
    smaller = Model(replace(target.config, vocab_size=80), target.weights)
    with pytest.raises(ValueError, match="made for a target with a vocabulary of 101, not 80"):
        load_draft_for(smaller, with_backend(lambda c: None), spec_of(folder))
