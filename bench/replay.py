"""Compares drafters that need no model by replaying what a target said.

A greedy target's answer decides by itself which drafts it would have accepted, and so does a
sampled one with its seed; so a trace of token ids is enough, and the target does not run. Drafters
are asked, in order of the traces, with the limits that the engine would give them.

    python bench/replay.py --write traces.jsonl --model demo --dataset $SPECFAST_DATA/mbpp.jsonl
    python bench/replay.py traces.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specfast.budget import Budget
from specfast.config import EngineConfig
from specfast.proposers.base import Proposal, Proposer
from specfast.proposers.draft_tree import DraftTree
from specfast.proposers.registry import make_proposer
from specfast.proposers.target import Target
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence, StopRule
from specfast.speculative_config import SpeculativeConfig

# What a drafted row adds to the time of a step, as measured at 5 rows on the development machine.
ROW_COST = 0.04

ARMS: dict[str, dict] = {
    "ngram": {"method": "ngram"},
    "ngram, 2 to 4": {"method": "ngram", "prompt_lookup_min": 2},
    "suffix": {"method": "suffix"},
    "suffix, 32 nodes": {"method": "suffix", "max_tree_nodes": 32},
    "suffix, pool": {"method": "suffix", "suffix_decoding_max_cached_requests": 1000},
    "suffix, pool, 32 nodes": {
        "method": "suffix",
        "suffix_decoding_max_cached_requests": 1000,
        "max_tree_nodes": 32,
    },
}


@dataclass(frozen=True)
class Trace:
    """One answer, token by token, and what it was drawn with."""

    prompt: list[int]
    output: list[int]
    temperature: float
    seed: int


class Drafter(Protocol):
    """Drafts behind a sequence; told when one has ended. `tree` is not timed."""

    def propose(self, batch: Batch) -> Any: ...

    def tree(self, proposed: Any) -> DraftTree: ...

    def release(self, seq: Sequence) -> None: ...


class Ours:
    """A proposer of specfast's."""

    def __init__(self, config: SpeculativeConfig) -> None:
        engine = EngineConfig("demo", speculative_config=config)
        proposer = make_proposer(Target(None, None, engine))  # type: ignore[arg-type]
        assert proposer is not None
        self._proposer: Proposer = proposer
        if proposer.needs != type(proposer.needs)():
            raise ValueError(f"{config.method} needs the target's forward pass: no replay.")

    def propose(self, batch: Batch) -> Proposal:
        return self._proposer.propose(batch)

    def tree(self, proposed: Proposal) -> DraftTree:
        return proposed.to_trees()[0]

    def release(self, seq: Sequence) -> None:
        self._proposer.release(seq)


class Arctic:
    """Arctic Inference's suffix decoding, with its defaults as vLLM has them."""

    def __init__(self, use_tree: bool, cached: int, config: SpeculativeConfig) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=cached)
        self._use_tree = use_tree
        self._seen: dict[int, int] = {}

    def propose(self, batch: Batch) -> Any:
        (seq,), limits = batch.seqs, batch.draft_limits
        if seq.seq_id not in self._seen:
            self._cache.start_request(seq.seq_id, np.array(seq.token_ids, np.int32))
            self._seen[seq.seq_id] = len(seq.token_ids)
        elif new := seq.token_ids[self._seen[seq.seq_id] :]:
            self._cache.add_active_response(seq.seq_id, new)
            self._seen[seq.seq_id] = len(seq.token_ids)
        return self._cache.speculate(
            seq.seq_id,
            np.array(seq.token_ids[-24:], np.int32),
            max_spec_tokens=int(limits[0, 1 if self._use_tree else 0]),
            max_spec_factor=1.0,
            min_token_prob=0.1,
            use_tree_spec=self._use_tree,
        )

    def tree(self, proposed: Any) -> DraftTree:
        return DraftTree(*map(list, (proposed.token_ids, proposed.parents, proposed.probs)))

    def release(self, seq: Sequence) -> None:
        if self._seen.pop(seq.seq_id, None):
            self._cache.stop_request(seq.seq_id)


@dataclass
class Tally:
    """What a drafter did over some traces."""

    steps: int = 0
    tokens: int = 0
    drafts: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps

    @property
    def drafts_per_step(self) -> float:
        return self.drafts / self.steps

    @property
    def speedup(self) -> float:
        """Over plain decoding, if a drafted row costs ROW_COST of a step and drafting nothing."""
        return self.tokens_per_step / (1 + ROW_COST * self.drafts_per_step)

    def row(self) -> list[str]:
        accepted = self.tokens - self.steps
        micros = 1e6 * np.array(self.seconds)
        return [
            f"{self.tokens_per_step:.2f}",
            f"{self.drafts_per_step:.2f}",
            f"{accepted / max(self.drafts, 1):.2f}",
            f"{self.speedup:.2f}",
            f"{np.median(micros):.1f}",
            f"{micros.sum() / self.tokens:.1f}",
        ]


