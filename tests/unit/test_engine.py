"""The engine over a target that is all bookkeeping: speculation and paging must be invisible."""

import itertools
import random

import numpy as np
import pytest
import torch

from specfast import ops
from specfast._host import philox
from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.proposers.base import Needs
from specfast.proposers.ngram import NgramProposer
from specfast.sampler import fork_seed, resolve_seed
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.toy_model import ToyModel, ToyTokenizer
from tests.unit.toy_proposers import TreeProposer

GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 5}


def make_engine(proposer=None, model=None, k=4, policy="fixed", **config) -> Engine:
    spec = SpeculativeConfig("test", k, max_tree_nodes=32, policy=policy) if proposer else None
    values = {"num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 64, **config}
    settings = EngineConfig("toy", speculative_config=spec, **values)
    return Engine(model or ToyModel(), ToyTokenizer(), settings, proposer)


def run(engine: Engine, prompts, params):
    """Drives every request to its end, the pool's invariants checked after each step."""
    if isinstance(params, SamplingParams):
        params = [params] * len(prompts)
    requests = [engine.add_request(p, s) for p, s in zip(prompts, params)]
    blocks = engine.scheduler.blocks
    for _ in range(3000):
        if not engine.has_unfinished:
            break
        engine.step()
        engine.check_integrity()
        for seq in engine.scheduler.unfinished:
            needed = blocks.num_blocks_for(seq.num_computed_tokens)
            assert len(seq.block_table) == needed, "a step kept blocks that hold nothing"
    assert not engine.has_unfinished, "no progress"
    assert blocks.num_free_blocks == blocks.num_blocks
    return [r.output() for r in requests]


def tokens(outputs):
    return [[c.token_ids for c in o.outputs] for o in outputs]


def target_stream(prompt, params: SamplingParams, count: int) -> list[int]:
    """The target's own stream, one token after the other, with neither engine nor cache."""
    model, ids = ToyModel(), list(prompt)
    for _ in range(count):
        digest = model._digest([t + 1 for t in ids])
        logits = model.logits(
            torch.tensor([[float(digest)]], dtype=torch.float64), torch.tensor([0])
        )
        token, status = torch.zeros(2, 1, dtype=torch.int32)
        ops.sample_rows(
            logits,
            torch.tensor([params.temperature]),
            torch.tensor([params.top_k], dtype=torch.int32),
            torch.tensor([params.top_p]),
            torch.tensor([params.min_p]),
            torch.tensor([params.seed or 0]),
            torch.tensor([len(ids)], dtype=torch.int32),
            token,
            status,
        )
        ids.append(int(token))
    return ids


def prompts_of(rng: random.Random, count: int) -> list[list[int]]:
    shared = [rng.randrange(1, 40) for _ in range(11)]
    return [
        [
            *shared[: rng.choice([0, 5, 11])],
            *(rng.randrange(1, 40) for _ in range(rng.randint(1, 20))),
        ]
        for _ in range(count)
    ]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(12))
def test_any_setting_gives_the_targets_own_stream(seed, sampling):
    rng = random.Random(seed)
    params = SamplingParams(max_tokens=24, ignore_eos=True, **sampling)
    prompts = prompts_of(rng, rng.randint(1, 7))
    streams = {tuple(p): target_stream(p, params, 24) for p in prompts}
    proposer = TreeProposer(streams, wrong=rng.randint(0, 3), miss=rng.choice([0.0, 0.3, 1.0]))
    engine = make_engine(
        proposer if seed % 4 else None,
        k=rng.randint(1, 7),
        num_blocks=rng.choice([30, 60]),
        block_size=rng.choice([2, 4, 7]),
        max_num_seqs=rng.randint(1, 5),
        max_num_batched_tokens=rng.choice([5, 9, 64]),
        enable_prefix_caching=rng.random() < 0.7,
    )
    outputs = run(engine, prompts, params)
    for prompt, output in zip(prompts, outputs):
        assert prompt + output.outputs[0].token_ids == streams[tuple(prompt)]


