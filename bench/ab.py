"""The live A/B on a real engine: does it find a planted delay?

PYTHONPATH=. python bench/ab.py --model tiny --requests 120 --delay 0.1

Serves requests, half of them plainly, one at a time, with a drafter that takes its time and drafts
nothing (--drafts: a token that is rejected by decree). A drafting step takes longer by `delay` of a
plain step (its median, measured first): 0.111 is a slowdown by 10 %, plus what the call itself
costs, which --delay 0 shows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.loader import load
from specfast.proposers.base import NO_NEEDS, Proposal
from specfast.sampling_params import SamplingParams
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import SpeculativeConfig


class Delaying:
    """Drafts token 0, `seconds` late; or nothing, as late, where `silent`."""

    needs = NO_NEEDS

    def __init__(self, seconds: float, silent: bool) -> None:
        self.seconds, self.silent = seconds, silent

    def propose(self, batch: Batch) -> Proposal:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        if self.silent:
            return Proposal.empty(len(batch))
        return Proposal.chains([[0][:depth] for depth, _ in batch.draft_limits.tolist()])

    def observe(self, *step: object) -> None: ...

    def release(self, seq: Sequence) -> None: ...

    def reset(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--delay", type=float, default=0.1, help="share of a plain step")
    parser.add_argument("--drafts", action="store_true", help="verify a draft too")
    args = parser.parse_args()
    model, tokenizer = load(args.model, "auto")
    spec = SpeculativeConfig("ngram", 1, policy="fixed", ab_fraction=0.5, synthetic_acceptance=[0])
    config = EngineConfig(args.model, max_num_seqs=1, speculative_config=spec)
    delaying = Delaying(0.0, not args.drafts)
    engine = Engine(model, tokenizer, config, delaying)
    rng = np.random.default_rng(0)

    def serve(count: int, **params: object) -> list[float]:
        taken = []
        for _ in range(count):
            prompt = rng.integers(3, 200, rng.integers(4, 20)).tolist()
            length = int(rng.integers(args.max_tokens // 2, args.max_tokens))
            values = {"temperature": 0.0, "ignore_eos": True, "max_tokens": length, **params}
            engine.add_request(prompt, SamplingParams(**values))
            while engine.has_unfinished:
                start = time.perf_counter()
                engine.step()
                taken.append(time.perf_counter() - start)
        return taken

    step = float(np.median(serve(10, speculative=False)))
    delaying.seconds = args.delay * step
    serve(args.requests)
    found = engine.ab.speedups(0.99)
    print(f"plain step {1e3 * step:.3f} ms, delay {1e3 * delaying.seconds:.3f} ms")
    print(f"expected {1 / (1 + args.delay):.3f}; found, with 99 % interval: {found}")


if __name__ == "__main__":
    main()
