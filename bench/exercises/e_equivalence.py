"""Exercise e: a hundred prompts with and without speculation, byte by byte.

    python bench/exercises/e_equivalence.py --plot e.png

Speculation must be invisible: at temperature 0 and above it, whoever drafts, whatever the batch.
Every answer is compared with plain decoding's; a planted fault (a verifier that believes one draft
too many) shows that the comparison can fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.exercises.common import PLAIN, Lab, draw, options, show
from specfast.measure import EngineArm, Task
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from specfast.verifier import MatchVerifier, VerifyResult

METHODS = {
    "ngram": SpeculativeConfig("ngram"),
    "suffix, tree": SpeculativeConfig("suffix", max_tree_nodes=16),
    "recycle, tree": SpeculativeConfig("recycle", max_tree_nodes=16),
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


def main() -> None:
    given = options(__doc__, num_prompts=100, max_tokens=32)
    given.set_defaults(batch_size=8)
    parsed = given.parse_args()
    rows, shares = [], {}
    for law, params in LAWS.items():
        lab = Lab(parsed, replace(params, max_tokens=parsed.max_tokens))
        plain = lab.arm(PLAIN, None)
        tasks = lab.tasks(plain)[: parsed.num_prompts]
        expected = answers(plain, tasks, parsed.batch_size)
        for name, config in METHODS.items():
            arm = lab.arm(name, config)
            found = answers(arm, tasks, parsed.batch_size)
            accepted = arm.engine.metrics.stats.acceptance_length
            shares[f"{name}, {law}"] = same(expected, found)
            rows.append((name, law, f"{shares[f'{name}, {law}']}/{len(tasks)}", f"{accepted:.2f}"))
        arm = lab.arm("credulous", METHODS["ngram"])
        verifier = arm.engine.verifier
        assert isinstance(verifier, MatchVerifier)
        arm.engine.verifier = Credulous(verifier.sampler)
        wrong = same(expected, answers(arm, tasks, parsed.batch_size))
        rows.append(("planted fault", law, f"{wrong}/{len(tasks)}", ""))
    columns = ("method", "law", "same bytes as plain", "tokens a step")
    show("Speculation is invisible", columns, rows)

    def paint(axes: Any) -> None:
        axes.barh(list(shares), list(shares.values()), color="tab:green")
        axes.set_xlabel(f"answers of {len(tasks)} with the same bytes as plain decoding")
        axes.invert_yaxis()

    draw(parsed.plot, paint)


def answers(arm: EngineArm, tasks: list[Task], size: int) -> list[tuple[int, ...]]:
    """Token ids, the tasks answered `size` at a time."""
    groups = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    return [sample.token_ids for group in groups for sample in arm.answer_all(group)]


def same(expected: list[tuple[int, ...]], found: list[tuple[int, ...]]) -> int:
    return sum(a == b for a, b in zip(expected, found, strict=True))


if __name__ == "__main__":
    main()
