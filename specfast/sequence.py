"""One choice of one request while it is being decoded, and the batch that a step works on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol

import numpy as np

from specfast.sampling_params import SamplingParams


class Detokenizer(Protocol):
    """Turns ids into text that can no longer change, id by id."""

    def append(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class Finish:
    """Why a sequence ended: "stop", "length", "abort" or "error"; detail is the stop id, string or
    message.
    """

    reason: str
    detail: int | str | None = None


@dataclass
class KVUse:
    """What a sequence had of the KV cache: tokens looked up and found at its admissions, one a
    preemption more; and the most blocks that it held in a step, those for its drafts included.
    """

    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    max_blocks: int = 0


@dataclass(frozen=True)
class StopRule:
    """What ends a sequence besides its own parameters: the model's EOS ids and the length in
    tokens.
    """

    eos_token_ids: frozenset[int]
    max_length: int


class Sequence:
    """Owns its tokens, text and KV bookkeeping.

    Invariant: the last token is never in the KV cache, so 0 <= num_computed_tokens <
    len(token_ids). kv_epoch changes whenever the blocks are dropped, so that a drafter knows its KV
    is gone too.
    """

    def __init__(
        self,
        seq_id: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int,
        stop_rule: StopRule,
        detokenizer: Detokenizer,
    ) -> None:
        self.seq_id = seq_id
        self.params = params
        self.seed = seed
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of the published blocks, in order
        self.kv_epoch = 0
        self.kv_use = KVUse()
        self.status = Status.WAITING
        self.finish: Finish | None = None
        self.text = ""
        self.accepted: list[bool] = []  # per output token: it came from a draft
        self._stop_rule = stop_rule
        self._stop_strings: tuple[str, ...] = tuple(params.stop or ())
        self._detokenizer = detokenizer

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that may still be emitted before a length limit."""
        return self._stop_rule.max_length - len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def settled_text(self) -> str:
        """The text less what a stop string may still take back."""
        held = 0 if self.finish else max(map(len, self._stop_strings), default=1) - 1
        return self.text[: max(0, len(self.text) - held)]

    def drop_kv(self) -> None:
        """Back to nothing computed; the blocks themselves are the block manager's affair."""
        self.num_computed_tokens = 0
        self.block_hashes.clear()
        self.kv_epoch += 1

    def append(self, token_id: int, accepted: bool) -> Finish | None:
        """Takes one decided token: the one place where a stop is decided."""
        self.token_ids.append(token_id)
        self.accepted.append(accepted)
        if self._is_stop_token(token_id):
            return self._end(Finish("stop", self._stop_detail(token_id)))
        searched = len(self.text)
        self.text += self._detokenizer.append(token_id)
        if self._cut_at_stop_string(searched):
            return self.finish
        if self.num_remaining_tokens <= 0:
            return self._end(Finish("length"))
        return None

    def end(self, reason: str, message: str | None = None) -> None:
        """Ends from outside: "abort" or "error"."""
        self._end(Finish(reason, message))

    def _is_stop_token(self, token_id: int) -> bool:
        if token_id in (self.params.stop_token_ids or ()):
            return True
        return not self.params.ignore_eos and token_id in self._stop_rule.eos_token_ids

    def _stop_detail(self, token_id: int) -> int | None:
        return token_id if token_id in (self.params.stop_token_ids or ()) else None

    def _end(self, finish: Finish) -> Finish:
        searched = len(self.text)
        self.text += self._detokenizer.flush()
        self.finish = finish
        if finish.reason == "length":
            self._cut_at_stop_string(searched)
        return self.finish

    def _cut_at_stop_string(self, searched: int) -> bool:
        """Cuts the text at the earliest stop string that ends past `searched`, and finishes with
        it.
        """
        found = []
        for stop in self._stop_strings:
            at = self.text.find(stop, max(0, searched - len(stop) + 1))
            if at >= 0:
                found.append((at, stop))
        if not found:
            return False
        at, stop = min(found)
        self.text = self.text[: at + len(stop) if self.params.include_stop_str_in_output else at]
        self.finish = Finish("stop", stop)
        return True


@dataclass(frozen=True)
class Batch:
    """What one step computes: for sequence b, num_tokens[b] tokens from starts[b], and drafts after
    them.

    starts, num_tokens [B] int32; draft_limits [B, 2] int32: depth and nodes, 0 where nothing is
    drafted. The arrays become read-only: a proposer is handed them.
    """

    seqs: tuple[Sequence, ...]
    starts: np.ndarray
    num_tokens: np.ndarray
    draft_limits: np.ndarray

    def __post_init__(self) -> None:
        for array in (self.starts, self.num_tokens, self.draft_limits):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.seqs)

    def only(self, rows: list[int]) -> Batch:
        """The same step for some of its sequences."""
        seqs = tuple(self.seqs[row] for row in rows)
        return Batch(seqs, self.starts[rows], self.num_tokens[rows], self.draft_limits[rows])

    @cached_property
    def node_base(self) -> np.ndarray:
        """[B] int32: the logical slot of draft node 0."""
        return self.starts + self.num_tokens

    @cached_property
    def decides(self) -> np.ndarray:
        """[B] bool: the tail reaches the last token, so that this step emits."""
        lengths = np.fromiter((len(s.token_ids) for s in self.seqs), np.int32, len(self.seqs))
        return self.node_base == lengths

    @cached_property
    def speculates(self) -> bool:
        """Whether drafts matter to any of its requests: else the step is a plain one."""
        return any(s.params.speculation.enabled for s in self.seqs)

    @cached_property
    def contexts(self) -> np.ndarray:
        """[B] int64: tokens of each sequence as the step began."""
        return self.node_base.astype(np.int64)