def test_events_happen_and_stay_invisible():
    """Preemption, prefix hits, chunk splits and compaction, each seen, none visible."""
    rng = random.Random(3)
    params = SamplingParams(max_tokens=30, ignore_eos=True, **GREEDY)
    prompts = prompts_of(rng, 8)
    streams = {tuple(p): target_stream(p, params, 30) for p in prompts}
    engine = make_engine(
        TreeProposer(streams, wrong=1, miss=0.1),
        num_blocks=24,
        max_num_seqs=8,
        max_num_batched_tokens=12,
    )
    compacted = []
    cache = engine.runner.cache
    original = cache.compact
    cache.compact = lambda *a: (compacted.append(1), original(*a))  # type: ignore[method-assign]
    outputs = run(engine, prompts, params)
    assert [p + o.outputs[0].token_ids for p, o in zip(prompts, outputs)] == list(streams.values())
    stats = engine.scheduler.stats
    assert (
        stats.num_preempted and stats.num_prefix_hit_tokens and stats.num_chunk_splits and compacted
    )
    assert engine.metrics.stats.num_accepted_tokens > 0


def test_trees_accept_what_a_chain_accepts_and_more_branches_never_less():
    params = SamplingParams(max_tokens=40, ignore_eos=True, **GREEDY)
    prompt = [3, 1, 4]
    streams = {tuple(prompt): target_stream(prompt, params, 40)}
    lengths = []
    for wrong in (0, 1, 3):
        engine = make_engine(TreeProposer(streams, wrong=wrong), k=5)
        run(engine, [prompt], params)
        lengths.append(engine.metrics.stats.acceptance_length)
    assert lengths[0] == lengths[1] == lengths[2] > 5


def test_a_stop_at_every_position_of_an_accepted_run_and_every_length_cap():
    prompt = [3, 1, 4]
    greedy = SamplingParams(max_tokens=8, ignore_eos=True, **GREEDY)
    stream = target_stream(prompt, greedy, 12)
    proposer_streams = {tuple(prompt): stream}
    output = stream[len(prompt) :]
    for at, cap in itertools.product(range(8), range(1, 9)):
        stop = output[at]
        first = output.index(stop)
        params = SamplingParams(max_tokens=cap, ignore_eos=True, stop_token_ids=[stop], **GREEDY)
        engine = make_engine(TreeProposer(proposer_streams, wrong=1), k=6)
        (result,) = run(engine, [prompt], params)
        choice = result.outputs[0]
        expected = output[: min(first + 1, cap)]
        assert choice.token_ids == expected
        assert choice.finish_reason == ("stop" if first < cap else "length")
        stats = engine.metrics.stats
        assert stats.num_emitted_tokens == len(expected)
        assert stats.num_accepted_tokens == sum(choice.accepted) <= len(expected)


def test_eos_within_an_accepted_run_ends_text_tokens_and_counts():
    prompt = [3, 1, 4]
    params = SamplingParams(max_tokens=20, **GREEDY)
    stream = target_stream(prompt, params, 20)
    engine = make_engine(TreeProposer({tuple(prompt): stream}, wrong=0), k=8)
    engine.tokenizer.eos_token_ids = frozenset({stream[len(prompt) + 4]})
    (result,) = run(engine, [prompt], params)
    choice = result.outputs[0]
    assert choice.token_ids == stream[len(prompt) :][: len(choice.token_ids)]
    assert choice.token_ids[-1] in engine.tokenizer.eos_token_ids
    assert choice.text == "".join(ToyTokenizer.piece(t) for t in choice.token_ids[:-1])


def test_a_stop_string_within_an_accepted_run():
    prompt = [3, 1, 4]
    params = SamplingParams(max_tokens=20, ignore_eos=True, **GREEDY)
    output = target_stream(prompt, params, 20)[len(prompt) :]
    stop = ToyTokenizer.piece(output[2])[1:] + ToyTokenizer.piece(output[3])[:2]
    engine = make_engine(TreeProposer({tuple(prompt): prompt + output}, wrong=0), k=8)
    stopping = SamplingParams(max_tokens=20, ignore_eos=True, stop=stop, **GREEDY)
    (result,) = run(engine, [prompt], stopping)
    assert result.outputs[0].text == ToyTokenizer().decode(output[:2]) + "<"
    assert result.outputs[0].token_ids == output[:4]


