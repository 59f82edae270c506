"""The target writes: users' turns and answers, in one process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.models.decoder import Model
from specfast.models.loader import load
from specfast.tokenizer import Tokenizer
from specfast.train.corpus_settings import CorpusSettings
from specfast.train.data import Answer, AnswerStore, Recorder, write_answers
from specfast.train.features import NO_FEATURES, FeatureRequest, FeatureStore
from specfast.train.prompts import Source, TargetPrompt, encode, open_user_turn

SELF_WRITTEN = "self_written"
_TURNS, _TURN_TOKENS = "turns", 96

# stage, done, total, a few words
Report = Callable[[str, int, int, str], None]


class Writer:
    """The target's engine, and where its texts are kept."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        settings: CorpusSettings,
        work: Path,
        report: Report,
        num_writers: int = 1,
        kept: FeatureRequest = NO_FEATURES,
    ) -> None:
        self.tokenizer, self.settings, self.work, self.report = tokenizer, settings, work, report
        self.num_writers, self.kept = num_writers, kept
        self.recorder = Recorder(settings.top_logits, kept.layers)
        config = EngineConfig(
            model=settings.target,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_prompt_tokens + settings.max_answer_tokens,
            enable_prefix_caching=not kept.layers,  # a hit has no hidden states
        )
        self.engine = Engine(model, tokenizer, config, self.recorder)

    def self_written(self) -> list[Source]:
        """User turns that the target ended by itself, once each."""
        count = self.settings.num_self_prompts
        if not count:
            return []
        opening = open_user_turn(self.tokenizer)
        seed = self.settings.seed
        prompts = [TargetPrompt(opening, SELF_WRITTEN, 1.0, seed + i) for i in range(count)]
        turns = self._write(prompts, _TURNS, _TURN_TOKENS)
        ends = self.tokenizer.eos_token_ids
        texts = [
            self.tokenizer.decode(a.tokens[a.num_prompt_tokens :].tolist()).strip()
            for a in turns
            if int(a.tokens[-1]) in ends
        ]
        return [Source(text, SELF_WRITTEN, True) for text in dict.fromkeys(texts) if text]

    def fitting(self, sources: Sequence[Source]) -> list[Source]:
        """Those that are short enough."""
        limit = self.settings.max_prompt_tokens
        return [s for s in sources if 0 < len(encode(s, self.tokenizer)) <= limit]

    def answer(
        self, sources: Sequence[Source], sampled_share: float, name: str
    ) -> tuple[list[Answer], list[TargetPrompt]]:
        """The answers and the prompts."""
        prompts = []
        for n, source in enumerate(sources):
            sampled = int((n + 1) * sampled_share) > int(n * sampled_share)
            prompt = encode(source, self.tokenizer)
            seed = self.settings.seed + n
            prompts.append(TargetPrompt(prompt, source.category, float(sampled), seed))
        if not prompts:
            raise ValueError(
                f"No prompt for {name} is left: all are longer than max_prompt_tokens, or overlap "
                "with evaluation prompts."
            )
        return self._write(prompts, name, self.settings.max_answer_tokens), prompts

    def _write(self, prompts: list[TargetPrompt], name: str, max_tokens: int) -> list[Answer]:
        task = _Task(self.settings, self.work, self.kept, prompts, name, max_tokens)
        with _helpers(task, self.num_writers):
            self.write_part(task, 0, self.num_writers)
        found = AnswerStore(self.work / name).load()
        self.report(f"writing {name}", len(found), len(prompts), "all written")
        assert [a.index for a in found] == list(range(len(prompts)))
        return found

    def write_part(self, task: _Task, part: int, num_parts: int) -> None:
        """Every num_parts-th answer, from `part` on."""
        store = AnswerStore(self.work / task.name, part)
        indices = range(part, len(task.prompts), num_parts)

        def report(num_answers: int, num_tokens: int) -> None:
            self.report(
                f"writing {task.name}", num_answers, len(task.prompts), f"{num_tokens} tokens"
            )

        write_answers(
            self.engine, self.recorder, task.prompts, store, task.max_tokens, report, indices,
            task.features(num_parts),
        )  # fmt: skip


@dataclass(frozen=True)
class _Task:
    """What is to be written, for processes that share it."""

    settings: CorpusSettings
    work: Path
    kept: FeatureRequest
    prompts: list[TargetPrompt]
    name: str
    max_tokens: int

    def features(self, num_parts: int) -> FeatureStore | None:
        """Where this part's share goes; users' turns are no text to train on."""
        if self.name == _TURNS or not self.kept.layers:
            return None
        return self.kept.store(self.work / self.name, num_parts)


@contextmanager
def _helpers(task: _Task, num_writers: int) -> Iterator[None]:
    """Processes that write parts 1, 2, ... while the caller writes part 0."""
    spawn = multiprocessing.get_context("spawn")
    parts = range(1, num_writers)
    processes = [spawn.Process(target=_write_part, args=(task, n, num_writers)) for n in parts]
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if processes else threads)
    try:
        for process in processes:
            process.start()
        yield
        for process in processes:
            process.join()
    finally:
        torch.set_num_threads(threads)
        for process in processes:
            if process.is_alive():
                process.terminate()
    if any(process.exitcode for process in processes):
        raise ValueError("A writer ended early; give the same command again to go on.")


def _write_part(task: _Task, part: int, num_parts: int) -> None:
    torch.set_num_threads(1)
    model, tokenizer = load(task.settings.target, task.settings.dtype)
    writer = Writer(
        model, tokenizer, task.settings, task.work, _end_with_the_parent, kept=task.kept
    )
    writer.write_part(task, part, num_parts)


def _end_with_the_parent(*progress: object) -> None:
    """A parent that was killed could not end its writers."""
    parent = multiprocessing.parent_process()
    if parent and not parent.is_alive():
        raise SystemExit("The process that started this writer is gone.")
