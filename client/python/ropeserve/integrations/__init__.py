"""What other packages need to take rotations or tables from here. Each module needs its package."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def probes(length: int) -> list[int]:
    """Positions below `length` at which values of another library are compared: near ones and far
    ones, because pairs that turn slowly differ far out only."""
    return sorted({*range(min(4, length)), *np.geomspace(1, max(length - 1, 1), 32).astype(int)})


def float32_error(angles: torch.Tensor, factor: float) -> torch.Tensor:
    """The most by which cos and sin are off, times an attention factor, where a library computes
    inverse frequencies and these angles in float32."""
    return (1e-6 + 5e-7 * angles) * max(factor, 1)
