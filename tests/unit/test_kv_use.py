"""What requests had of the KV cache: tokens found there, and the most blocks held in a step."""

import random
from dataclasses import replace

import pytest

from specfast.sampling_params import SamplingParams
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer

PROMPT = list(range(1, 14))  # three blocks of 4, and a token
PARAMS = SamplingParams(max_tokens=9, ignore_eos=True, **GREEDY)


def test_a_request_alone_holds_its_tokens_but_the_last():
    engine = make_engine()
    (output,) = run(engine, [PROMPT], PARAMS)
    m = output.metrics
    assert (m.num_prefix_query_tokens, m.num_prefix_hit_tokens) == (13, 0)
    assert m.max_kv_blocks == engine.scheduler.stats.max_blocks == 6, "13 + 8 tokens"


def test_the_room_of_drafts_is_held_though_they_are_refused():
    wrong = {tuple(PROMPT): [*PROMPT, *[0] * 30]}
    engine = make_engine(TreeProposer(wrong, wrong=0), k=8)
    engine.add_request(PROMPT, PARAMS)
    engine.step()
    (request,) = engine.requests.values()
    assert request.metrics.max_kv_blocks == 12, "13 tokens and a tree of 32, while it runs"
    assert len(request.seqs[0].block_table) == 4, "what was refused is given back"


def test_hits_are_those_of_the_request():
    engine = make_engine(max_num_seqs=1)
    first, again, other = run(
        engine, [PROMPT, PROMPT, [7] * 9], [PARAMS, replace(PARAMS, n=2), PARAMS]
    )
    found = [
        (o.metrics.num_prefix_query_tokens, o.metrics.num_prefix_hit_tokens)
        for o in (first, again, other)
    ]
    assert found == [(13, 0), (26, 24), (9, 0)], "each choice of the second one found three blocks"
    assert again.metrics.max_kv_blocks == 12, "shared blocks count for each choice"


@pytest.mark.parametrize("num_blocks", [20, 60], ids=["scarce", "ample"])
def test_an_engines_figures_are_those_of_its_requests(num_blocks):
    """By definition, slowly: tables as they stand when a step starts to compute."""
    rng = random.Random(3)
    start = [rng.randrange(40) for _ in range(9)]
    prompts = [start + p for p in prompts_of(rng, 6)]
    params = replace(PARAMS, max_tokens=20)
    streams = {tuple(p): target_stream(p, params, 20) for p in prompts}
    engine = make_engine(
        TreeProposer(streams, wrong=1, miss=0.3), num_blocks=num_blocks, max_num_seqs=4
    )
    forward, most, at_once = engine.runner.forward, {}, []

    def watched(batch, proposal):
        for seq in batch.seqs:
            most[seq.seq_id] = max(most.get(seq.seq_id, 0), len(seq.block_table))
        at_once.append(len({b for s in engine.scheduler.running for b in s.block_table}))
        return forward(batch, proposal)

    engine.runner.forward = watched
    outputs = run(engine, prompts, params)
    stats = engine.scheduler.stats
    assert (stats.num_preempted > 0) == (num_blocks == 20)
    assert [o.metrics.max_kv_blocks for o in outputs] == [most[i] for i in range(6)]
    assert stats.max_blocks == max(at_once)
    for name in ("num_prefix_query_tokens", "num_prefix_hit_tokens"):
        assert sum(getattr(o.metrics, name) for o in outputs) == getattr(stats, name) > 0
