"""What the budget looks at of a verified step."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Decided(Protocol):
    """What the target said: path [B, N] and num_accepted [B], as in VerifyResult."""

    @property
    def path(self) -> Tensor: ...

    @property
    def num_accepted(self) -> Tensor: ...