def test_per_request_speculation():
    prompt, other = [3, 1, 4], [2, 7]
    params = SamplingParams(max_tokens=16, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 16) for p in (prompt, other)}
    engine = make_engine(TreeProposer(streams, wrong=0), k=4)
    off = SamplingParams(max_tokens=16, ignore_eos=True, speculative=False, **GREEDY)
    two = SamplingParams(
        max_tokens=16, ignore_eos=True, speculative={"num_speculative_tokens": 2}, **GREEDY
    )
    outputs = run(engine, [prompt, other], [off, two])
    assert not any(outputs[0].outputs[0].accepted)
    assert outputs[0].metrics.num_drafts == 0
    assert 0 < outputs[1].metrics.num_draft_tokens <= 2 * outputs[1].metrics.num_drafts


def test_off_never_calls_the_proposer():
    class Untouchable(TreeProposer):
        def propose(self, batch):
            raise AssertionError("called while off")

    engine = make_engine(Untouchable({}))
    off = SamplingParams(max_tokens=5, ignore_eos=True, speculative=False, **GREEDY)
    run(engine, [[1, 2]], off)


def test_choices_have_noise_of_their_own_and_the_first_keeps_the_seed():
    sampled = {**SAMPLED, "max_tokens": 12, "ignore_eos": True}
    one = tokens(run(make_engine(), [[5, 6, 7]], SamplingParams(**sampled)))[0]
    four = tokens(run(make_engine(), [[5, 6, 7]], SamplingParams(n=4, **sampled)))[0]
    assert four[0] == one[0]
    assert len({tuple(t) for t in four}) == 4
    again = tokens(run(make_engine(max_num_seqs=1), [[5, 6, 7]], SamplingParams(n=4, **sampled)))[0]
    assert again == four


def test_without_a_seed_requests_differ():
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0)
    outputs = tokens(run(make_engine(), [[5, 6, 7]] * 3, params))
    assert len({tuple(o[0]) for o in outputs}) == 3


def test_cancel_frees_blocks_and_leaves_others_alone():
    params = SamplingParams(max_tokens=20, ignore_eos=True, **GREEDY)
    alone = tokens(run(make_engine(), [[9, 8]], params))
    engine = make_engine()
    doomed = engine.add_request([5] * 10, params)
    waiting = engine.add_request([6] * 10, params)
    kept = engine.add_request([9, 8], params)
    engine.step()
    engine.cancel(doomed.request_id)
    engine.cancel(waiting.request_id)
    engine.cancel("nobody")
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()
    assert doomed.output().outputs[0].finish_reason == "abort"
    assert waiting.output().outputs[0].finish_reason == "abort"
    assert kept.output().outputs[0].token_ids == alone[0][0]
    engine.cancel(kept.request_id)


def test_cancelling_everything_leaves_an_idle_engine():
    engine = make_engine()
    request = engine.add_request([1, 2, 3], SamplingParams(max_tokens=5))
    engine.cancel(request.request_id)
    engine.step()
    assert not engine.has_unfinished and request.output().outputs[0].finish_reason == "abort"


class PoisonedModel(ToyModel):
    """NaN logits, or a NaN in the KV, wherever a row sees token 13."""

    def __init__(self, kv: bool) -> None:
        super().__init__()
        self.kv = kv

    def forward(self, rows, kv_cache):
        hidden = super().forward(rows, kv_cache)
        if self.kv:
            rows.status[rows.token_ids == 13] |= ops.ROW_NON_FINITE_KV
        else:
            hidden[rows.token_ids == 13] = -1
        return hidden

    def logits(self, hidden, index):
        out = super().logits(hidden.abs(), index)
        out[hidden[index, 0] < 0] = float("nan")
        return out


def test_a_request_for_drafts_that_nobody_makes_is_refused():
    params = SamplingParams(speculative={"num_speculative_tokens": 2})
    with pytest.raises(ValueError, match="speculative_config"):
        make_engine().add_request([1, 2], params)
    off = SamplingParams(max_tokens=2, speculative=False)
    run(make_engine(), [[1, 2]], off)


