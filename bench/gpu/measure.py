"""Times every op on a GPU: python -m bench.gpu.measure [--seconds 300] [--out FOLDER]

Each call is captured in a CUDA graph, as many times as there are copies of its data, so that no
copy is in L2 when its turn comes (copies of the smallest fit, 64 at the most); the time is the
median of the graph's replays, by CUDA events, over the calls in it. Shares are of the bandwidth
that a large copy shows in the same run, bytes read plus bytes written. What the time did not
suffice for is listed as left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import cases, sampling_cases
from bench.cases import LLAMA3, Call, Case
from bench.gpu import others

Named = tuple[Callable[..., Case], tuple]
MOST_TOKENS = 1 << 20  # of K and V: 4 GiB in LLAMA3's shape
MOST_LOGITS = 1 << 28


def attention() -> Iterator[Named]:
    for context in (4096, 1024, 16384, 65536):
        for batch in (32, 1, 8, 256):
            for rows in (6, 1, 64, 16):
                if batch * context <= MOST_TOKENS:
                    yield cases.tree_attention, (batch, rows, context)
    for batch in (1, 32):
        yield cases.tree_attention, (batch, 64, 4096, True)


def sampling() -> Iterator[Named]:
    for vocab in (131072, 32768, 262144):
        for rows in (192, 1, 6, 1024):
            if rows * vocab <= MOST_LOGITS:
                for filter in ("none", "top_p", "top_k", "greedy"):
                    yield sampling_cases.sample_rows, (rows, vocab, filter)


def the_rest() -> Iterator[Named]:
    for rows in (192, 1, 6, 4096):
        for op in (cases.kv_append, cases.rope_kv_append, cases.rms_norm, cases.silu_mul):
            yield op, (rows,)
    for batch in (32, 1, 256):
        yield cases.kv_compact, (batch, 5)
        yield sampling_cases.accept_path, (batch, 5)
        yield sampling_cases.accept_path, (batch, 64)
    for vocab in (131072, 32768):
        for batch in (32, 1):
            yield sampling_cases.rank_candidates, (batch, vocab)
            yield sampling_cases.draw_candidates, (batch, vocab)
            yield sampling_cases.rejection_sample, (batch, 5, vocab)
            yield sampling_cases.typical_sample, (batch, 5, vocab)


def in_turn(*lists: Iterator[Named]) -> list[Named]:
    """So that whatever the time suffices for has some of each."""
    waiting, order = [list(named) for named in lists], []
    for i in range(max(map(len, waiting))):
        order += [named[i] for named in waiting if i < len(named)]
    return order


def captured(call: Call, copies: int) -> Callable[[], Any]:
    for i in range(2):
        call(i % copies)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    return graph.replay


def eager(call: Call, copies: int) -> Callable[[], Any]:
    return lambda: [call(i) for i in range(copies)]


def times(run: Callable[[], Any], replays: int = 11, most_seconds: float = 1.0) -> list[float]:
    """Seconds of each run, after one that does not count."""
    found: list[float] = []
    start = time.perf_counter()
    for _ in range(1 + replays):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after) / 1e3)
        if time.perf_counter() - start > most_seconds and len(found) > 3:
            break
    return found[1:]


def time_of(call: Call, copies: int) -> dict[str, Any]:
    """Of one call: its median and spread, or why there is none."""
    try:
        run, graph = captured(call, copies), True
    except RuntimeError as error:  # what torch does may wait for the device
        torch.cuda.synchronize()
        run, graph = eager(call, copies), False
        note = said_by(error)
    each = [t / copies for t in times(run)]
    result = {"us": 1e6 * statistics.median(each), "least_us": 1e6 * min(each), "graph": graph}
    return result if graph else {**result, "why_no_graph": note}


def copy_bandwidth() -> float:
    """Bytes a second, read and written."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(times(lambda: target.copy_(source), 20))


def matmul_rate() -> float:
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / statistics.median(times(lambda: a @ b, 10))


