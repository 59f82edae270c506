"""Lossless speculative decoding for LLMs: the same bytes, sooner."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specfast.config import EngineConfig
    from specfast.llm import LLM
    from specfast.outputs import CompletionOutput, RequestOutput
    from specfast.sampling_params import SamplingParams
    from specfast.speculative_config import SpeculativeConfig

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
]

_HOME = {
    "LLM": "specfast.llm",
    "CompletionOutput": "specfast.outputs",
    "EngineConfig": "specfast.config",
    "RequestOutput": "specfast.outputs",
    "SamplingParams": "specfast.sampling_params",
    "SpeculativeConfig": "specfast.speculative_config",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: the command line starts at once, and info runs without the ops."""
    if name not in _HOME:
        raise AttributeError(f"module 'specfast' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
