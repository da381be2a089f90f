"""transformers: a model's rotary layers take exact cos and sin instead of computing them.

    from ropeserve.integrations.transformers import patch
    patch(model)

A model of transformers computes angles in float32, which is off by up to 0.01 at position 100,000.
The tables are exact before they are rounded to the model's dtype.
"""
from __future__ import annotations

import inspect
from typing import Any, Callable, Optional

import torch

from ..client import Client, local
from ..configs import Description
from ..errors import invalid
from . import float32_error, probes

_ROWS_MIN = 1024
_LENGTH = 4096  # of a config that says none

# How layers of transformers return [..., rotary_dim / 2] values.
_WIDENED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "halves": lambda rows: torch.cat((rows, rows), dim=-1),
    "neighbours": lambda rows: rows.repeat_interleave(2, dim=-1),
    "once": lambda rows: rows,
}


class _ExactRows:
    """Takes the place of a rotary layer's forward."""

    def __init__(self, client: Client, layer: Any, name: str) -> None:
        self._client = client
        self._config = layer.config.to_dict()
        self._tables: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._told: dict[Optional[str], Description] = {}
        self._widen = _WIDENED["halves"]
        takes_type = "layer_type" in inspect.signature(layer.forward).parameters
        types = self._config.get("layer_types") if takes_type else None
        for layer_type in sorted(set(types)) if types else [None]:
            self._check(layer, name, layer_type)

    def _check(self, layer: Any, name: str, layer_type: Optional[str]) -> None:
        """Raises InvalidField where the layer returns something else than rows of a table."""
        told = self._client.describe(config=self._config, layer_type=layer_type or "", compat="hf",
                                     seq_len=1)
        self._told[layer_type] = told
        if told.config.get("rope_type") == "dynamic":
            raise invalid(name, "rope_type dynamic", "frequencies that do not follow each call")
        length = told.config.get("max_position_embeddings", _LENGTH)
        if told.depends_on_seq_len:  # both lists of longrope have their own probes
            length = told.config["original_max_position_embeddings"]
        positions = torch.tensor([probes(length)])
        if "mrope" in told.config:  # other positions on each axis
            positions = torch.stack([positions, positions.flip(-1), positions.roll(1, -1)])
        angles = positions[..., None] * torch.from_numpy(told.inv_freq)
        like = torch.zeros((), dtype=torch.float32)
        named = [] if layer_type is None else [layer_type]
        want = layer.forward(like, positions, *named)
        for self._widen in _WIDENED.values() if isinstance(want, tuple) else ():
            error = float32_error(self._widen(angles), told.attention_factor)
            if all(mine.shape == own.shape and ((mine - own).abs() <= error).all()
                   for mine, own in zip(self(like, positions, *named), want)):
                return
        raise invalid(name, type(layer).__name__, "a layer whose cos and sin are rows of one table")

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor,
                 layer_type: Optional[str] = None) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = (int(each) for each in torch.aminmax(position_ids))
        if first < 0:
            raise invalid("position_ids", first, "at least 0")
        cos, sin = self._table(layer_type, last + 1, x.dtype, x.device)
        return self._widen(cos[position_ids]), self._widen(sin[position_ids])

    def _table(self, layer_type: Optional[str], length: int, dtype: torch.dtype,
               device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of at least `length` positions. Tables grow by doubling."""
        told = self._told[layer_type]
        # The two lists of longrope: as transformers chooses, by the length of the call.
        original = told.config.get("original_max_position_embeddings", 0)
        is_long = told.depends_on_seq_len and length > original
        key = layer_type, is_long, dtype, device
        kept = self._tables.get(key)
        if kept is None or len(kept[0]) < length:
            end = max(_ROWS_MIN, 1 << (length - 1).bit_length())
            made = self._client.tables(end=end, layout="cos_sin", dtype=dtype, compat="hf",
                                       config=self._config, layer_type=layer_type or "",
                                       seq_len=original + 1 if is_long else 1)
            kept = self._tables[key] = made.cos.to(device), made.sin.to(device)
        return kept


def patch(model: Any, *, client: Optional[Client] = None) -> list[str]:
    """Gives every rotary layer of a model exact cos and sin, in the model's dtype.

    A layer's own values are compared first, to within errors of float32, so a layer that computes
    something else is refused and no layer changes. A table has a row for each position up to the
    largest that was seen, rounded up to a power of two.

    Args:
        model: a model of transformers, or any module with layers named ...RotaryEmbedding.
        client: computes the tables; without it an engine in this process.
    Returns:
        the names of the layers.
    Raises:
        InvalidField: there is no such layer, or one cannot take its values from a table: dynamic
            scaling, interleaved axes of three positions, complex values.
    """
    client = client or local(threads=1)
    found = {name: layer for name, layer in model.named_modules()
             if type(layer).__name__.endswith("RotaryEmbedding") and hasattr(layer, "config")}
    if not found:
        raise invalid("model", type(model).__name__, "one with layers named ...RotaryEmbedding")
    made = {name: _ExactRows(client, layer, name) for name, layer in found.items()}
    for name, layer in found.items():
        layer.forward = made[name]
    return list(found)
