"""What counting costs a step: microseconds, the median of many, for batches that draft."""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace

import torch

from specfast.latencies import Latencies
from specfast.metrics import SpecMetrics
from specfast.outputs import StepOutput
from specfast.proposers.base import Proposal
from specfast.proposers.draft_tree import DraftTree
from specfast.request_metrics import RequestMetrics
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.stats_log import StatsLog
from specfast.warning_signs import Evidence, WarningSigns

CHAIN = DraftTree([1] * 4, list(range(-1, 3)), [1.0] * 4)
TREE = DraftTree([1] * 32, [-1, *[i // 2 for i in range(31)]], [1.0] * 32, [0, 1] * 16)


class Sequence:
    params, num_remaining_tokens = SamplingParams(label="chat"), 100


def cost(batch_size: int, tree: DraftTree, steps: int = 500) -> float:
    """Everything that the engine calls for its metrics in one step."""
    metrics, latencies = SpecMetrics(["eagle", "suffix"]), Latencies()
    log, signs = StatsLog(), WarningSigns()
    seqs = tuple(Sequence() for _ in range(batch_size))
    requests = [RequestMetrics(num_spec_tokens=8) for _ in seqs]
    batch = SimpleNamespace(seqs=seqs)
    proposal = Proposal.trees([tree] * batch_size)
    depth = int(proposal.depths[0])
    result = SimpleNamespace(path=torch.full_like(proposal.tokens, -1))
    result.path[:, :2] = torch.tensor([0, 1])
    outputs = [StepOutput(s, (1, 2, 3), len(tree), depth, 2, None, 8) for s in seqs]
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        with metrics.timing_step(), metrics.timing_proposal():
            pass
        metrics.observe(batch, proposal, result, outputs)
        now = time.perf_counter()
        for request, output in zip(requests, outputs):
            latencies.emitted(request, now)
            request.observe(output, now, *metrics.last_seconds)
        log.tick(lambda: metrics.stats)
        signs.tick(lambda is_due: Evidence(SpecStats(), {}), is_idle=False)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


if __name__ == "__main__":
    for name, tree in {"chain of 4": CHAIN, "hybrid tree of 32": TREE}.items():
        figures = ", ".join(f"{cost(n, tree):.0f} us at batch {n}" for n in (1, 16, 128))
        print(f"{name}: {figures}")
