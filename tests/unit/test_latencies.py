"""Latencies of requests, as histograms."""

import random

import pytest

from specfast.latencies import BOUNDS, Histogram, Latencies
from specfast.request_metrics import RequestMetrics
from specfast.sampling_params import SamplingParams
from tests.unit.test_engine import GREEDY, make_engine, prompts_of, run
from tests.unit.test_metrics import output


def test_a_bound_belongs_to_its_bucket():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 6.0)]
    assert histogram.total == 107.5
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_a_request_from_arrival_to_end():
    latencies, request = Latencies(), RequestMetrics(arrival_time=10.0)
    for now, step in [
        (12.0, output(1, 0, 0)),
        (13.0, output(3, 4, 2)),
        (13.0, output(2, 4, 1)),  # another choice, in the same step
        (16.0, output(1, 0, 0)),
    ]:
        latencies.emitted(request, now)
        request.observe(step, now)
    latencies.finished(request, 16.0)
    totals = {name: h.total for name, h in vars(latencies).items()}
    counts = {name: sum(h.counts) for name, h in vars(latencies).items()}
    assert totals == {
        "time_to_first_token": 2.0,
        "inter_token_latency": 4.0,
        "request_time_per_output_token": pytest.approx(4 / 6),
        "e2e_request_latency": 6.0,
    }
    assert list(counts.values()) == [1, 2, 1, 1]


def test_who_got_nothing_had_no_latency():
    latencies = Latencies()
    latencies.finished(RequestMetrics(), 1e9)
    assert not any(sum(h.counts) for h in vars(latencies).values())
    one = RequestMetrics(arrival_time=0.0, token_times=[1.0])
    latencies.finished(one, 1.0)
    assert sum(latencies.e2e_request_latency.counts) == 1
    assert sum(latencies.request_time_per_output_token.counts) == 0


def test_an_engine_observes_every_request_once():
    engine = make_engine()
    prompts = prompts_of(random.Random(2), 5)
    outputs = run(engine, prompts, SamplingParams(max_tokens=6, ignore_eos=True, **GREEDY))
    counts = {name: sum(h.counts) for name, h in vars(engine.latencies).items()}
    assert counts == {
        "time_to_first_token": 5,
        "inter_token_latency": 25,
        "request_time_per_output_token": 5,
        "e2e_request_latency": 5,
    }
    spans = [o.metrics.finish_time - o.metrics.arrival_time for o in outputs]
    assert engine.latencies.e2e_request_latency.total == pytest.approx(sum(spans))
