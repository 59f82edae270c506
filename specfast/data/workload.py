"""Reads prompts from JSON lines: Spec-Bench's format and the usual instruction formats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from specfast.validation import read_text

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
COPY_HEAVY = (
    *("summarisation", "code_editing", "structured_extraction"),
    *("summarization", "rag", "edit_eval"),
)
GROUPS = {"copy_heavy": COPY_HEAVY, "chat": CHAT}  # names that stand for several categories
BUILT_IN = "workload.jsonl"

_FORMATS = "'turns', 'prompt', 'question', or 'instruction' with 'input'"


@dataclass(frozen=True)
class Prompt:
    """One conversation: the user's turns, in order."""

    id: str
    category: str
    turns: tuple[str, ...]


def load_workload(path: str | PathLike[str] | None = None) -> list[Prompt]:
    """Prompts of a JSON lines file; None: the built-in workload.

    A line is an object with 'turns' (Spec-Bench: 'question_id', 'category', 'turns'), 'prompt',
    'question', or 'instruction' with 'input'. Category defaults to the file's stem, id to the line
    number. ValueError names file and line.
    """
    if path is None:
        file = resources.files("specfast.data").joinpath(BUILT_IN)
        return _parse(file.read_text("utf-8"), BUILT_IN)
    return _parse(read_text(Path(path), "a JSON lines file of prompts"), str(path))


def select_prompts(
    prompts: list[Prompt], categories: Iterable[str] = (), num_prompts: int | None = None
) -> list[Prompt]:
    """Those of the categories ('chat' and 'copy_heavy' stand for groups), at most num_prompts.

    A smaller number takes the categories in turn, so that each stays represented. ValueError names
    an unknown category and the known ones.
    """
    known = list(dict.fromkeys(p.category for p in prompts))
    wanted = _expand(categories, known)
    kept = [p for p in prompts if not wanted or p.category in wanted]
    if num_prompts is None or num_prompts >= len(kept):
        return kept
    by_category = [[p for p in kept if p.category == c] for c in known]
    in_turn = [p for row in zip_longest(*by_category) for p in row if p is not None]
    chosen = set(map(id, in_turn[:num_prompts]))
    return [p for p in kept if id(p) in chosen]


def _expand(categories: Iterable[str], known: list[str]) -> set[str]:
    wanted: set[str] = set()
    for name in categories:
        found = set(GROUPS.get(name, (name,))) & set(known)
        if not found:
            raise ValueError(f"There is no category {name!r}; the prompts have {', '.join(known)}.")
        wanted |= found
    return wanted


def _parse(text: str, name: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                prompts.append(_prompt(line, Path(name).stem, number))
            except ValueError as error:
                raise ValueError(f"{name}, line {number}: {error}") from None
    if not prompts:
        raise ValueError(f"{name} holds no prompts.")
    return prompts


def _prompt(line: str, stem: str, number: int) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}).") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, with {_FORMATS}.")
    turns = _turns(row)
    if not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ValueError("the prompt must be text, and not empty.")
    name = next((row[k] for k in ("id", "question_id", "task_id") if k in row), number)
    return Prompt(str(name), str(row.get("category", stem)), tuple(turns))


def _turns(row: Mapping[str, Any]) -> list[Any]:
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list):
            raise ValueError("'turns' must be a list of strings.")
        return turns
    for key in ("prompt", "question"):
        if key in row:
            return [row[key]]
    if "instruction" in row:
        return [_with_input(row["instruction"], _input(row))]
    raise ValueError(f"no prompt found; a line needs {_FORMATS}.")


def _input(row: Mapping[str, Any]) -> str:
    """The instruction's input; self-instruct keeps it in the first of its instances."""
    if "input" in row:
        return str(row["input"] or "")
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else {}
    return str(first.get("input") or "") if isinstance(first, dict) else ""


def _with_input(instruction: Any, text: str) -> Any:
    return f"{instruction}\n\n{text}" if text and isinstance(instruction, str) else instruction
