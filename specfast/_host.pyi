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
def philox(seed: int, counter: Sequence[int]) -> list[int]: ...

class NgramIndex:
    num_ngrams: int

    def __init__(self, min_n: int, max_n: int) -> None: ...
    def __len__(self) -> int: ...
    def append(self, tokens: list[int]) -> None: ...
    def truncate(self, length: int) -> None: ...
    def draft(self, k: int) -> tuple[list[int], int]: ...
