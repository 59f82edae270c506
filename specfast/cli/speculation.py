"""The options of speculation, which several commands share."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any

from specfast.cli.options import flag_of, given, listed, option
from specfast.speculative_config import SpeculativeConfig
from specfast.synthetic import NAME


@dataclass(frozen=True)
class SpeculationOptions:
    """Who drafts, and how far."""

    speculative_config: Annotated[
        str | None,
        option(
            "Everything about speculation as JSON, with the keys of SpeculativeConfig, such as "
            '\'{"method": "ngram", "num_speculative_tokens": 5}\'.',
            panel="Speculation",
            unset="the options below",
        ),
    ] = None
    spec_method: Annotated[
        str | None,
        option(
            "Who drafts: ngram (prompt lookup), suffix (frequencies of what followed before), "
            "recycle (what the target found likely before), draft_model, eagle or medusa "
            "(--spec-model), mtp (the target's own blocks), hybrid (suffix with a drafter), none.",
            panel="Speculation",
            unset="ngram",
        ),
    ] = None
    spec_model: Annotated[
        str | None,
        option(
            "The model or heads that draft, for methods that take some: a folder, hub id, .gguf "
            "file or known name.",
            *("--spec-model", "--speculative-model"),
            panel="Speculation",
            unset="none",
        ),
    ] = None
    draft_dtype: Annotated[
        str | None,
        option(
            "The type of --spec-model's weights: auto, bfloat16 or float32.",
            panel="Speculation",
            unset="auto",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None, option("Drafts a step; in a tree its depth.", panel="Speculation", unset="8")
    ] = None
    policy: Annotated[
        str | None,
        option(
            "As many drafts as pay on this machine (auto), up and down with each request's "
            "acceptance (simple), or always all (fixed).",
            panel="Speculation",
            unset="auto",
        ),
    ] = None
    max_tree_nodes: Annotated[
        int | None,
        option(
            "Drafts a step, for methods that draft trees.",
            panel="Speculation",
            unset="the method's",
        ),
    ] = None
    prompt_lookup_max: Annotated[
        int | None,
        option("ngram: the longest suffix to look for.", panel="Speculation", unset="4"),
    ] = None
    prompt_lookup_min: Annotated[
        int | None,
        option("ngram: the shortest suffix to look for.", panel="Speculation", unset="1"),
    ] = None

    synthetic_acceptance: Annotated[
        str | None,
        option(
            "Accept drafts by decree, to try controllers and costs: rates by position such as "
            "0.8,0.6, or, from 1 on, a number of tokens a step. The text is invalid.",
            panel="Speculation",
            unset="the target decides",
        ),
    ] = None

    def config(self) -> SpeculativeConfig | None:
        """ValueError for options that contradict each other or would do nothing."""
        names = [
            f.name for f in fields(self) if f.name not in ("speculative_config", "spec_method")
        ]
        details = given(self, *names)
        if self.speculative_config is not None:
            if self.spec_method or details:
                other = flag_of("spec_method" if self.spec_method else next(iter(details)))
                raise ValueError(f"Give --speculative-config or {other}, not both.")
            return _checked(SpeculativeConfig.from_dict(_json_object(self.speculative_config)))
        method = self.spec_method or "ngram"
        if method != "none":
            return _checked(SpeculativeConfig(method, **_renamed(details)))
        if details:
            raise ValueError(
                f"{flag_of(next(iter(details)))} does nothing with --spec-method none."
            )
        return None


def _renamed(details: dict[str, Any]) -> dict[str, Any]:
    renamed = {name.removeprefix("spec_"): value for name, value in details.items()}
    if text := renamed.get(NAME):
        renamed[NAME] = _rates_or_length(text)
    return renamed


def _rates_or_length(text: str) -> list[float] | float:
    """A single number from 1 on is a length; "1," is a rate."""
    try:
        rates = [float(word) for word in listed(text)]
    except ValueError:
        raise ValueError(f"{flag_of(NAME)} takes numbers, such as 0.8,0.6, not {text!r}.") from None
    return rates[0] if len(rates) == 1 and rates[0] >= 1 and "," not in text else rates


def _checked(config: SpeculativeConfig) -> SpeculativeConfig:
    from specfast.proposers.registry import check_method

    check_method(config)
    return config


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--speculative-config is not JSON: {error}.") from None
    if not isinstance(value, dict) or "method" not in value:
        raise ValueError("--speculative-config must be a JSON object with at least 'method'.")
    return value
