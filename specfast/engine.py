"""The engine: one step, and the requests it serves."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence as Seqs
from typing import cast

from specfast.ab_test import AbTest
from specfast.budget import Budget
from specfast.config import EngineConfig
from specfast.kv_cache import BlockManager, KVCache, blocks_within, kv_shape_of
from specfast.kv_shape import KVShape
from specfast.latencies import Latencies
from specfast.metrics import SpecMetrics
from specfast.models.decoder import Model
from specfast.models.runner import ModelRunner
from specfast.outputs import StepOutput
from specfast.proposers.base import NO_NEEDS, Proposal, Proposer, source_names
from specfast.proposers.guard import Guard
from specfast.proposers.target import ModelProposer
from specfast.request import Request
from specfast.request_metrics import RequestMetrics
from specfast.sampler import fork_seed, resolve_seed
from specfast.sampling_params import SamplingParams
from specfast.scheduler import Scheduler
from specfast.sequence import Batch, Sequence, StopRule
from specfast.stats_log import StatsLog
from specfast.tokenizer import Tokenizer
from specfast.validation import is_integer
from specfast.verifier import make_verifier
from specfast.warning_signs import Evidence, WarningSigns

logger = logging.getLogger(__name__)


class Engine:
    """Steps a target model and an optional proposer over the requests that were added."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, config: EngineConfig, proposer: Proposer | None
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.vocab_size = model.config.vocab_size
        needs = proposer.needs if proposer else NO_NEEDS
        cache, blocks = self._new_cache(model, proposer, needs.kv)
        self.max_model_len = self._context_limit(model, blocks.num_blocks)
        logger.info(
            "KV cache: %d blocks of %d tokens in %s; context of %d tokens.",
            *(blocks.num_blocks, config.block_size, cache.data.dtype, self.max_model_len),
        )
        self.scheduler = Scheduler(
            blocks,
            [cache],
            config.max_num_seqs,
            config.max_num_batched_tokens,
            needs.scratch_slots,
        )
        speculation = config.speculative_config
        self.budget = Budget(speculation, len(source_names(proposer, "")))
        fraction = speculation.ab_fraction if speculation else 0.0
        self.ab = AbTest(fraction, lambda seqs: self.budget.plan(seqs))
        self.proposer = proposer
        self._needs = needs
        self._guard = Guard(proposer, self.vocab_size, self.budget.switch_off) if proposer else None
        self.runner = ModelRunner(model, cache, needs)
        self.verifier = make_verifier(speculation)
        method = speculation.method if speculation else ""
        self.metrics = SpecMetrics(source_names(proposer, method) if proposer else ())
        self.metrics.speedups, self.metrics.calibration = self.ab, self.budget
        self.latencies = Latencies()
        self.stats_log, self.warning_signs = StatsLog(), WarningSigns()
        self.requests: dict[str, Request] = {}
        self._seq_ids, self._request_ids = itertools.count(), itertools.count()
        self._request_of: dict[int, Request] = {}

    def step(self) -> list[StepOutput]:
        """One target pass for every scheduled sequence; returns what each got."""
        start = time.perf_counter()
        with self.metrics.timing_step():
            batch = self.scheduler.schedule(self.ab)
            proposal = self.budget.select(batch, self._propose(batch))
            forward = self.runner.forward(batch, proposal)
            result = self.verifier.verify(batch, proposal, forward)
            outputs = self.scheduler.commit(batch, proposal, result)
            if self._guard and batch.speculates:
                self._guard.observe(batch, proposal, forward, result)
            self.budget.observe(batch, proposal, result)
            self.metrics.observe(batch, proposal, result, outputs)
        self.ab.observe(batch, outputs, time.perf_counter() - start)
        self._settle(outputs)
        self._release(outputs)
        self._report()
        return outputs

    def add_request(
        self,
        prompt_token_ids: Seqs[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        prompt: str | None = None,
    ) -> Request:
        """Admits a request. ValueError, and nothing else changed, if it could never be served."""
        ids = list(prompt_token_ids)
        self.check_admissible(ids, params)
        ids = [int(t) for t in ids]
        request_id = request_id or f"req-{next(self._request_ids)}"
        if request_id in self.requests:
            raise ValueError(f"Request id {request_id!r} is in use; give each request its own.")
        arm, params = self.ab.assign(request_id, params)
        seqs = self._sequences(ids, params)
        kv_uses = tuple(seq.kv_use for seq in seqs)
        metrics = RequestMetrics(params.n, self.budget.depth, arm, kv_uses)
        law = self._is_lossless(params), self._is_synthetic(params)
        request = Request(request_id, prompt, ids, seqs, metrics, *law)
        self.ab.add(arm, seqs)
        self.requests[request_id] = request
        for seq in seqs:
            self._request_of[seq.seq_id] = request
            self.scheduler.add(seq)
        return request

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; one already finished or unknown is no error."""
        if request := self.requests.get(request_id):
            for seq in request.seqs:
                self.scheduler.cancel(seq)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def reset_prefix_cache(self) -> None:
        """Forgets published blocks, so that the next prompt is computed anew."""
        self.scheduler.blocks.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Asserts the invariants of the block pool."""
        self.scheduler.blocks.check_integrity(self.scheduler.unfinished)

    def _new_cache(
        self, model: Model, proposer: Proposer | None, draft: KVShape | None
    ) -> tuple[KVCache, BlockManager]:
        """The target's cache and its blocks, over which the proposer gets one of its own if it asks
        for one.
        """
        config = self.config
        target = kv_shape_of(model, config.kv_cache_dtype)
        per_token = target.bytes_per_token + (draft.bytes_per_token if draft else 0)
        num_blocks = config.num_blocks or blocks_within(config.kv_cache_memory, per_token, config)
        cache = KVCache(target, num_blocks, config.block_size)
        blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)
        if proposer and draft:
            draft_cache = KVCache(draft, num_blocks, config.block_size, blocks.generations)
            cast(ModelProposer, proposer).attach(draft_cache)
        return cache, blocks

    def _is_lossless(self, params: SamplingParams) -> bool:
        """Whether this request's answer follows the model's law."""
        config = self.config.speculative_config
        exact = config is None or config.lossless or not params.speculation.enabled
        return exact or (params.greedy and not self._is_synthetic(params))

    def _is_synthetic(self, params: SamplingParams) -> bool:
        """Whether drafts are accepted by decree, so that the text is invalid."""
        config = self.config.speculative_config
        return bool(config and config.synthetic and params.speculation.enabled)

    def _sequences(self, ids: list[int], params: SamplingParams) -> tuple[Sequence, ...]:
        """One a choice, each with its own seed."""
        max_length = self.max_model_len
        if params.max_tokens is not None:
            max_length = min(max_length, len(ids) + params.max_tokens)
        rule = StopRule(self.tokenizer.eos_token_ids, max_length)
        seed = resolve_seed(params)
        return tuple(
            Sequence(
                next(self._seq_ids),
                ids,
                params,
                fork_seed(seed, choice),
                rule,
                self.tokenizer.detokenizer(params.skip_special_tokens),
            )
            for choice in range(params.n)
        )

    def _propose(self, batch: Batch) -> Proposal:
        if self._guard is None or not (batch.draft_limits.any() or self._needs.takes_in(batch)):
            return Proposal.empty(len(batch))
        with self.metrics.timing_proposal():
            return self._guard.propose(batch)

    def _settle(self, outputs: list[StepOutput]) -> None:
        """Times what users got, and forgets what finished."""
        now = time.perf_counter()
        for output in outputs:
            request = self._request_of[output.seq.seq_id]
            if output.token_ids:
                self.latencies.emitted(request.metrics, now)
            request.metrics.observe(output, now, *self.metrics.last_seconds)
            if output.finish is None:
                continue
            del self._request_of[output.seq.seq_id]
            if request.finished:
                request.metrics.finish_time = now
                self.latencies.finished(request.metrics, now)
                self.requests.pop(request.request_id, None)  # its choices may end together

    def _release(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            if self._guard and output.finish:
                self._guard.release(output.seq)
                self.budget.release(output.seq)

    def _report(self) -> None:
        """Logs how it goes, and what looks wrong, when it is time to."""
        if self._guard:
            self.stats_log.tick(lambda: self.metrics.stats)
            self.warning_signs.tick(self._evidence, is_idle=not self.requests)

    def _evidence(self, with_speedups: bool) -> Evidence:
        """with_speedups: their intervals are resampled, which takes a while."""
        m = self.metrics
        speedups = m.speedups if with_speedups else None
        sizes = {1, m.p50_batch_size} if m.p50_batch_size else ()
        return Evidence(
            m.stats,
            m.by_source,
            speedups.effective_speedup if speedups else None,
            {size: speedups.speedup_at(size) for size in sizes if speedups},
            m.p50_batch_size,
            m.calibration_error,
        )

    def _context_limit(self, model: Model, num_blocks: int) -> int:
        """The longest sequence, in tokens, that model, setting and cache all allow."""
        capacity = num_blocks * self.config.block_size
        trained = model.config.max_position_embeddings
        asked = self.config.max_model_len
        if asked is not None and asked > trained:
            raise ValueError(
                f"max_model_len={asked} is above the model's context of {trained} tokens."
            )
        if asked is not None and asked > capacity:
            raise ValueError(
                f"max_model_len={asked} needs more than the {num_blocks} KV blocks of "
                f"{self.config.block_size} tokens; raise kv_cache_memory or num_blocks."
            )
        if asked is None and self.config.num_blocks is None and capacity < trained:
            logger.warning(
                "The KV cache limits the context to %d tokens; the model's is %d. Raise "
                "kv_cache_memory, or set max_model_len.",
                *(capacity, trained),
            )
        return min(asked or trained, capacity)

    def check_admissible(self, ids: list[int], params: SamplingParams) -> None:
        """ValueError with what to do, if a request could never be served."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"A request takes SamplingParams, not {params!r}.")
        if not ids:
            raise ValueError("The prompt is empty; give at least one token.")
        if len(ids) >= self.max_model_len:
            raise ValueError(
                f"The prompt has {len(ids)} tokens; with room for one more the limit is "
                f"{self.max_model_len} (max_model_len). Shorten it."
            )
        if wrong := [t for t in ids if not is_integer(t)]:
            raise ValueError(f"A prompt is text or a list of token ids; {wrong[0]!r} is no id.")
        if bad := [t for t in ids if not 0 <= t < self.vocab_size]:
            raise ValueError(f"Token id {bad[0]} is outside the vocabulary of {self.vocab_size}.")
        k = params.speculation.num_speculative_tokens
        if k and not self.budget.depth:
            raise ValueError(
                "speculative: this engine drafts nothing; give it a speculative_config."
            )
        if k is not None and k > self.budget.depth:
            raise ValueError(
                f"speculative: num_speculative_tokens={k} is above the engine's "
                f"{self.budget.depth}."
            )
