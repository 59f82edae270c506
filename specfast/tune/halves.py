"""Prompts in two halves: one to fit a prediction on, the other to hold it against."""

from __future__ import annotations

from collections.abc import Sequence as Seqs

from specfast.data import Prompt


def halve(prompts: Seqs[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """-> (to fit on, to hold against): every category's prompts by turns, so that both halves have
    all categories and differ by at most one prompt in each. ValueError for a category of one.
    """
    first: list[Prompt] = []
    second: list[Prompt] = []
    for category in dict.fromkeys(p.category for p in prompts):
        members = [p for p in prompts if p.category == category]
        if len(members) < 2:
            raise ValueError(
                f"The prompts can't be halved: of the category {category!r} there is one alone. "
                "Give at least two of each, by --num-prompts or --dataset, or leave it out by "
                "--categories."
            )
        more, less = members[::2], members[1::2]
        fits_more = len(first) <= len(second)
        first += more if fits_more else less
        second += less if fits_more else more
    return first, second
