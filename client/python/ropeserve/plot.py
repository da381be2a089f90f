"""Draws what embeddings do: inverse frequencies, wavelengths, and decay with distance.

    from ropeserve.plot import figure
    figure("llama-3.1-8b").savefig("llama.svg")
    figure("old/config.json", "new/config.json").savefig("both.png")

Needs matplotlib: pip install ropeserve[plot]. The program `ropeserve plot` does the same.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .client import own_engine
from .configs import Description, named
from .errors import invalid

# Colours that colour-blind people can distinguish; dashes for prints without colour.
_COLOURS = ("#000000", "#0072b2")
_LENGTH: dict[str, Any] = {"color": "#009e73", "linestyle": (0, (10, 3, 2, 3)),
                           "linewidth": 1.2}
_RAMP: dict[str, Any] = {"color": "#e69f00", "linestyle": (0, (4, 2)), "linewidth": 1.2}
_ORIGINAL: dict[str, Any] = {"linestyle": (0, (7, 4)), "linewidth": 1.5, "alpha": 0.6}
_SCALED: dict[str, Any] = {"color": "#d55e00", "linestyle": (0, (2, 3)), "linewidth": 1.5}
_LENGTH_UNKNOWN = 8192
_LENGTH_MAX = 2 ** 40
_DISTANCES = 400


def lengths_of(told: Description) -> list[int]:
    """The lengths of a model in positions, ascending: before its scaling, if it has one, and after.

    Empty: neither the config nor the description's seq_len says one.
    """
    original = told.config.get("original_max_position_embeddings")
    extended = told.config.get("max_position_embeddings")
    if original is not None and (extended or 0) <= original:
        extended = int(min(original * told.config.get("factor", 1), _LENGTH_MAX))
    known = {length for length in (original, extended) if length is not None}
    return sorted(known) or [told.seq_len][:told.seq_len > 1]


def original_inv_freq(told: Description) -> np.ndarray:
    """[rotary_dim / 2] inverse frequencies without scaling, in radians per position.

    They are theta^(-2i / rotary_dim), or the config's own list.
    """
    count = len(told.inv_freq)
    own = told.config.get("inv_freq", ())
    if len(own) == count:
        return np.array(own, np.float64)
    plain: np.ndarray = told.config["rope_theta"] ** (-np.arange(count) / count)
    return plain


def decay(inv_freq: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product of q = k = ones at each distance in positions, divided by that at distance 0.

    Returns: the product, and its envelope, which is the largest value for any q and k that rotate
    by the same angle in every pair; [len(distances)] each.
    """
    turned = np.exp(1j * np.outer(distances, inv_freq)).mean(axis=1)
    return turned.real, np.abs(turned)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """One config as it is drawn: what it means at one length, or at two where they differ."""

    name: str
    colour: str
    told: list[Description]
    lengths: list[int]

    def results(self) -> list[tuple[Description, str, Any]]:
        """Each description with the label and the style of its curves."""
        if len(self.told) == 1:
            return [(self.told[0], f"{self.name}result", "solid")]
        styles = ((0, (1, 1)), "solid")
        return [(told, f"{self.name}result at length {told.seq_len}", style)
                for told, style in zip(self.told, styles)]


def _drawn(config: object, name: str, colour: str, seq_len: int | None,
           rope: dict[str, Any]) -> _Drawn:
    def describe(length: int) -> Description:
        return own_engine().describe(seq_len=length, **named(config), **rope)

    told = [describe(1 if seq_len is None else seq_len)]
    if not told[0].rotates:
        raise invalid("config", "a layer without rotary embedding", "one that rotates")
    lengths = lengths_of(told[0])
    if told[0].depends_on_seq_len and seq_len is None and lengths:
        told.append(describe(lengths[-1]))  # both lists of longrope; dynamic's both ends
    return _Drawn(name, colour, told, lengths)


def _title(told: Description) -> str:
    config = told.config
    texts = {"factor": "factor {:g}", "original_max_position_embeddings": "original length {}"}
    return ", ".join([f"{config['rope_type']}: theta {config['rope_theta']:.10g}",
                      f"rotary_dim {2 * len(told.inv_freq)}",
                      *(text.format(config[key]) for key, text in texts.items() if key in config),
                      f"attention factor {told.attention_factor:.6g}"])


def _curve(axes: Axes, values: np.ndarray, gid: str, **style: Any) -> None:
    """A curve over the index, without values that a logarithmic axis cannot show."""
    shown = np.flatnonzero((values > 0) & np.isfinite(values))
    axes.plot(shown, values[shown], gid=gid, **style)