@pytest.mark.parametrize("kv", [False, True], ids=["logits", "kv"])
def test_a_nan_ends_its_own_request_only(kv):
    params = SamplingParams(max_tokens=10, ignore_eos=True, **GREEDY)
    healthy = tokens(run(make_engine(), [[9, 8, 7]], params))
    outputs = run(make_engine(model=PoisonedModel(kv)), [[1, 13], [9, 8, 7]], params)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "not a number" in outputs[0].outputs[0].stop_reason
    assert tokens(outputs[1:]) == healthy


@pytest.mark.parametrize("kv", [False, True], ids=["logits", "kv"])
def test_a_nan_in_a_rejected_draft_is_not_visible(kv):
    params = SamplingParams(max_tokens=12, ignore_eos=True, **GREEDY)
    prompt = [9, 8, 7]
    stream = target_stream(prompt, params, 12)
    assert 13 not in stream
    wrong = {tuple(prompt): [13 if i % 3 == 0 and i > 3 else t for i, t in enumerate(stream)]}
    engine = make_engine(TreeProposer(wrong, wrong=0), model=PoisonedModel(kv))
    (output,) = run(engine, [prompt], params)
    assert prompt + output.outputs[0].token_ids == stream
    assert engine.metrics.stats.num_draft_tokens > engine.metrics.stats.num_accepted_tokens


