"""transformers: a model's rotary layers take exact cos and sin instead of computing them.

    from ropeserve.integrations.transformers import patch
    patch(model)

A model of transformers computes angles in float32, which is off by up to 0.01 at position 100,000.
The tables are exact before they are rounded to the model's dtype.
"""
from __future__ import annotations

import inspect
from typing import Any, Callable, Optional

import numpy as np
import torch

from ..client import Client, own_engine
from ..configs import Description
from ..errors import invalid
from . import Probe, probe

_ROWS_MIN = 1024
_LENGTH = 4096  # of a config that says none

# How layers of transformers return [..., rotary_dim / 2] values.
_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "halves": lambda rows: torch.cat((rows, rows), dim=-1),
    "interleaved": lambda rows: rows.repeat_interleave(2, dim=-1),
    "once": lambda rows: rows,
}


class _ExactRows:
    """Takes the place of a rotary layer's forward."""

    def __init__(self, client: Optional[Client], positions_max: Optional[int], layer: Any,
                 name: str) -> None:
        self._given = client
        self._positions_max = positions_max
        self._config = layer.config.to_dict()
        self._told: dict[Optional[str], Description] = {}
        self._tables: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        takes_type = "layer_type" in inspect.signature(layer.forward).parameters
        types = self._config.get("layer_types") if takes_type else None
        self._forms = {layer_type: self._form_of(layer, name, layer_type)
                       for layer_type in (sorted(set(types)) if types else [None])}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def _form_of(self, layer: Any, name: str, layer_type: Optional[str]) -> str:
        """How the layer returns its values. InvalidField: they are not rows of a table."""
        embedding: dict[str, Any] = {"config": self._config, "layer_type": layer_type or "",
                                     "compat": "hf"}
        client = self._given or own_engine()
        told = self._told[layer_type] = client.describe(seq_len=1, **embedding)
        if told.config.get("rope_type") == "dynamic":
            raise invalid(name, "rope_type dynamic", "frequencies that do not follow each call")
        length = told.config.get("max_position_embeddings", _LENGTH)
        probes = [probe(client, length, seq_len=1, **embedding)]
        if told.depends_on_seq_len:  # longrope: its short list, and its long one
            if self._positions_max is not None:
                raise invalid(name, "positions_max", "none, for lists that follow each call")
            original = told.config["original_max_position_embeddings"]
            probes = [probe(client, original, seq_len=1, **embedding)]
            if length > original:
                probes.append(probe(client, length, seq_len=original + 1, **embedding))
        forms = {_form_that_fits(layer, layer_type, each, "mrope" in told.config)
                 for each in probes}
        if len(forms) > 1 or None in forms:
            raise invalid(name, type(layer).__name__,
                          "a layer whose cos and sin are rows of one table")
        form: str = forms.pop()  # type: ignore[assignment]
        return form

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor,
                 layer_type: Optional[str] = None) -> tuple[torch.Tensor, torch.Tensor]:
        length = self._positions_max or 1
        if self._positions_max is None and position_ids.numel() > 0:
            first, last = (int(each) for each in torch.aminmax(position_ids))
            if first < 0:
                raise invalid("position_ids", first, "at least 0")
            length = last + 1
        cos, sin = self._table(layer_type, length, x.dtype, x.device)
        form = _FORMS[self._forms[layer_type]]
        return form(cos[position_ids]), form(sin[position_ids])

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
            client = self._given or own_engine()
            made = client.tables(end=end, layout="cos_sin", dtype=dtype, compat="hf",
                                 config=self._config, layer_type=layer_type or "",
                                 seq_len=original + 1 if is_long else 1)
            kept = self._tables[key] = made.cos.to(device), made.sin.to(device)
        return kept


def _form_that_fits(layer: Any, layer_type: Optional[str], want: Probe,
                    has_axes: bool) -> Optional[str]:
    """How the layer's own forward returns the rows of a probe; None: it returns something else."""
    rows = np.arange(len(want.positions))[np.newaxis]
    if has_axes:  # other positions on each axis
        rows = np.stack([rows, rows[:, ::-1], np.roll(rows, 1, axis=-1)])
    device = next((buffer.device for buffer in layer.buffers()), torch.device("cpu"))
    like = torch.zeros((), dtype=torch.float32, device=device)
    positions = torch.from_numpy(want.positions[rows]).to(device)
    got = layer.forward(like, positions, *([] if layer_type is None else [layer_type]))
    if not (isinstance(got, tuple) and len(got) == 2):
        return None
    error, *exact = (torch.from_numpy(each[rows]) for each in (want.error, want.cos, want.sin))
    for name, form in _FORMS.items():
        if all(own.shape == form(mine).shape and
               bool(((own.cpu().double() - form(mine)).abs() <= form(error)).all())
               for own, mine in zip(got, exact)):
            return name
    return None


def patch(model: Any, *, client: Optional[Client] = None,
          positions_max: Optional[int] = None) -> list[str]:
    """Gives every rotary layer of a model exact cos and sin, in the model's dtype.

    A layer's own values are compared first, to within errors of float32, so a layer that computes
    something else is refused and no layer changes. A table has a row for each position up to the
    largest that was seen, rounded up to a power of two: 8 bytes for each pair in fp32, and 0.3
    microseconds once.

    Args:
        model: a model of transformers, or any module with layers named ...RotaryEmbedding.
        client: computes the tables; without it an engine in this process.
        positions_max: how many positions the table has. Without it the largest of each call is read
            first, which waits for a GPU and allows no capture; with it none may be larger.
    Returns:
        the names of the layers.
    Raises:
        InvalidField: there is no such layer, or one cannot take its values from a table: dynamic
            scaling, interleaved sections of three axes, complex values; longrope's from one.
    """
    found = {name: layer for name, layer in model.named_modules()
             if type(layer).__name__.endswith("RotaryEmbedding") and hasattr(layer, "config")}
    if not found:
        raise invalid("model", type(model).__name__, "one with layers named ...RotaryEmbedding")
    made = {name: _ExactRows(client, positions_max, layer, name) for name, layer in found.items()
            if not isinstance(layer.forward, _ExactRows)}
    for name, exact in made.items():
        found[name].forward = exact
    return list(found)
