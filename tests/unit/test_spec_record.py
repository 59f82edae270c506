"""vLLM's per-request record: its names, its figures, and the identities that tools check."""

import json
import random

import pytest

from specfast.request_metrics import RequestMetrics
from specfast.sampling_params import SamplingParams
from specfast.spec_record import SpeculativeDecodingRecord
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run, target_stream
from tests.unit.toy_proposers import TreeProposer

KEYS = {
    *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"),
    *("acceptance_histogram_by_draft_length", "num_spec_steps", "num_accepted_draft_tokens"),
    *("num_draft_tokens", "num_spec_tokens"),
}


def test_a_record_by_hand():
    record = SpeculativeDecodingRecord(4, (4, 2, 4, 1), (3, 0, 4, 0))
    assert record.to_dict() == {
        "mean_acceptance_length": 1 + 7 / 4,
        "draft_acceptance_rate": 7 / 11,
        "acceptance_histogram": [2, 0, 0, 1, 1],
        "acceptance_histogram_by_draft_length": {
            "1": [1, 0],
            "2": [1, 0, 0],
            "4": [0, 0, 0, 1, 1],
        },
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 11,
        "num_spec_tokens": 4,
    }
    detailed = record.to_dict(detailed=True)
    assert detailed["per_step_accepted"] == [3, 0, 4, 0]
    assert detailed["per_step_drafted"] == [4, 2, 4, 1]
    assert json.loads(json.dumps(detailed)) == detailed


def test_no_step_with_drafts_is_a_record_of_zeros():
    record = SpeculativeDecodingRecord(3, (), ()).to_dict()
    assert record["acceptance_histogram"] == [0, 0, 0, 0] and record["draft_acceptance_rate"] == 0
    assert record["mean_acceptance_length"] == 1 and set(record) == KEYS


@pytest.mark.parametrize(
    "drafted, accepted",
    [((2, 2), (1,)), ((1,), (2,)), ((5,), (5,)), ((1, 1), (2, 1))],
    ids=["a step is missing", "more than drafted", "more than k", "more in one step"],
)
def test_counts_that_contradict_each_other_are_no_record(drafted, accepted):
    with pytest.raises(AssertionError):
        SpeculativeDecodingRecord(4, drafted, accepted)


@pytest.mark.parametrize("wrong", [0, 2], ids=["chains", "trees"])
def test_a_requests_record_holds_the_identities(wrong):
    rng = random.Random(wrong)
    prompts = prompts_of(rng, 4)
    params = SamplingParams(max_tokens=25, ignore_eos=True, **GREEDY)
    streams = {tuple(p): target_stream(p, params, 25) for p in prompts}
    engine = make_engine(TreeProposer(streams, wrong, miss=0.3), k=5)
    for output in run(engine, prompts, params):
        values = output.metrics.speculative_decoding.to_dict(detailed=True)
        histogram = values["acceptance_histogram"]
        assert len(histogram) == 6 and values["num_spec_tokens"] == 5
        assert sum(histogram) == values["num_spec_steps"] == output.metrics.num_drafts > 1
        assert sum(j * n for j, n in enumerate(histogram)) == sum(output.outputs[0].accepted)
        assert values["num_accepted_draft_tokens"] == sum(output.outputs[0].accepted)
        assert values["num_draft_tokens"] == output.metrics.stats.num_draft_positions
        assert (values["num_draft_tokens"] < output.metrics.num_draft_tokens) == (wrong > 0)
        assert all(values["per_step_drafted"])
        by_length = values["acceptance_histogram_by_draft_length"]
        assert [sum(h[j] for h in by_length.values() if j < len(h)) for j in range(6)] == histogram
        assert all(len(h) == int(k) + 1 for k, h in by_length.items())


def test_there_is_none_for_several_choices_nor_without_speculation():
    assert RequestMetrics(num_choices=2, num_spec_tokens=4).speculative_decoding is None
    assert RequestMetrics().speculative_decoding is None
    (output,) = run(make_engine(), [[1, 2, 3]], SamplingParams(max_tokens=3, **GREEDY))
    assert output.metrics.speculative_decoding is None
