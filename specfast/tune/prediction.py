"""What speed-up k drafts a step should bring, before anyone has tried.

A step with drafts emits E tokens where a plain one emits 1, and takes 1 + c k + v k plain steps:
decoding is E / (1 + c k + v k) times as fast. c k is the drafting of a step, v k what its rows and
the drafter's bookkeeping add to the target's pass, both averaged over all steps: those in which
nothing was proposed are among them, and cost the search alone; so is an answer's first step, in
which some drafters take in the prompt. E comes two ways:

- in closed form, (1 - a^(k+1)) / (1 - a) (Leviathan et al., 2023, equation 1), as if each draft
  were accepted with probability a on its own; a step that drafts less deep counts with its depth;
- from the survival curve, 1 + A_1 + ... + A_k, A_j being the share of steps that accept at least j
  drafts, as counted in the record re-cut at k, and less what the end of an answer cuts off.

Each task is predicted by itself, and tasks are averaged as they are when measured: geometrically,
with each category weighing what it will weigh there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np

from specfast.measure import MIN_DECODED
from specfast.tune.acceptance import alpha_of, recut
from specfast.tune.costs import DrafterCost
from specfast.tune.traces import SequenceStep, Trace


@dataclass(frozen=True)
class Prediction:
    """Speed-ups over plain decoding with k drafts asked for; c, v: in plain steps, as above, over
    all tasks; tokens_per_step: by the survival curve, over all tasks.
    """

    k: int
    closed: float
    survival: float
    c: float
    v: float
    tokens_per_step: float


def expected_tokens(alpha: float, depth: float) -> float:
    """(1 - alpha^(depth + 1)) / (1 - alpha): tokens of a step that drafts so deep, the bonus
    included, if each draft is accepted with probability alpha where those before it were.
    """
    return depth + 1.0 if alpha == 1.0 else (1.0 - alpha ** (depth + 1)) / (1.0 - alpha)


def closed_speedup(alpha: float, k: int, c: float, v: float) -> float:
    """(1 - a^(k+1)) / ((1 - a)(1 + c k + v k))."""
    return expected_tokens(alpha, k) / (1.0 + c * k + v * k)


def predict(
    traces: Seqs[Trace],
    cost: DrafterCost,
    k: int,
    categories: Iterable[str],
    starts: Mapping[str, float],
) -> Prediction:
    """From traces with at least k drafts a step. categories: of the tasks to predict, one each.
    starts: by task, the plain steps that its first step takes longer. NaN where no trace of those
    categories is long enough.
    """
    long = [t for t in traces if t.num_tokens >= MIN_DECODED]
    weights = _weights([t.task.category for t in long], categories)
    if not weights.sum():
        return Prediction(k, *[float("nan")] * 5)
    cuts = [recut(t.steps, k) for t in long]
    firsts = [starts.get(t.task.id, 0.0) / len(cut) for t, cut in zip(long, cuts)]
    closed = [_closed(t.steps, cost, k, first) for t, first in zip(long, firsts)]
    survival = [_tokens_per_step(c) / (step_cost(c, cost) + f) for c, f in zip(cuts, firsts)]
    all_steps = [s for cut in cuts for s in cut]
    depths, nodes = _depths_and_nodes(all_steps)
    return Prediction(
        k,
        closed=geometric_mean(closed, weights),
        survival=geometric_mean(survival, weights),
        c=(cost.draft_share(depths) + float(np.mean(firsts))) / k,
        v=cost.verify_share(nodes) / k,
        tokens_per_step=_tokens_per_step(all_steps),
    )


def step_cost(steps: Seqs[SequenceStep], cost: DrafterCost) -> float:
    """1 + c k + v k: what these steps take on average, in plain steps."""
    depths, nodes = _depths_and_nodes(steps)
    return 1.0 + cost.draft_share(depths) + cost.verify_share(nodes)


def geometric_mean(values: Seqs[float], weights: np.ndarray) -> float:
    return float(np.exp(np.average(np.log(values), weights=weights)))


def _closed(steps: Seqs[SequenceStep], cost: DrafterCost, k: int, first: float) -> float:
    """One task's speed-up in closed form: steps as recorded, cut to k; first: the first step's
    excess, spread over all.
    """
    alpha, width = alpha_of(steps), _width(steps)
    cut = [
        SequenceStep(depth, round(depth * width), 0, 0)
        for depth in (min(s.depth, k) for s in steps)
    ]
    tokens = [expected_tokens(alpha, step.depth) for step in cut]
    return float(np.mean(tokens)) / (step_cost(cut, cost) + first)


def _width(steps: Seqs[SequenceStep]) -> float:
    """Drafts for each depth drafted: 1 for a chain."""
    depths = sum(s.depth for s in steps)
    return sum(s.nodes for s in steps) / depths if depths else 1.0


def _tokens_per_step(steps: Seqs[SequenceStep]) -> float:
    return sum(s.emitted for s in steps) / len(steps)


def _depths_and_nodes(steps: Seqs[SequenceStep]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([s.depth for s in steps]), np.array([s.nodes for s in steps])


def _weights(have: Seqs[str], want: Iterable[str]) -> np.ndarray:
    """A weight a trace: its category's share in `want`, over its traces."""
    count: Mapping[str, int] = Counter(have)
    wanted = Counter(want)
    return np.array([wanted[c] / count[c] for c in have])
