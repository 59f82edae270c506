"""Lossless speculative decoding for LLMs: the same bytes, sooner."""

from specfast.config import EngineConfig, SamplingParams, SpeculativeConfig
from specfast.llm import LLM
from specfast.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
]
