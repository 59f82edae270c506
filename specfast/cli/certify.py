"""specfast certify: checks that speculation changes no byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specfast.cli.console import note, save_json, write
from specfast.cli.options import check_counts, check_folder_of, listed, option

if TYPE_CHECKING:
    from specfast.certify import Certificate, SettingResult
    from specfast.config import EngineConfig
    from specfast.speculative_config import SpeculativeConfig
    from specfast.tokenizer import Tokenizer


def certify(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder or hub id, a .gguf file, or 'demo'.")
    ],
    dtype: Annotated[
        str, option("The weights' type: auto (the checkpoint's), bfloat16 or float32.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        str, option("The KV cache's type: auto (as --dtype), bfloat16 or float32.")
    ] = "auto",
    spec_method: Annotated[
        str,
        option("Who drafts: a method, several with commas, or all.", "--spec-method", "--method"),
    ] = "ngram",
    spec_model: Annotated[
        str | None, option("The draft model of methods that take one.", unset="the model's own")
    ] = None,
    num_prompts: Annotated[int, option("Prompts, each answered in every setting.")] = 100,
    max_tokens: Annotated[int, option("New tokens a prompt.")] = 64,
    max_prompt_tokens: Annotated[int, option("Longer prompts are cut to so many tokens.")] = 160,
    num_settings: Annotated[
        int | None,
        option("Only the first so many settings.", unset="all that are needed"),
    ] = None,
    dataset: Annotated[
        Path | None,
        option("Prompts as JSON lines, in Spec-Bench's format.", unset="the built-in workload"),
    ] = None,
    json: Annotated[Path | None, option("Write the result to this file.", unset="none")] = None,
) -> None:
    """Answer prompts plainly and by speculation under many conditions; all bytes must agree.

    The conditions (drafts, batch, chunks, blocks, prefix cache, sampling, preemption, threads) are
    crossed pairwise. Exit code 1 if anything differs, or a setting never met what it tests.
    """
    from specfast.certify_settings import variants
    from specfast.config import EngineConfig
    from specfast.data import load_workload
    from specfast.proposers.registry import check_method

    check_folder_of(json)
    check_counts(
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        num_settings=num_settings,
    )
    methods = _methods(spec_method, model, spec_model)
    drafters = [drafter for config in methods for drafter in variants(config)]
    for drafter in drafters:
        check_method(drafter)
    texts = [p.turns[0] for p in load_workload(dataset)]
    config = EngineConfig(
        model,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        speculative_config=drafters[0],
    )
    certificate, tokenizer = _run(
        config, drafters, texts, num_prompts, max_prompt_tokens, max_tokens, num_settings
    )
    if json:
        save_json(certificate.to_dict(), json)
    _conclude(certificate, tokenizer)


def _run(
    config: EngineConfig,
    drafters: list[SpeculativeConfig],
    texts: list[str],
    num_prompts: int,
    max_prompt_tokens: int,
    max_tokens: int,
    num_settings: int | None,
) -> tuple[Certificate, Tokenizer]:
    import torch

    from specfast.certify import Certifier
    from specfast.certify_settings import settings, vary_prompts
    from specfast.measure import prompt_ids
    from specfast.models.loader import load

    target, tokenizer = load(config.model, config.dtype)
    tokens = [prompt_ids(tokenizer, [{"role": "user", "content": t}]) for t in texts]
    prompts = vary_prompts(tokens, num_prompts, max_prompt_tokens)
    chosen = settings(max(2, torch.get_num_threads()), drafters)[:num_settings]
    note(f"Certifying {config.model}: {len(prompts)} prompts, {len(chosen)} settings ...")
    certifier = Certifier(target, tokenizer, config, prompts, max_tokens)
    return certifier.certify(chosen, _report), tokenizer


def _report(result: SettingResult) -> None:
    """A line a setting, as it is done."""
    s = result.setting
    law = "T = 1, filters" if s.sampled else "greedy"
    described = (
        f"{_drafter(s.drafter)}, k {s.num_speculative_tokens} {s.policy}, "
        f"batch {s.batch_size}, chunk {s.chunk_size}, block {s.block_size}, "
        f"{'prefix cache, ' if s.prefix_caching else ''}{'few blocks, ' if s.preempt else ''}"
        f"{s.threads} threads, {law}{'' if s.ignore_eos else ', EOS'}"
    )
    events = ", ".join(f"{name} {count}" for name, count in result.events.items())
    verdict = "FAILED" if result.failures else "same bytes"
    unseen = [f["message"] for f in result.failures if f["kind"] == "unseen event"]
    events = "; ".join([events, *unseen])
    write(f"{verdict}: {result.identical}/{result.checked} ({described}; {events})\n")


def _methods(names: str, target: str, model: str | None) -> list[SpeculativeConfig]:
    """The methods named, each with its model; "all" leaves out those that lack one."""
    from specfast.models.committed import DRAFTS_OF
    from specfast.models.loader import kind_of
    from specfast.proposers.registry import known_methods, takes_model
    from specfast.speculative_config import SpeculativeConfig

    models = DRAFTS_OF.get(target, {})
    if names != "all":
        return [
            SpeculativeConfig(m, model=(model or models.get(m)) if takes_model(m) else None)
            for m in listed(names)
        ]
    if model:
        models = {**models, kind_of(model): model, "hybrid": model}
    chosen = [m for m in known_methods() if m in models or m == "hybrid" or not takes_model(m)]
    if left := sorted(set(known_methods()) - set(chosen)):
        note(f"Left out, for want of a model (--spec-model): {', '.join(left)}.")
    return [SpeculativeConfig(m, model=models.get(m)) for m in chosen]


def _drafter(config: SpeculativeConfig) -> str:
    given = (f"{name} {value}" for name, value in config.method_settings.items())
    return " ".join([config.method, *given])


def _conclude(certificate: Certificate, tokenizer: Tokenizer) -> None:
    total = certificate.to_dict()
    write(f"{total['identical']} of {total['checked']} answers are the same bytes.\n")
    if not certificate.failures:
        return
    first = certificate.failures[0]
    write(_described(first, tokenizer) + "\n")
    raise typer.Exit(1)


def _described(failure: dict[str, Any], tokenizer: Tokenizer) -> str:
    if failure["kind"] != "difference":
        advice = ""
        if failure["kind"] == "unseen event":
            advice = " Give more or longer prompts, or a larger --max-tokens, so that it happens."
        return f"First failure: {failure['message']} (setting {failure['setting']}).{advice}"
    expected, got = (tokenizer.decode(failure[side]) for side in ("expected", "got"))
    return (
        f"First difference: prompt {failure['prompt']}, token {failure['position']}: plain "
        f"decoding says {expected!r}, speculation {got!r}; the target's two best tokens are "
        f"{failure['margin']:.3g} apart (setting {failure['setting']})."
    )