@pytest.mark.parametrize(
    "prompt, params, word",
    [
        ([], {}, "empty"),
        ([1] * 256, {}, "256 tokens"),
        ([1, 40], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1], {"speculative": {"num_speculative_tokens": 9}}, "above the engine's"),
    ],
)
def test_inadmissible_requests_are_refused_and_change_nothing(prompt, params, word):
    engine = make_engine(NgramProposer(SpeculativeConfig("ngram"), None))
    good = engine.add_request([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    with pytest.raises(ValueError, match=word):
        engine.add_request(prompt, SamplingParams(**params))
    while engine.has_unfinished:
        engine.step()
    assert good.output().outputs[0].finish_reason == "length"


def test_blocks_of_a_request_that_failed_are_no_prefix_for_others():
    model = PoisonedModel(kv=True)
    engine = make_engine(model=model)
    params = SamplingParams(max_tokens=3, ignore_eos=True, **GREEDY)
    run(engine, [[1, 2, 3, 4, 5, 6, 7, 8, 13, 9]], params)
    hits = engine.scheduler.stats.num_prefix_hit_tokens
    run(engine, [[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]], params)
    assert engine.scheduler.stats.num_prefix_hit_tokens == hits


def test_nothing_is_drafted_that_could_not_be_emitted():
    prompt = [3, 1, 4]
    params = SamplingParams(max_tokens=6, ignore_eos=True, **GREEDY)
    stream = target_stream(prompt, params, 6)
    engine = make_engine(TreeProposer({tuple(prompt): stream}, wrong=0), k=8)
    run(engine, [prompt], params)
    stats = engine.metrics.stats  # six tokens in one step: five drafts and the bonus
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 5)


def test_seeds_are_64_bits_with_a_sign_and_forks_use_them_all():
    def noise(seed, choice=0):
        return fork_seed(resolve_seed(SamplingParams(seed=seed)), choice)

    assert noise(-1) == 2**64 - 1 != noise(1)
    forks = {noise(s, c) for s in (0, 1, 2**32, 2**63, -1) for c in range(1, 20)}
    assert len(forks) == 5 * 19
    assert len({f >> 32 for f in forks}) > 90 and len({f % 2**32 for f in forks}) > 90
    for purpose in range(4):  # of a token's noise, its coin, residual and drafts
        low, high, _, _ = philox(5, (3, purpose, 0, 0))
        assert fork_seed(5, 3) != low | high << 32, "those words are drawn with already"


def test_every_bit_of_a_seed_tells():
    law = {"temperature": 1.0, "max_tokens": 16, "ignore_eos": True}
    seeds = [5, 5 + 2**31, 5 + 2**32, 5 + 2**63]
    outputs = run(make_engine(), [[5, 6, 7]] * 4, [SamplingParams(seed=s, **law) for s in seeds])
    assert len({tuple(o[0]) for o in tokens(outputs)}) == 4


def test_numpy_ids_are_one_prompt():
    ids = np.array([3, 1, 4])
    params = SamplingParams(max_tokens=4, ignore_eos=True, **GREEDY)
    outputs = run(make_engine(), [ids, [3, 1, 4]], params)
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert all(type(t) is int for t in outputs[0].prompt_token_ids)
    with pytest.raises(ValueError, match="SamplingParams"):
        make_engine().add_request([1], {"n": 1})


def test_a_cache_that_holds_no_block_is_refused():
    with pytest.raises(ValueError, match="kv_cache_memory=3 holds no block"):
        make_engine(num_blocks=None, kv_cache_memory=3)


def test_the_context_limit_ends_with_length_and_drafts_stay_within():
    params = SamplingParams(max_tokens=None, ignore_eos=True, **GREEDY)
    prompt = [3, 1, 4]
    stream = target_stream(prompt, params, 40)
    engine = make_engine(TreeProposer({tuple(prompt): stream}, wrong=1), max_model_len=21, k=6)
    (output,) = run(engine, [prompt], params)
    assert prompt + output.outputs[0].token_ids == stream[:21]
    assert output.outputs[0].finish_reason == "length"


def test_a_pool_too_small_for_the_model_bounds_the_context():
    engine = make_engine(num_blocks=5, block_size=4)
    assert engine.max_model_len == 20
    with pytest.raises(ValueError, match="KV blocks"):
        make_engine(num_blocks=5, block_size=4, max_model_len=21)
    with pytest.raises(ValueError, match="above the model's context"):
        make_engine(max_model_len=1000)


def test_scratch_slots_come_from_spare_blocks_and_cost_no_draft():
    class Scratching(TreeProposer):
        needs = Needs(scratch_slots=30)

        def propose(self, batch):
            for seq, base, limit in zip(batch.seqs, batch.node_base, batch.draft_limits):
                if limit[1]:
                    room.append(len(seq.block_table) * 4 - int(base))
                    assert room[-1] >= limit[1]
            return super().propose(batch)

    params = SamplingParams(max_tokens=30, ignore_eos=True, **GREEDY)
    prompts = prompts_of(random.Random(3), 4)
    streams = {tuple(p): target_stream(p, params, 30) for p in prompts}
    for num_blocks in (200, 24):
        room: list[int] = []
        engine = make_engine(Scratching(streams, wrong=1), num_blocks=num_blocks)
        outputs = run(engine, prompts, params)
        assert [p + o.outputs[0].token_ids for p, o in zip(prompts, outputs)] == list(
            streams.values()
        )
        assert (min(room) >= 30) == (num_blocks == 200) and engine.metrics.stats.num_drafts


def test_metrics_agree_with_each_other():
    rng = random.Random(1)
    params = SamplingParams(max_tokens=25, ignore_eos=True, **GREEDY)
    prompts = prompts_of(rng, 5)
    streams = {tuple(p): target_stream(p, params, 25) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong=0, miss=0.3), k=5)
    outputs = run(engine, prompts, params)
    s = engine.metrics.stats
    assert s.num_emitted_tokens == sum(len(o.outputs[0].token_ids) for o in outputs)
    assert s.num_accepted_tokens == sum(s.num_accepted_per_pos)
    assert s.num_accepted_tokens == sum(sum(o.outputs[0].accepted) for o in outputs)
    assert list(s.num_accepted_per_pos) == sorted(s.num_accepted_per_pos, reverse=True)
    assert s.num_draft_tokens == sum(o.metrics.num_draft_tokens for o in outputs)
    assert 1 < s.acceptance_length <= 6 and 0 < s.acceptance_rate < 1
    assert np.isclose(
        s.tokens_per_iteration, s.num_emitted_tokens / (s.num_drafts + s.num_plain_steps)
    )


@pytest.mark.parametrize("wrong", ["1", 1.5, None, True, [1]], ids=repr)
def test_what_is_no_token_id_is_refused(wrong):
    engine = make_engine()
    with pytest.raises(ValueError, match="is no id"):
        engine.add_request([3, wrong], SamplingParams(max_tokens=2, **GREEDY))
    assert not engine.has_unfinished