COLUMNS = ["tokens/step", "drafts/step", "accepted", "speedup*", "us/proposal", "us/token"]


class NoText:
    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def accepted_by(output: list[int], tree: DraftTree) -> int:
    """How many of the tree's nodes the target would have kept, had it gone on with `output`."""
    at, kept = -1, 0
    for token in output:
        match = [n for n, p in enumerate(tree.parents) if p == at and tree.tokens[n] == token]
        if not match:
            break
        at, kept = match[0], kept + 1
    return kept


def replay(drafter: Drafter, traces: Iterable[Trace], budget: Budget) -> Tally:
    """Drafts through each trace, as far as a target that said it would have let it."""
    tally, none = Tally(), np.zeros(1, np.int32)
    for number, trace in enumerate(traces):
        params = SamplingParams(temperature=trace.temperature)
        rule = StopRule(frozenset(), len(trace.prompt) + len(trace.output))
        seq = Sequence(number, trace.prompt, params, trace.seed, rule, NoText())
        while not seq.finish:
            ahead = trace.output[len(seq.token_ids) - len(trace.prompt) :]
            batch = Batch((seq,), none, none + len(seq.token_ids), budget.plan([seq]))
            start = time.thread_time()
            proposed = drafter.propose(batch)
            tally.seconds.append(time.thread_time() - start)
            tree = drafter.tree(proposed)
            emitted = ahead[: accepted_by(ahead[:-1], tree) + 1]
            for token in emitted:
                seq.append(token, accepted=False)
            tally.steps += 1
            tally.tokens += len(emitted)
            tally.drafts += len(tree)
        drafter.release(seq)
    return tally


def read_traces(path: Path) -> list[Trace]:
    return [Trace(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def write_traces(args: argparse.Namespace) -> None:
    """Answers the first turn of prompts plainly."""
    from specfast import LLM
    from specfast.data import load_workload, select_prompts

    llm = LLM(args.model, max_num_seqs=8)
    prompts = select_prompts(load_workload(args.dataset), (), args.num_prompts)
    law = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens)
    chats = [[{"role": "user", "content": p.turns[0]}] for p in prompts]
    params = [replace(law, seed=seed) for seed in range(len(chats))]
    with args.write.open("w", encoding="utf-8") as file:
        for seed, answer in enumerate(llm.chat(chats, params)):
            output = answer.outputs[0].token_ids
            trace = Trace(answer.prompt_token_ids, output, args.temperature, seed)
            file.write(json.dumps(asdict(trace)) + "\n")


@dataclass(frozen=True)
class Arm:
    """A way of drafting; the config also says how far."""

    name: str
    config: SpeculativeConfig
    make: Callable[[SpeculativeConfig], Drafter]


def arms_of(args: argparse.Namespace) -> list[Arm]:
    """Those asked for, else ours, and Arctic's where it is installed."""
    settings = {text: json.loads(text) for text in args.config} or ARMS
    general = {"num_speculative_tokens": args.k}
    arms = [
        Arm(name, SpeculativeConfig.from_dict({**general, **values}), Ours)
        for name, values in settings.items()
    ]
    if args.config or not find_spec("arctic_inference"):
        return arms
    config = SpeculativeConfig("arctic", args.k)
    arms += [
        Arm(
            f"arctic{', pool' * bool(cached)}{', tree' * tree}",
            config,
            partial(Arctic, tree, cached),
        )
        for cached in (0, 1000)
        for tree in (False, True)
    ]
    return arms


def report(args: argparse.Namespace) -> None:
    for path in args.traces:
        traces = read_traces(path)
        print(f"\n{path.stem}: {len(traces)} answers, k = {args.k}")
        arms = arms_of(args)
        width = max(len(arm.name) for arm in arms)
        print(" " * width + "".join(f"{c:>13}" for c in COLUMNS))
        for arm in arms:
            tally = replay(arm.make(arm.config), traces, Budget(arm.config))
            print(f"{arm.name:{width}}" + "".join(f"{value:>13}" for value in tally.row()))
    print(f"\n* tokens a step / (1 + {ROW_COST} x drafts a step): without the time of drafting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path, help="files that --write wrote")
    parser.add_argument("--k", type=int, default=8, help="drafts along a path (8)")
    parser.add_argument(
        "--config", action="append", default=[], help="an arm as speculative_config, JSON"
    )
    parser.add_argument("--write", type=Path, help="write traces to this file instead")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dataset", type=Path, help="prompts, JSON lines (the built-in ones)")
    parser.add_argument("--num-prompts", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    if args.write:
        write_traces(args)
    elif args.traces:
        report(args)
    else:
        parser.error("give files of traces, or --write")


if __name__ == "__main__":
    main()
