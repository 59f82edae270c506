"""LLM: the offline API, with names as vLLM spells them where they mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seqs
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.outputs import RequestOutput
from specfast.prometheus import exposition
from specfast.proposers.registry import check_method, make_proposer
from specfast.proposers.target import Target
from specfast.request import Request
from specfast.sampling_params import SamplingParams
from specfast.spec_stats import SpecStats
from specfast.speculative_config import SpeculativeConfig
from specfast.step_profile import cost_profile
from specfast.tokenizer import Tokenizer
from specfast.validation import is_integer

Prompt = str | Seqs[int]
Message = Mapping[str, Any]


def make_engine(model: Model, tokenizer: Tokenizer, config: EngineConfig) -> Engine:
    """With the proposer that the config names; what steps cost is known where it decides by it."""
    proposer = make_proposer(Target(model, tokenizer, config))
    engine = Engine(model, tokenizer, config, proposer)
    if engine.budget.weighs_costs:
        engine.budget.know(cost_profile(engine))
    return engine


class LLM:
    """A model that generates, with or without speculation: the same bytes either way.

    model: a Hugging Face folder or hub id, a .gguf file, or "demo". Other settings are
    EngineConfig's; an unknown one is a ValueError.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        **engine_config: Any,
    ) -> None:
        values = {"model": model, "speculative_config": speculative_config, **engine_config}
        self.config = EngineConfig.from_dict(values)
        check_method(self.config.speculative_config)
        target, self.tokenizer = load(self.config.model, self.config.dtype)
        self.engine = make_engine(target, self.tokenizer, self.config)

    def generate(
        self,
        prompts: Prompt | Seqs[Prompt],
        sampling_params: SamplingParams | Seqs[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes each prompt (text, or token ids); outputs in the order of the prompts.

        use_tqdm: shows how far it is on stderr, if that is a terminal, for more than one prompt.
        ValueError before anything runs, if one of them could never be served.
        """
        one = _is_one_prompt(prompts)
        batch: list[Prompt] = [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]
        params = _broadcast(sampling_params, len(batch))
        tokens = [self._tokens_of(p) for p in batch]
        return self._run(batch, tokens, params, use_tqdm)

    def chat(
        self,
        messages: Seqs[Message] | Seqs[Seqs[Message]],
        sampling_params: SamplingParams | Seqs[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, through the model's chat template."""
        conversations = [messages] if _is_one_conversation(messages) else list(messages)
        texts = [self.tokenizer.chat_prompt(c) for c in conversations]  # type: ignore[arg-type]
        tokens = [self.tokenizer.encode(t, add_special_tokens=False) for t in texts]
        return self._run(texts, tokens, _broadcast(sampling_params, len(texts)), use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yields the request's output so far after every step that added to it; cancelled if
        abandoned. Streams may be read in turn: a step of one is a step of all.
        """
        (params,) = _broadcast(sampling_params, 1)
        text = prompt if isinstance(prompt, str) else None
        request = self.engine.add_request(self._tokens_of(prompt), params, prompt=text)
        ended = False
        try:
            while not ended:
                if request.finished or any(o.seq in request.seqs for o in self.engine.step()):
                    ended = request.finished
                    yield request.output()
        finally:
            self.engine.cancel(request.request_id)

    def stats(self) -> SpecStats:
        """The engine's counters so far."""
        return self.engine.metrics.stats

    def prometheus_metrics(self) -> str:
        """Everything that the engine counts, in Prometheus's text format: see docs/metrics.md."""
        return exposition(self.engine)

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, Mapping):
            raise ValueError("A prompt is a text or a list of token ids here, not a dict.")
        if not isinstance(prompt, Iterable):
            raise ValueError(f"A prompt is a text or a list of token ids, not {prompt!r}.")
        return list(prompt)

    def _run(
        self,
        prompts: Seqs[Prompt],
        tokens: list[list[int]],
        params: Seqs[SamplingParams],
        show_progress: bool,
    ) -> list[RequestOutput]:
        for ids, p in zip(tokens, params):
            self.engine.check_admissible(ids, p)
        texts = [p if isinstance(p, str) else None for p in prompts]
        requests = [
            self.engine.add_request(ids, p, prompt=text)
            for ids, p, text in zip(tokens, params, texts)
        ]
        try:
            with _progress(len(requests), show_progress) as bar:
                self._drive(requests, bar)
        finally:
            for request in requests:
                self.engine.cancel(request.request_id)
        return [r.output() for r in requests]

    def _drive(self, requests: list[Request], bar: Progress) -> None:
        task, before = bar.task_ids[0], self.stats()
        while not all(r.finished for r in requests):
            self.engine.step()
            if bar.disable:
                continue
            done = self.stats() - before
            bar.update(
                task,
                completed=sum(r.finished for r in requests),
                speed=done.num_emitted_tokens / done.step_seconds,
                length=done.tokens_per_iteration,
            )


def _is_one_prompt(prompts: object) -> bool:
    """Text, or ids; what is neither is left to be refused as a prompt."""
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Iterable):
        return True
    return isinstance(prompts, Seqs) and len(prompts) > 0 and is_integer(prompts[0])


def _is_one_conversation(messages: Seqs[Any]) -> bool:
    return len(messages) > 0 and isinstance(messages[0], Mapping)


def _broadcast(
    params: SamplingParams | Seqs[SamplingParams] | None, n: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if isinstance(params, Mapping):
        raise ValueError("sampling_params is a dict: give SamplingParams.from_dict of it.")
    if not isinstance(params, Seqs):
        raise ValueError(
            f"sampling_params takes SamplingParams, or a list of them, not {params!r}."
        )
    if len(params) != n:
        raise ValueError(f"{n} prompts need one SamplingParams or {n}, not {len(params)}.")
    return list(params)


def _progress(total: int, show: bool) -> Progress:
    """A bar on stderr for more than one prompt, where stderr is a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("Generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]:.1f} tok/s, {task.fields[length]:.2f} tokens a step"),
        console=console,
        disable=not (show and total > 1 and console.is_terminal),
    )
    bar.add_task("generate", total=total, speed=0.0, length=0.0)
    return bar
