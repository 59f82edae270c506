"""Exercise e: a hundred prompts with and without speculation, byte by byte.

    python bench/exercises/e_equivalence.py --plot e.png

Speculation must be invisible: at temperature 0 and above it, whoever drafts, whatever the batch.
A hundred prompts are the built-in ones, cut to several lengths. Drafts are in every step (policy
"fixed"). Every answer is compared with plain decoding's; a planted fault (a verifier that believes
one draft too many) shows that the comparison can fail.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from typing import Any

from bench.exercises.common import PLAIN, Lab, check_same, draw, options, show
from specfast.certify_settings import vary_prompts
from specfast.measure import EngineArm, Task, prompt_ids
from specfast.models.committed import DRAFTS_OF
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.verifier import MatchVerifier, VerifyResult

MAX_PROMPT = 160  # tokens
FAULT = "planted fault"
RETRIEVAL = {
    "ngram": SpeculativeConfig("ngram", policy="fixed"),
    "suffix, tree": SpeculativeConfig("suffix", policy="fixed", max_tree_nodes=16),
    "recycle, tree": SpeculativeConfig("recycle", policy="fixed", max_tree_nodes=16),
}
LAWS = {
    "greedy": SamplingParams(temperature=0.0),
    "T = 0.8, top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9, seed=5),
}


class Credulous(MatchVerifier):
    """Accepts one draft more than the target said."""

    def verify(self, *step: Any) -> VerifyResult:
        proposal, result = step[1], super().verify(*step)
        path, accepted = result.path.clone(), result.num_accepted.clone()
        for row in range(len(accepted)):
            n = int(accepted[row])
            above = int(path[row, n - 1]) if n else -1
            children = (proposal.parents[row] == above).nonzero().ravel().tolist()
            if children and children[0] < int(proposal.lengths[row]):
                path[row, n] = children[0]
                accepted[row] = n + 1
        return replace(result, path=path, num_accepted=accepted)


@dataclass(frozen=True)
class Finding:
    """num_same: answers with plain decoding's bytes; tokens_a_step: of steps with drafts."""

    method: str
    law: str
    num_same: int
    tokens_a_step: float


def main() -> None:
    given = options(__doc__, num_prompts=100, max_tokens=24)
    given.set_defaults(batch_size=8)
    parsed = given.parse_args()
    findings = [found for law in LAWS for found in under(law, parsed)]
    count = parsed.num_prompts
    rows = [(f.method, f.law, f"{f.num_same}/{count}", f"{f.tokens_a_step:.2f}") for f in findings]
    columns = ("method", "law", "same bytes as plain", "tokens a step")
    show("Speculation is invisible", columns, rows)
    differing = {f"{f.method}, {f.law}" for f in findings if f.num_same < count}
    faults = {f"{FAULT}, {law}" for law in LAWS}
    check_same(sorted(differing - faults))
    assert faults <= differing, "nobody saw the planted fault"
    draw(parsed.plot, lambda axes: paint(findings, count, axes))


def methods(target: str) -> dict[str, SpeculativeConfig]:
    """What needs nothing, and the model that the package carries for this target."""
    draft = DRAFTS_OF.get(target, {}).get("draft_model")
    if draft is None:
        return RETRIEVAL
    config = SpeculativeConfig("draft_model", policy="fixed", model=draft)
    return RETRIEVAL | {"draft model": config}


def under(law: str, parsed: argparse.Namespace) -> list[Finding]:
    """Every method, then the planted fault, against plain decoding."""
    lab = Lab(parsed, replace(LAWS[law], max_tokens=parsed.max_tokens))
    tasks = cut_tasks(lab, parsed.num_prompts)
    expected = answers(lab.arm(PLAIN, None), tasks, parsed.batch_size)
    arms = [lab.arm(*method) for method in methods(parsed.model).items()]
    arms.append(planted(lab.arm(FAULT, RETRIEVAL["ngram"])))
    findings = []
    for arm in arms:
        num_same = same(expected, answers(arm, tasks, parsed.batch_size))
        findings.append(
            Finding(arm.name, law, num_same, arm.engine.metrics.stats.acceptance_length)
        )
    return findings


def planted(arm: EngineArm) -> EngineArm:
    verifier = arm.engine.verifier
    assert isinstance(verifier, MatchVerifier)
    arm.engine.verifier = Credulous(verifier.sampler)
    return arm


def cut_tasks(lab: Lab, count: int) -> list[Task]:
    """So many prompts of at most MAX_PROMPT tokens: those there are, cut to several lengths."""
    tokens = [
        prompt_ids(lab.tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in lab.prompts
    ]
    varied = vary_prompts(tokens, count, MAX_PROMPT)
    return [Task(str(i), "all", tuple(ids)) for i, ids in enumerate(varied)]


def answers(arm: EngineArm, tasks: list[Task], size: int) -> list[tuple[int, ...]]:
    """Token ids, the tasks answered `size` at a time."""
    groups = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    return [sample.token_ids for group in groups for sample in arm.answer_all(group)]


def same(expected: list[tuple[int, ...]], found: list[tuple[int, ...]]) -> int:
    return sum(a == b for a, b in zip(expected, found, strict=True))


def paint(findings: Seqs[Finding], count: int, axes: Any) -> None:
    names = [f"{f.method}, {f.law}" for f in findings]
    colours = ["tab:red" if f.method == FAULT else "tab:green" for f in findings]
    axes.barh(names, [f.num_same for f in findings], color=colours)
    axes.set_xlabel(f"answers of {count} with the same bytes as plain decoding")
    axes.invert_yaxis()


if __name__ == "__main__":
    main()
