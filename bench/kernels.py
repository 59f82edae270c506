"""Every op against torch doing the same and against the memory: pytest bench/kernels.py

On the CPU in SmolLM2-135M's shapes, and where there is a CUDA device there in Llama-3-8B's. Rounds
of ours, torch's and the streaming read that the floor refers to take turns, and the table that ends
the run compares their minima: times drift with the machine, ratios much less. OMP_NUM_THREADS says
how many threads, -k which ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from bench import cases, sampling_cases
from bench.cases import F32, LLAMA3, SMOLLM2, Case, Place
from specfast import ops

FILTERS = tuple(sampling_cases.FILTERS)
# op: the arguments of its cases on the CPU, then on CUDA.
TABLE: dict[Callable[..., Case], tuple[list[tuple], list[tuple]]] = {
    cases.tree_attention: (
        [(1, r, c) for c in (128, 1024, 4096) for r in (1, 5, 8)] + [(1, 512, 2048)],
        [(b, r, 4096) for b in (1, 32) for r in (1, 6, 64)],
    ),
    cases.linear: ([(1,), (5,), (8,), (512,)], []),
    cases.rope_kv_append: ([(1,), (5,), (512,)], [(1,), (192,), (4096,)]),
    cases.kv_append: ([(1,), (5,), (512,)], [(1,), (192,), (4096,)]),
    cases.kv_compact: ([(1, 5)], [(1, 5), (32, 5)]),
    cases.rms_norm: ([(1,), (5,), (512,)], [(1,), (192,), (4096,)]),
    cases.silu_mul: ([(1,), (5,), (512,)], [(1,), (192,), (4096,)]),
    sampling_cases.sample_rows: (
        [(1, v, f) for v in (49152, 131072) for f in FILTERS],
        [(r, 131072, f) for r in (1, 192) for f in FILTERS],
    ),
    sampling_cases.rank_candidates: ([(1, 49152)], [(1, 131072), (192, 131072)]),
    sampling_cases.draw_candidates: ([(1, 49152)], [(1, 131072), (32, 131072)]),
    sampling_cases.accept_path: ([(1, 5), (1, 64)], [(1, 5), (32, 64)]),
    sampling_cases.rejection_sample: ([(1, 5, 49152)], [(1, 5, 131072), (32, 5, 131072)]),
    sampling_cases.typical_sample: ([(1, 5, 49152)], [(1, 5, 131072), (32, 5, 131072)]),
}
STORED_IN_FP32 = (cases.tree_attention, cases.linear)  # as well

Measured = tuple[Callable[..., Case], tuple, Place]


def measured() -> Iterator[Measured]:
    places = [SMOLLM2] + [LLAMA3] * torch.cuda.is_available()
    for op, arguments in TABLE.items():
        for place, chosen in zip(places, arguments):
            for of_case in chosen:
                yield op, of_case, place
                if op in STORED_IN_FP32 and place is SMOLLM2:
                    yield op, of_case, replace(place, storage=F32)


def case_name(case: Measured) -> str:
    op, arguments, place = case
    stored = " fp32" if place.storage is F32 else ""
    return " ".join([place.device, op.__name__, *map(str, arguments)]) + stored


@cache
def stream(place: Place) -> tuple[Callable[[], Any], int]:
    """What moves memory as fast as it goes, and how many bytes."""
    if place.device == "cpu":
        data, sums = torch.ones(1 << 15, 1024, dtype=torch.int32), place.full(1 << 15, 0)
        return lambda: ops.stream_read(data, sums), data.nbytes
    source = torch.ones(1 << 28, device=place.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.nbytes


def seconds(place: Place, call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    if place.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[tuple]]:
    rows: list[tuple] = []
    yield rows
    plugin = request.config.pluginmanager.get_plugin
    with plugin("capturemanager").global_and_fixture_disabled():
        write = plugin("terminalreporter").write_line
        form = "{:<46}{:>10}{:>12}{:>8}{:>10}{:>9}"
        write("\n\n" + form.format("us a call", "ours", "torch's", "ratio", "floor", ""))
        for name, *times, of_floor in rows:
            ours, theirs, floor = (f"{1e6 * t:.1f}" for t in times)
            ratio = f"{times[1] / times[0]:.1f}x"
            write(form.format(name, ours, theirs, ratio, floor, f"{of_floor:.0%}"))


@pytest.mark.parametrize("case", [*measured()], ids=case_name)
def test_kernel(case: Measured, benchmark: Any, table: list[tuple]) -> None:
    make, arguments, place = case
    if not place.has(make.__name__):
        pytest.fail(f"{make.__name__} has no kernel for {place.device} in this build")
    torch.manual_seed(0)
    made = make(place, *arguments)
    (theirs,) = made.theirs.values()
    read, read_bytes = stream(place)
    others: dict[Callable[[], Any], list[float]] = {
        lambda: [theirs(i) for i in range(made.copies)]: [],
        read: [],
    }

    def in_turn() -> None:
        for call, times in others.items():
            times.append(seconds(place, call))

    ours = lambda: seconds(place, lambda: [made.ours(i) for i in range(made.copies)])  # noqa: E731
    rounds = max(5, min(50, int(0.5 / (ours() + sum(seconds(place, call) for call in others)))))
    benchmark.pedantic(ours, setup=in_turn, rounds=rounds, warmup_rounds=1)

    of_torch, of_read = (min(times) for times in others.values())
    of_torch, of_ours = of_torch / made.copies, benchmark.stats.stats.min / made.copies
    floor = made.size * of_read / read_bytes
    benchmark.extra_info.update(
        calls=made.copies,
        over_torch=of_torch / of_ours,
        of_floor=floor / of_ours,
        bytes=made.size,
        bandwidth=read_bytes / of_read,
        flops_per_second=made.flops / of_ours,
    )
    table.append((case_name(case), of_ours, of_torch, floor, floor / of_ours))
