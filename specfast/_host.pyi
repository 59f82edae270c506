from collections.abc import Sequence

import numpy as np

def lay_out_rows(
    tail_tokens: np.ndarray,
    starts: np.ndarray,
    num_tokens: np.ndarray,
    decides: np.ndarray,
    lengths: np.ndarray,
    tokens: np.ndarray,
    parents: np.ndarray,
    block_tables: np.ndarray,
    block_size: int,
) -> tuple[np.ndarray, ...]: ...
def gumbel_noise(seed: int, position: int, ids: Sequence[int]) -> list[float]: ...
def philox(seed: int, counter: Sequence[int]) -> list[int]: ...

class NgramIndex:
    num_ngrams: int

    def __init__(self, min_n: int, max_n: int) -> None: ...
    def __len__(self) -> int: ...
    def append(self, tokens: list[int]) -> None: ...
    def truncate(self, length: int) -> None: ...
    def draft(self, k: int) -> tuple[list[int], int]: ...

class Adjacency:
    def __init__(self, vocab_size: int, width: int) -> None: ...
    def replace(self, tokens: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> None: ...
    def follow(self, tokens: list[int]) -> None: ...
    def clear(self) -> None: ...
    def draft(
        self,
        root: int,
        max_depth: int,
        max_nodes: int,
        floor: float,
        temperature: float,
        seed: int,
        position: int,
        coupled: bool = True,
    ) -> tuple[list[int], list[int], list[float]]: ...

class SuffixTree:
    MAX_BYTES_PER_TOKEN: int
    num_appended: int
    num_documents: int
    num_nodes: int
    num_bytes: int

    def __init__(self, max_depth: int, max_bytes: int) -> None: ...
    def __len__(self) -> int: ...
    def append(self, tokens: list[int]) -> None: ...
    def end_document(self) -> None: ...
    def drop_document(self) -> None: ...
    def continuations(self, context: list[int]) -> list[tuple[int, int]]: ...

class SuffixDrafter:
    def __init__(
        self,
        doubt: Sequence[float],
        pool_doubt: Sequence[float],
        floor: float,
        coupled: bool = True,
    ) -> None: ...
    def draft(
        self,
        text: SuffixTree,
        pool: SuffixTree | None,
        depth: int,
        nodes: int,
        temperature: float,
        seed: int,
        behind: Sequence[int] = ...,
    ) -> tuple[list[int], list[int], list[float]]: ...

class TreeGrowth:
    def __init__(
        self,
        bases: np.ndarray,
        depths: np.ndarray,
        nodes: np.ndarray,
        slots: np.ndarray,
        block_tables: np.ndarray,
        block_size: int,
        width: int,
        children: int,
        min_survival: float,
        min_extended: float,
        is_drawn: bool = False,
    ) -> None: ...
    def grow(self, ids: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, ...]: ...
    def trees(self) -> tuple[np.ndarray, ...]: ...

def kept_nodes(
    keep: np.ndarray,
    tokens: np.ndarray,
    parents: np.ndarray,
    confidence: np.ndarray,
    sources: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]: ...

class NodeChoice:
    calibration_error: float | None

    def __init__(self, num_sources: int) -> None: ...
    def best(
        self,
        parents: np.ndarray,
        lengths: np.ndarray,
        confidence: np.ndarray,
        sources: np.ndarray | None,
        seq_ids: np.ndarray,
        seconds: np.ndarray,
        context_seconds: np.ndarray,
        num_decoding: int,
    ) -> np.ndarray: ...
    def observe(
        self,
        parents: np.ndarray,
        lengths: np.ndarray,
        confidence: np.ndarray,
        sources: np.ndarray | None,
        seq_ids: np.ndarray,
        path: np.ndarray,
        num_accepted: np.ndarray,
    ) -> None: ...
    def release(self, seq_id: int) -> None: ...

class Calibration:
    error: float | None

    def log_odds(self, confidence: float, depth: int) -> float: ...
    def observe(self, confidence: np.ndarray, depth: np.ndarray, accepted: np.ndarray) -> None: ...
    def fade(self) -> None: ...

class Offset:
    value: float

    def observe(self, log_odds: float, accepted: bool) -> None: ...
    def fade(self) -> None: ...
