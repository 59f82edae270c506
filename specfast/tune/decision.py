"""Whether to draft, and by what: the questions in the order in which a deployment meets them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seqs
from dataclasses import dataclass

from specfast.intervals import Interval

MAX_BATCH = 64
PREFILL_HEAVY = 2 / 3  # of a request's time before its first token
COPYING = 0.3  # of an answer's tokens, what a look-up could have said
MATCH = 3  # tokens that a look-up matches
TIE = 0.05  # of the best one's speed: closer is a tie, and the simpler one wins

# What each kind is called, and the order of the questions: of copying texts, and of others.
KINDS = {
    "ngram": "retrieval",
    "suffix": "retrieval",
    "recycle": "recycling",
    "draft_model": "a smaller model",
    "eagle": "heads",
    "medusa": "heads",
    "mtp": "native MTP",
}
OTHER = "other"
_ORDER = ("a smaller model", "heads", "native MTP", "recycling", OTHER)
COPY_ORDER, FREE_ORDER = ("retrieval", *_ORDER), (*_ORDER, "retrieval")


@dataclass(frozen=True)
class Option:
    """A candidate as measured: fixed at its best k, and auto; speed-ups over plain decoding.

    auto_over_fixed: the one over the other, in the same run.
    """

    name: str
    method: str
    k: int
    fixed: Interval
    auto: Interval
    auto_over_fixed: Interval

    @property
    def policy(self) -> str:
        """auto, unless fixed is faster beyond doubt."""
        return "fixed" if self.auto_over_fixed.high < 1 else "auto"

    @property
    def speedup(self) -> Interval:
        return self.fixed if self.policy == "fixed" else self.auto

    @property
    def kind(self) -> str:
        return KINDS.get(self.method, OTHER)


@dataclass(frozen=True)
class Workload:
    """prefill_share: of plain decoding's time, what passes before first tokens; copied_share: of
    the answers' tokens, those that a look-up of the last MATCH tokens would have said.
    """

    batch_size: int
    prefill_share: float
    copied_share: float

    @property
    def copies(self) -> bool:
        return self.copied_share >= COPYING


@dataclass(frozen=True)
class Decision:
    """option None: don't speculate. reasons: a sentence a step of the tree, with its figures."""

    option: Option | None
    reasons: tuple[str, ...]


def decide(workload: Workload, options: Seqs[Option]) -> Decision:
    """Prefill-heavy, or a large batch: don't. Nothing faster beyond doubt: don't. Else the first in
    the tree's order that is the fastest, or ties with it.
    """
    if refusal := _refusal(workload, options):
        return Decision(None, refusal)
    faster = [o for o in options if o.speedup.low > 1]
    best = max(faster, key=lambda o: o.speedup.value)
    order = COPY_ORDER if workload.copies else FREE_ORDER
    level = [o for o in faster if o.speedup.value >= (1 - TIE) * best.speedup.value]
    chosen = min(level, key=lambda o: (order.index(o.kind), -o.speedup.value))
    return Decision(chosen, (*_context(workload), *_choice(chosen, best, workload)))


def _refusal(workload: Workload, options: Seqs[Option]) -> tuple[str, ...]:
    """Why not to speculate; empty where one should."""
    best = max((o.speedup.value for o in options if o.speedup.value > 0), default=1.0)
    if workload.batch_size > MAX_BATCH:
        return (
            f"{workload.batch_size} sequences at once are more than {MAX_BATCH}: steps are bound "
            "by computing there, and rejected drafts compute for nothing. The best candidate "
            f"measured {best:.2f}x.",
        )
    if workload.prefill_share >= PREFILL_HEAVY:
        p = workload.prefill_share
        whole = 1 / (p + (1 - p) / best)
        return (
            f"{p:.0%} of a request's time passes before its first token, which drafts don't "
            f"shorten: decoding {best:.2f}x as fast would make requests {whole:.2f}x as fast.",
        )
    if not any(o.speedup.low > 1 for o in options):
        return (
            f"No candidate makes decoding faster beyond doubt: the best measured {best:.2f}x, and "
            "its interval reaches 1 or is not known.",
        )
    return ()


def _context(workload: Workload) -> tuple[str, ...]:
    share = f"{workload.copied_share:.0%} of the answers' tokens repeat what was there before"
    return (
        f"{workload.prefill_share:.0%} of a request's time passes before its first token, and "
        f"{workload.batch_size} at once leave the processor idle capacity: drafting can pay.",
        f"{share} (a look-up of {MATCH} tokens would have said them): retrieval, which costs next "
        "to nothing, goes first."
        if workload.copies
        else f"{share}: too few for retrieval to go first; a smaller model of the family does, "
        "then heads, then native MTP.",
    )


def _choice(chosen: Option, best: Option, workload: Workload) -> tuple[str, ...]:
    s = chosen.speedup
    measured = f"{s.value:.2f}x ({s.low:.2f} to {s.high:.2f})"
    if chosen is best:
        why = f"{chosen.name} ({chosen.kind}) is the fastest that was measured: {measured}."
    else:
        why = (
            f"{chosen.name} ({chosen.kind}) measured {measured}, within {TIE:.0%} of the fastest, "
            f"{best.name} with {best.speedup.value:.2f}x, and comes before it in that order."
        )
    ratio = chosen.auto_over_fixed
    policy = (
        f"Fixed k = {chosen.k} is faster than auto beyond doubt (auto over fixed: "
        f"{ratio.low:.2f} to {ratio.high:.2f})."
        if chosen.policy == "fixed"
        else f"Policy auto is not slower than fixed k = {chosen.k} beyond doubt "
        f"({ratio.value:.2f}x), and it finds its own k and gate when the load changes."
    )
    return why, policy


def gate_of(speedups: Mapping[int, Interval]) -> tuple[str | dict[str, int], str]:
    """-> (gate, why). speedups: by batch size, at the smallest of which drafting pays. Up to the
    largest size before the first at which it is slower beyond doubt; without one, by measure.
    """
    sizes = sorted(speedups)
    slower = [size for size in sizes if speedups[size].high < 1]
    if not slower:
        measured = ", ".join(map(str, sizes))
        return "auto", (
            f"Gate auto: at no batch size that was measured ({measured}) is it slower than plain "
            "decoding beyond doubt, and auto stops drafting where a step's time says so."
        )
    s, last = speedups[slower[0]], sizes[sizes.index(slower[0]) - 1]
    return {"max_batch_size": last}, (
        f"Gate: no drafts above {last} sequences at once, for at {slower[0]} it is slower than "
        f"plain decoding beyond doubt: {s.value:.2f}x ({s.low:.2f} to {s.high:.2f})."
    )


def copied_share(prompt: Seqs[int], output: Seqs[int]) -> float:
    """Of the output's tokens, those that followed the last time its MATCH tokens stood there."""
    tokens = [*prompt, *output]
    after: dict[tuple[int, ...], int] = {}
    num_copied = 0
    for i in range(MATCH, len(tokens)):
        key = tuple(tokens[i - MATCH : i])
        num_copied += i >= len(prompt) and after.get(key) == tokens[i]
        after[key] = tokens[i]
    return num_copied / len(output) if output else 0.0
