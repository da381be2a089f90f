"""What other packages need to take rotations or tables from here. Each module needs its package."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..client import Client


@dataclasses.dataclass(frozen=True)
class Probe:
    """Exact rows of an embedding, to compare those with that another library computes.

    Near rows alone would not do, because pairs that turn slowly differ far out only.

    Attributes:
        positions: [probes], ascending, near ones and far ones.
        cos, sin: [probes, pairs], with the attention factor.
        error: [probes, pairs], by which they are off at most where inverse frequencies and angles
            are computed in float32.
    """

    positions: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    error: np.ndarray


def probe(client: Client, length: int, **embedding: Any) -> Probe:
    """Positions below `length`, with the rows that describe gives for them."""
    far = np.geomspace(1, max(length - 1, 1), 32).astype(int)
    positions = np.unique([*range(min(4, length)), *far])
    told = client.describe(positions=positions.tolist(), **embedding)
    angles = np.outer(positions, told.inv_freq)
    return Probe(positions, np.stack([row["cos"] for row in told.rows]),
                 np.stack([row["sin"] for row in told.rows]),
                 (1e-6 + 5e-7 * angles) * max(told.attention_factor, 1))
