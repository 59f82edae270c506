"""How far drafts are accepted, and how far they would have been with fewer a step."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass

import numpy as np

from specfast.tune.traces import SequenceStep, Trace


@dataclass(frozen=True)
class Acceptance:
    """Over all steps behind the first token, those without a proposal among them.

    alpha: of the drafts that were judged (a step judges those it accepts and the one it refuses),
    the share accepted; survival[j]: steps that accepted more than j drafts, over all steps;
    conditional[j]: of the steps that drafted deeper than j and accepted j, those that accepted one
    more; proposing: steps that drafted, over all.
    """

    num_steps: int
    num_tokens: int
    alpha: float
    survival: tuple[float, ...]
    conditional: tuple[float, ...]
    proposing: float

    @classmethod
    def of(cls, steps: Seqs[SequenceStep]) -> Acceptance:
        depths = np.array([s.depth for s in steps])
        accepted = np.array([s.accepted for s in steps])
        positions = range(int(depths.max(initial=0)))
        return cls(
            num_steps=len(steps),
            num_tokens=sum(s.emitted for s in steps),
            alpha=alpha_of(steps),
            survival=tuple(_share(accepted > j, accepted >= 0) for j in positions),
            conditional=tuple(
                _share(accepted > j, (depths > j) & (accepted >= j)) for j in positions
            ),
            proposing=_share(depths > 0, depths >= 0),
        )


def alpha_of(steps: Seqs[SequenceStep]) -> float:
    """Accepted / judged drafts: the likeliest rate if each is accepted or not on its own, since a
    step judges until it refuses one or has none left. 0 without drafts.
    """
    accepted = sum(s.accepted for s in steps)
    refused = sum(s.accepted < s.depth for s in steps)
    return accepted / (accepted + refused) if accepted else 0.0


def recut(steps: Seqs[SequenceStep], k: int) -> list[SequenceStep]:
    """The steps that would have decoded the same tokens with at most k drafts a step.

    A drafter is taken to be right from a later start wherever it was from an earlier one. What it
    left open (the token behind drafts that were all accepted) counts as right if the next step's
    drafts were. With the k of the record this gives the record.
    """
    right, depths, width = _tokens(steps)
    found, start = [], 0
    while start < len(right):
        depth = min(k, depths[start])
        run = 0
        while run < depth and start + run < len(right) and right[start + run]:
            run += 1
        end = min(start + run + 1, len(right))
        found.append(SequenceStep(depth, round(depth * width), run, end - start))
        start = end
    return found


def _tokens(steps: Seqs[SequenceStep]) -> tuple[list[bool], list[int], float]:
    """Token by token, whether a draft said it, and how deep a step that starts there drafts; and
    the drafts a step has for each depth.
    """
    deepest = max((s.depth for s in steps), default=0)
    right: list[bool] = []
    depths: list[int] = []
    for step, following in zip(steps, [*steps[1:], None]):
        goes_on = following is not None and following.accepted > 0
        is_open = step.accepted == step.depth > 0
        last = [goes_on and is_open] * (step.emitted - step.accepted)
        right += [True] * step.accepted + last
        depths += [step.depth] + [deepest] * (step.emitted - 1)
    drafted = sum(s.depth for s in steps)
    return right, depths, sum(s.nodes for s in steps) / drafted if drafted else 1.0


def by_category(traces: Seqs[Trace]) -> dict[str, Acceptance]:
    found: dict[str, list[SequenceStep]] = {}
    for trace in traces:
        found.setdefault(trace.task.category, []).extend(trace.steps)
    return {category: Acceptance.of(steps) for category, steps in found.items()}


def _share(of: np.ndarray, among: np.ndarray) -> float:
    total = int(among.sum())
    return int((of & among).sum()) / total if total else 0.0
