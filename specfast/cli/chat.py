"""specfast chat: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from specfast.cli.console import INVALID, first_interrupt, note, warn
from specfast.cli.generate import check_show_drafts, report_errors, stream, summary
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
    from specfast.sampling_params import SamplingParams


def chat(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    prefix_caching: PrefixCaching = True,
    system: Annotated[
        str | None, option("The system message.", unset="the chat template's own")
    ] = None,
    show_drafts: Annotated[
        bool, flag("Colour the tokens that were accepted drafts.", "--show-drafts")
    ] = False,
) -> None:
    """Talk to a model, a line a message.

    /reset starts anew, Ctrl-C stops an answer, /exit or the end of input leaves.
    """
    params = sampling.params()
    config = speculation.config()
    if show_drafts:
        check_show_drafts(config is not None)
    from specfast.llm import LLM

    values = model.engine_config(
        max_num_seqs=1, enable_prefix_caching=prefix_caching, speculative_config=config
    )
    llm = LLM(**values)
    _converse(llm, params, system, show_drafts)


def _converse(llm: LLM, params: SamplingParams, system: str | None, drafts: bool) -> None:
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    for line in _lines():
        if line == "/reset":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        prompt = llm.tokenizer.encode_chat(messages)
        try:
            llm.engine.check_admissible(prompt, params)
        except ValueError as error:  # too long by now: what was said is not lost
            warn(f"{error} The message is left out; /reset starts anew.")
            messages.pop()
            continue
        with first_interrupt() as stop:
            output = stream(llm, prompt, params, drafts, stop.is_set)
        messages.append({"role": "assistant", "content": output.outputs[0].text})
        stopped = f"Stopped; the answer so far is kept{f'; {INVALID}' * output.synthetic}."
        note(summary(output) if output.finished else stopped)
        report_errors([output])


def _lines() -> Iterator[str]:
    """The user's messages; a prompt sign only where someone types."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or line.strip() == "/exit":
            return
        if line.strip():
            yield line.strip()