def measure(named: Named, bandwidth: float) -> dict[str, Any]:
    op, arguments = named
    row: dict[str, Any] = {"op": op.__name__, "arguments": arguments}
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    place = replace(LLAMA3, cold=3 * torch.cuda.get_device_properties(0).L2_cache_size)
    case = op(place, *arguments)
    row |= {"bytes": case.size, "flops": case.flops, "copies": case.copies}
    if not place.has(op.__name__):
        return row | {"error": "no CUDA kernel in this build"}
    row["ours"] = ours = time_of(case.ours, case.copies)
    seconds = ours["us"] / 1e6
    row["of_copy_bandwidth"] = case.size / seconds / bandwidth
    row["flops_per_second"] = case.flops / seconds
    makers: dict[str, Callable[[], Call]] = {
        **{name: partial(case.theirs.get, name) for name in case.theirs},
        **others.of(op.__name__, arguments, place, case),
    }
    row["theirs"] = {name: attempt(make, case.copies) for name, make in makers.items()}
    return row


def attempt(make: Callable[[], Call], copies: int) -> dict[str, Any]:
    """Another library's time, or its error."""
    try:
        return time_of(make(), copies)
    except Exception as error:
        return {"error": said_by(error)}


def said_by(error: Exception) -> str:
    """In one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def markdown(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device']}, torch {report['torch']}; copy {report['copy_bandwidth'] / 1e12:.2f} "
        f"TB/s, bf16 matmul {report['matmul_rate'] / 1e12:.0f} TFLOP/s. FlashInfer: "
        f"{report['flashinfer']}. In brackets: over ours; *: no graph.",
        "",
        "| op | arguments | us | MB | of copy | TFLOP/s | others, us |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        arguments = " ".join(map(str, row["arguments"]))
        if "error" in row:
            error = row["error"].replace("|", "/")
            lines.append(f"| {row['op']} | {arguments} | {error} | | | | |")
            continue
        ours, rate = row["ours"], row["flops_per_second"] / 1e12
        lines.append(
            f"| {row['op']} | {arguments} | {_us(ours)} | {row['bytes'] / 1e6:.2f} | "
            f"{row['of_copy_bandwidth']:.0%} | {f'{rate:.0f}' if rate else ''} | "
            + ", ".join(f"{name} {_us(t, ours)}" for name, t in row["theirs"].items())
            + " |"
        )
    left = [f"{op} {' '.join(map(str, arguments))}" for op, arguments in report["left_out"]]
    return "\n".join([*lines, "", f"Left out for want of time: {'; '.join(left) or 'nothing'}."])


def write(report: dict[str, Any], folder: Path) -> None:
    """After every case: whatever ends the run, what was measured is there."""
    report["rows"].sort(key=lambda row: (row["op"], row["arguments"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "bench.md").write_text(markdown(report) + "\n")


def _us(time: dict[str, Any], ours: dict[str, Any] | None = None) -> str:
    if "error" in time:
        return time["error"].split(":")[0]
    ratio = f" ({time['us'] / ours['us']:.2f}x)" if ours else ""
    return f"{time['us']:.1f}{'' if time['graph'] else '*'}{ratio}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path, default=Path("bench/gpu/out"))
    parser.add_argument("-k", default="", help="only ops whose name contains this")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flashinfer": others.FLASHINFER,
        "copy_bandwidth": copy_bandwidth(),
        "matmul_rate": matmul_rate(),
        "rows": [],
        "left_out": [],
    }
    for named in in_turn(attention(), sampling(), the_rest()):
        op, arguments = named
        if options.k not in op.__name__:
            continue
        if time.monotonic() > end:
            report["left_out"].append((op.__name__, arguments))
            continue
        try:
            row = measure(named, report["copy_bandwidth"])
        except Exception as error:  # reported, and the next one measured
            row = {"op": op.__name__, "arguments": arguments, "error": said_by(error)}
        report["rows"].append(row)
        write(report, options.out)
    write(report, options.out)
    print(markdown(report))
    return any("error" in row for row in report["rows"])


if __name__ == "__main__":
    raise SystemExit(main())
