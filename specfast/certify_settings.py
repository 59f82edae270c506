"""The settings that certify runs: few, and each two conditions meet in one of them."""

from __future__ import annotations

from collections.abc import Sequence as Seqs
from dataclasses import dataclass, replace
from typing import Any

from specfast.pairwise import Row, pairwise
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig

MAX_SETTINGS = 12
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, top_k=50, min_p=0.01, seed=11)

# The ways of each method that differ in what they draft; a method not named here has one.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ngram": [
        {"prompt_lookup_min": 2, "prompt_lookup_max": 4},
        {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
    ],
    "recycle": [{}, {"max_tree_nodes": 24}],
    "draft_model": [{}, {"max_tree_nodes": 16}],
    "eagle": [{}, {"max_tree_nodes": 16}],
    "medusa": [{}, {"max_tree_nodes": 16}],
    "mtp": [{}, {"max_tree_nodes": 16}],
    "hybrid": [{"max_tree_nodes": 16}],
    "suffix": [{}, {"suffix_decoding_max_cached_requests": 100, "max_tree_nodes": 16}],
}

FACTORS: dict[str, list[Any]] = {
    "num_speculative_tokens": [1, 4, 8],
    "policy": ["fixed", "simple", "auto"],
    "batch_size": [1, 3, 8],
    "chunk_size": [24, 512],
    "block_size": [4, 16],
    "prefix_caching": [False, True],
    "sampled": [False, True],
    "preempt": [False, True],
    "threads": [1, 2],
}


@dataclass(frozen=True)
class Setting:
    """One way to run an engine; the fields are the factors that are crossed, and `ignore_eos`."""

    drafter: SpeculativeConfig
    num_speculative_tokens: int
    policy: str
    batch_size: int
    chunk_size: int
    block_size: int
    prefix_caching: bool
    sampled: bool
    preempt: bool
    threads: int
    ignore_eos: bool = True

    @property
    def speculation(self) -> SpeculativeConfig:
        k = self.num_speculative_tokens
        return replace(self.drafter, num_speculative_tokens=k, policy=self.policy)

    def params(self, max_tokens: int) -> SamplingParams:
        law = SAMPLED if self.sampled else GREEDY
        return replace(law, max_tokens=max_tokens, ignore_eos=self.ignore_eos)

    @property
    def claims(self) -> list[str]:
        """Events that must have been seen."""
        claimed = {
            "accepted": True,
            "rejected": True,
            "preempted": self.preempt,
            "prefix_hit_tokens": self.prefix_caching,
            "chunk_splits": self.chunk_size == min(FACTORS["chunk_size"]),
            "stopped": not self.ignore_eos,
        }
        return [event for event, is_claimed in claimed.items() if is_claimed]


def variants(config: SpeculativeConfig) -> list[SpeculativeConfig]:
    """The ways of drafting to certify for this configuration, its own settings kept."""
    if config.method_settings.keys() - {"model"}:
        return [config]
    return [replace(config, **more) for more in VARIANTS.get(config.method, [{}])]


def settings(threads: int, drafters: Seqs[SpeculativeConfig]) -> list[Setting]:
    """Settings in which each two levels meet; the first greedy one respects EOS.

    One method takes at most MAX_SETTINGS; many take about six for each way of drafting.
    """
    factors = {"drafter": list(drafters), **FACTORS, "threads": sorted({1, threads})}
    rows = pairwise(factors, _is_possible)
    found = [Setting(**row) for row in rows]
    first = next(i for i, s in enumerate(found) if not s.sampled)
    found[first] = replace(found[first], ignore_eos=False)
    return found


def _is_possible(row: Row) -> bool:
    """Nobody preempts a request that runs alone."""
    return not (row.get("preempt") and row.get("batch_size") == 1)


def vary_prompts(prompts: list[list[int]], count: int, max_tokens: int) -> list[list[int]]:
    """count prompts of at most max_tokens: each is cut to several lengths, at least two.

    So prompts share beginnings of every length, as a prefix cache needs to be tested; those that do
    come soon after each other, or a small cache would have forgotten.
    """
    prompts = prompts[: max(1, count // 2)]
    varied: list[list[int]] = []
    for number, turn in _two_by_two(len(prompts), count):
        longest = min(len(prompts[number]), max_tokens)
        cut = 13 * turn + len(varied) % 7
        varied.append(prompts[number][: max(1, longest - cut)])
    return varied


def _two_by_two(num_prompts: int, count: int) -> list[tuple[int, int]]:
    """Turns of all prompts, count of them, as 0 1 0 1 0 1 2 3 2 3 2 3."""
    turns = [(i % num_prompts, i // num_prompts) for i in range(count)]
    return sorted(turns, key=lambda turn: (turn[0] // 2, turn[1], turn[0]))
