"""Prompts to measure with: the built-in workload, or a JSON lines file of the user's."""

from specfast.data.workload import CHAT, COPY_HEAVY, GROUPS, Prompt, load_workload, select_prompts

__all__ = ["CHAT", "COPY_HEAVY", "GROUPS", "Prompt", "load_workload", "select_prompts"]