def _draw_over_index(axes: Axes, each: _Drawn, gid: str, original: np.ndarray,
                     value: str) -> None:
    """The curve without scaling, and those of the attribute `value` of each description."""
    _curve(axes, original, f"{gid}-original", label=f"{each.name}original", color=each.colour,
           **_ORIGINAL)
    for result, label, style in each.results():
        _curve(axes, getattr(result, value), f"{gid}-result", label=label, color=each.colour,
               linestyle=style)


def _draw_ramp(line: Callable[..., Any], each: _Drawn, what: str, gid: str, form: str) -> None:
    """The edges of a ramp, by `line` of axes, at the ramp's low_`what` and high_`what`."""
    ramp = each.told[0].json.get("ramp")
    if ramp is None:
        return
    for edge, words in (("low", "kept up to"), ("high", "scaled from")):
        at = ramp[f"{edge}_{what}"]
        line(at, gid=gid, label=f"{each.name}{words} {form.format(at)}", **_RAMP)


def _draw_frequencies(axes: Axes, drawn: list[_Drawn]) -> None:
    axes.set(title="Inverse frequencies", yscale="log",
             xlabel="frequency index i (of channel pair)",
             ylabel="inverse frequency (radians per position)")
    for each in drawn:
        original = original_inv_freq(each.told[0])
        _draw_over_index(axes, each, "inv-freq", original, "inv_freq")
        factor = each.told[0].config.get("factor", 1)
        if factor != 1 and len(drawn) == 1:
            _curve(axes, original / factor, "inv-freq-scaled",
                   label=f"fully scaled (1/{factor:g})", **_SCALED)
        _draw_ramp(axes.axvline, each, "index", "ramp-index", "i = {:.4g}")


def _draw_wavelengths(axes: Axes, drawn: list[_Drawn]) -> None:
    axes.set(title="Wavelengths and context length", yscale="log",
             xlabel="frequency index i (of channel pair)", ylabel="wavelength, length (positions)")
    for each in drawn:
        # A frequency of zero has no wavelength; _curve leaves it out.
        with np.errstate(divide="ignore"):
            original = 2 * np.pi / original_inv_freq(each.told[0])
        _draw_over_index(axes, each, "wavelength", original, "wavelengths")
        for length in each.lengths:
            kind = "original length" if length != each.lengths[-1] else "length"
            axes.axhline(length, gid="length", label=f"{each.name}{kind} {length}", **_LENGTH)
        _draw_ramp(axes.axhline, each, "wavelength", "ramp-edge", "{:.6g}")


def _draw_decay(axes: Axes, drawn: list[_Drawn]) -> None:
    known = [length for each in drawn for length in each.lengths]
    last = max([2, *known] if known else [_LENGTH_UNKNOWN])
    distances = np.unique(np.round(np.geomspace(1, last, _DISTANCES)))
    axes.set(title="Decay of q.k with distance, q = k = ones", xscale="log", xlim=(1, last),
             ylim=(-1, 1), ylabel="q.k over q.k at distance 0 (ratio)",
             xlabel="distance of q and k (positions" + (")" if known else
                                                         "; the config says no length)"))
    for each in drawn:
        product, _ = decay(original_inv_freq(each.told[0]), distances)
        axes.plot(distances, product, gid="decay-original", label=f"{each.name}original",
                  color=each.colour, **_ORIGINAL)
        for result, label, style in each.results():
            product, envelope = decay(result.inv_freq, distances)
            axes.plot(distances, product, gid="decay-result", label=label, color=each.colour,
                      linestyle=style)
            if len(drawn) == 1:
                axes.plot(distances, envelope, gid="decay-envelope", label=f"envelope of {label}",
                          color="#cc79a7", linestyle=style)


def figure(config: object, other: object = None, *, seq_len: int | None = None,
           **rope: Any) -> Figure:
    """A figure of three panels: inverse frequencies and wavelengths over their index, with the
    edges of a ramp and the lengths of the model, and decay with distance.

    A config whose frequencies follow the length (dynamic, longrope) is drawn at length 1 and at
    the model's length.

    Args:
        config: the path of a config.json or a GGUF file, the text of a config.json, a mapping, a
            config of transformers, or the name of a preset.
        other: a second one, drawn over it.
        seq_len: draws this length alone.
        rope: what else Client.describe takes: layer, layer_type, sub_config, head_dim, compat.
    Raises:
        RopeError: a config cannot be read, or the layer has no rotary embedding.
    """
    configs = {"": config} if other is None else {"A: ": config, "B: ": other}
    drawn = [_drawn(each, name, colour, seq_len, rope)
             for (name, each), colour in zip(configs.items(), _COLOURS)]
    made = Figure(figsize=(11, 13), layout="constrained")
    made.suptitle("\n".join(f"{each.name}{_title(each.told[-1])}" for each in drawn))
    panels = made.subplots(3)
    for axes, draw in zip(panels, (_draw_frequencies, _draw_wavelengths, _draw_decay)):
        draw(axes, drawn)
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", frameon=False)
    return made
