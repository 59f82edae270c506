"""specfast generate: completes prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specfast.cli.console import (
    DRAFT_STYLE,
    INVALID,
    fail,
    has_colours,
    note,
    warn,
    write,
    write_json,
)
from specfast.cli.options import (
    ModelOptions,
    PrefixCaching,
    SamplingOptions,
    flag,
    option,
)
from specfast.cli.speculation import SpeculationOptions

if TYPE_CHECKING:
    from specfast.llm import LLM
    from specfast.outputs import CompletionOutput, RequestOutput
    from specfast.sampling_params import SamplingParams
    from specfast.tokenizer import Detokenizer


def generate(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to complete; '-' or nothing reads one from stdin."),
    ] = None,
    max_num_seqs: Annotated[int, option("Requests computed together.", panel="Model")] = 32,
    prefix_caching: PrefixCaching = True,
    n: Annotated[int, option("Answers to each prompt.", "-n", panel="Sampling")] = 1,
    as_chat: Annotated[
        bool, flag("Wrap each prompt as a user's message to an assistant.", "--chat")
    ] = False,
    show_drafts: Annotated[
        bool, flag("Colour the tokens that were accepted drafts.", "--show-drafts")
    ] = False,
    as_json: Annotated[
        bool, flag("Print one JSON object a prompt instead of its text.", "--json")
    ] = False,
) -> None:
    """Complete PROMPTS and print the text, as it is generated if there is one."""
    params = sampling.params(n=n)
    config = speculation.config()
    if show_drafts:
        check_show_drafts(config is not None, as_json)
    texts = [sys.stdin.read() if p == "-" else p for p in prompts or ["-"]]
    from specfast.llm import LLM

    values = model.engine_config(
        max_num_seqs=max_num_seqs, enable_prefix_caching=prefix_caching, speculative_config=config
    )
    llm = LLM(**values)
    chats = [[{"role": "user", "content": t}] for t in texts]
    if len(texts) == 1 and n == 1 and not as_json:
        prompt = llm.tokenizer.encode_chat(chats[0]) if as_chat else texts[0]
        outputs = [stream(llm, prompt, params, show_drafts)]
        note(summary(outputs[0]))
    else:
        outputs = llm.chat(chats, params) if as_chat else llm.generate(texts, params)
        for number, output in enumerate(outputs, 1):
            _print(output, number, llm, show_drafts, as_json)
    if report_errors(outputs):
        raise typer.Exit(1)


def stream(
    llm: LLM,
    prompt: str | list[int],
    params: SamplingParams,
    drafts: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> RequestOutput:
    """Prints one answer as it comes, up to its end or until it is stopped."""
    printer = Printer(llm.tokenizer.detokenizer(params.skip_special_tokens) if drafts else None)
    for output in llm.stream(prompt, params):
        printer.show(output.outputs[0])
        if stopped():
            break
    write("\n")
    return output


class Printer:
    """Prints what is new in a growing answer; with a detokeniser it colours accepted drafts."""

    def __init__(self, detokenizer: Detokenizer | None = None) -> None:
        self._detokenizer = detokenizer
        self._num_tokens = self._num_printed = 0
        self._is_draft: list[bool] = []  # a character of text each

    def show(self, completion: CompletionOutput) -> None:
        if self._detokenizer:
            self._attribute(self._detokenizer, completion)
        new = range(self._num_printed, len(completion.text))
        for is_draft, run in groupby(new, key=self._drafted):
            characters = list(run)
            text = completion.text[characters[0] : characters[-1] + 1]
            write(text, style=DRAFT_STYLE if is_draft else None)
        self._num_printed = len(completion.text)

    def _attribute(self, detokenizer: Detokenizer, completion: CompletionOutput) -> None:
        """A character belongs to the token that completed it."""
        first = self._num_tokens
        for token_id, accepted in zip(completion.token_ids[first:], completion.accepted[first:]):
            self._is_draft += [accepted] * len(detokenizer.append(token_id))
        self._num_tokens = len(completion.token_ids)

    def _drafted(self, character: int) -> bool:
        return character < len(self._is_draft) and self._is_draft[character]


def summary(output: RequestOutput) -> str:
    """One line on what a request took."""
    m = output.metrics
    num_tokens = sum(len(c.token_ids) for c in output.outputs)
    assert m.finish_time is not None
    seconds = m.finish_time - m.arrival_time
    line = f"{num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tok/s"
    if m.num_drafts:
        line += f"; {m.num_accepted_tokens} of {m.num_draft_tokens} drafts accepted"
    if output.synthetic:
        line += f"; {INVALID}"
    elif not output.lossless:
        line += "; lossy: not the model's own law"
    return line + "."


def report_errors(outputs: list[RequestOutput]) -> bool:
    """Says why answers ended early, where the model failed; -> whether one did."""
    choices = [c for output in outputs for c in output.outputs]
    errors = [str(c.stop_reason) for c in choices if c.finish_reason == "error"]
    for error in errors:
        fail(error)
    return bool(errors)


def check_show_drafts(speculates: bool, as_json: bool = False) -> None:
    """Refuses --show-drafts where there are no drafts, warns where there are no colours."""
    if not speculates:
        raise ValueError("--show-drafts does nothing with --spec-method none.")
    if as_json:
        raise ValueError("--show-drafts does nothing with --json, whose 'accepted' says the same.")
    if not has_colours():
        warn("--show-drafts does nothing here: the output is not a colour terminal.")


def _print(output: RequestOutput, number: int, llm: LLM, drafts: bool, as_json: bool) -> None:
    if as_json:
        write_json(_record(output))
        return
    for choice in output.outputs:
        write(f"--- prompt {number}, answer {choice.index + 1}\n")
        Printer(llm.tokenizer.detokenizer() if drafts else None).show(choice)
        write("\n")
    note(summary(output))


def _record(output: RequestOutput) -> dict[str, Any]:
    m = output.metrics
    counts = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    kv = ("num_prefix_query_tokens", "num_prefix_hit_tokens", "max_kv_blocks")
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "outputs": [asdict(c) for c in output.outputs],
        "lossless": output.lossless,
        "synthetic": output.synthetic,
        "metrics": {
            "seconds": (m.finish_time or 0.0) - m.arrival_time,
            "time_to_first_token": (m.first_token_time or 0.0) - m.arrival_time,
            **{name: getattr(m, name) for name in (*counts, *kv)},
        },
    }
