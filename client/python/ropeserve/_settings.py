"""Configs that may have been used in place of the given one, and estimates from the tensors."""
from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Iterator, Sequence

import numpy as np

from ._trial import Numbers, Sample, other_pairing, plain_order

_THETAS = (10000, 500000, 1e6, 5e6, 1e7, 150000, 130000)
_FACTORS = (2, 4, 8, 16, 32, 40, 64)
_FRACTIONS = (1, 0.75, 0.5, 0.4, 0.25, 0.125)  # rotated part of a head
_LENGTHS = (2048, 4096, 8192, 16384, 32768, 40960, 65536, 131072, 262144)
_BANDS = {"llama3": {"low_freq_factor": (1, 2, 4), "high_freq_factor": (2, 4, 8, 16, 32)},
          "yarn": {"beta_fast": (16, 32, 64, 128), "beta_slow": (1, 2, 4)}}
# Of the fields of a resolved config, what stays where another type scales it, or nothing does.
_UNSCALED = ("rope_theta", "head_dim", "rotary_dim", "rotary_offset", "max_position_embeddings")
_BESIDE = ("head_dim", "max_position_embeddings")  # the parameters of a config.json
# The next token may be at most this many times as far away as the last one; beyond that, the
# number of full turns between them would be ambiguous.
_REACH = 8

RAMP_BY_TURNS = "yarn ramp by turns"  # with the attention factor of the given config

Config = dict[str, Any]


def as_config_json(config: Config) -> str:
    """A resolved config as the text of a config.json."""
    beside = {key: config[key] for key in _BESIDE if key in config}
    return json.dumps({**beside, "rope_parameters": {key: value for key, value in config.items()
                                                     if key not in _BESIDE}})


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Frequencies of the tensors."""

    inv_freq: np.ndarray  # [pairs], radians per position
    error: np.ndarray     # [pairs], radians by which an angle is off it, at most
    theta: float          # 0: not known
    factor: float         # divisor of the first frequency


def estimate(sample: Sample, channels: np.ndarray, channels_after: np.ndarray) -> Estimate | None:
    """From how far the pairs of channels, [2, pairs], turn between tokens at neighbouring
    positions; None: the first token has no neighbour.

    Frequencies are at most 1, so neighbours turn by less than half a turn. Each farther token makes
    the estimate more exact, which decides the number of full turns to the next token.
    """
    before = sample.before[..., channels[0]] + 1j * sample.before[..., channels[1]]
    after = sample.after[..., channels_after[0]] + 1j * sample.after[..., channels_after[1]]
    angles = np.angle((after * before.conj()).sum(axis=1))
    distances = sample.positions - sample.positions[0]
    inv_freq, used = np.zeros(angles.shape[-1]), [0]
    for token in np.argsort(np.abs(distances), kind="stable"):
        distance = int(distances[token])
        if distance == 0:
            continue
        if abs(distance) > max(_REACH * abs(int(distances[used[-1]])), 1):
            break
        used.append(int(token))
        turned = angles[token] - angles[0]
        turns = np.round((inv_freq * distance - turned) / (2 * math.pi))
        inv_freq = (turned + turns * 2 * math.pi) / distance
    off = angles[used] - angles[0] - np.outer(distances[used], inv_freq)
    off -= 2 * math.pi * np.round(off / (2 * math.pi))
    values = np.abs(inv_freq)  # below 0 for an inverse rotation
    if len(used) < 2 or values[0] == 0:
        return None
    # value = theta^(-i/pairs): an error of the angle counts less the larger i * value is.
    index = np.arange(len(values))
    weights = np.where(values < values[0], index * values, 0)
    best = int(weights.argmax())
    theta = 0.0
    if weights[best] > 0:
        power = math.log(values[0] / values[best]) * len(values) / best
        theta = math.exp(power) if 0 < power < math.log(1e15) else 0.0
    factor = 1 / values[0]
    return Estimate(inv_freq, np.abs(off).max(axis=0), theta,
                    factor if 1.001 < factor < 1e6 else 1.0)


def snapped(value: float) -> float:
    """The nearest number with three significant digits if it is close enough, else `value`:
    configs contain round numbers."""
    near = float(f"{value:.3g}")
    return near if abs(near - value) < 2e-4 * value else value


def estimated_rotary_dim(sample: Sample, window: int) -> int:
    """Channels from `window` to the last one that changed, rounded up to even; 0: none did."""
    changed = np.flatnonzero((sample.before != sample.after).any(axis=(0, 1)))
    count = max(int(changed[-1]) + 1 - window, 0) if len(changed) else 0
    return count + count % 2


class Settings:
    """`believed` with one change each, in words and as a resolved config, which need not be valid.
    What the tensors say is among them."""

    def __init__(self, believed: Numbers, sample: Sample, pairing: str) -> None:
        self._config = believed.config
        self._pairs = believed.pairs
        self._channels = sample.channels
        self._type = self._config["rope_type"]
        self._plain = {key: self._config[key] for key in _UNSCALED if key in self._config}
        self._plain["rope_type"] = "default"
        self._rotary_dim = estimated_rotary_dim(sample, believed.window)
        plain = [plain_order(each, believed.window, believed.pairs, sample.channels).before
                 for each in (pairing, other_pairing(pairing))]
        found = [estimate(sample, channels, channels) for channels in plain]
        self._estimates = [each for each in found if each is not None]

    def __iter__(self) -> Iterator[tuple[str, Config]]:
        yield from self._same_type()
        yield from self._scalings()
        yield from self._readings()
        yield from self._thetas()
        yield from self._rotary_dims()

    def _with(self, **values: Any) -> Config:
        made = {**self._config, **values}
        return {key: value for key, value in made.items() if value is not None}

    def _values(self, words: str, key: str,
                values: Sequence[float]) -> Iterator[tuple[str, Config]]:
        for value in dict.fromkeys(values):
            if value != self._config.get(key):
                yield f"{words} {value:.10g}", self._with(**{key: value})

    def _same_type(self) -> Iterator[tuple[str, Config]]:
        """Another factor, original length or band of the believed type."""
        config = self._config
        length, factor = config.get("max_position_embeddings"), config.get("factor")
        original = config.get("original_max_position_embeddings")
        if factor is not None and self._type != "linear":
            ratios = [length / original] if length and original else []
            # Every scaling divides the last frequency by the whole factor.
            unscaled = config["rope_theta"] ** (1 / self._pairs - 1)
            slowest = [unscaled / max(abs(float(each.inv_freq[-1])), 1e-30)
                       for each in self._estimates]
            slowest = [snapped(each) for each in slowest if 1 < each < 1e6]
            yield from self._values("factor", "factor", [*_FACTORS, *ratios, *slowest])
        if original is not None:
            lengths = [length, int(length / (factor or 1))] if length else []
            yield from self._values("original length", "original_max_position_embeddings",
                                    [*_LENGTHS, *lengths])
        for key, values in _BANDS.get(self._type, {}).items():
            yield from self._values(key, key, values)

    def _scalings(self) -> Iterator[tuple[str, Config]]:
        if self._type != "default":
            yield "no scaling", self._plain
        factor = self._config.get("factor")
        factors = [factor or 1, *(snapped(each.factor) for each in self._estimates), *_FACTORS]
        for each in dict.fromkeys(factors):
            if each != 1 and (self._type != "linear" or each != factor):
                yield from self._scaling("linear", each)
        if factor is not None:
            for rope_type in ("yarn", "llama3", "dynamic"):
                if rope_type != self._type:
                    yield from self._scaling(rope_type, factor)

    def _scaling(self, rope_type: str, factor: float) -> Iterator[tuple[str, Config]]:
        config = {**self._plain, "rope_type": rope_type, "factor": factor}
        if rope_type == "llama3":  # with the band of every known model
            config.update(low_freq_factor=1, high_freq_factor=4)
        original = self._config.get("original_max_position_embeddings")
        if rope_type in ("llama3", "yarn") and original is not None:
            config["original_max_position_embeddings"] = original
        yield f"{rope_type} scaling, factor {factor:.7g}", config

    def _readings(self) -> Iterator[tuple[str, Config]]:
        """Settings on which implementations of the same type differ."""
        share = 2 * self._pairs / self._channels
        if share < 1:
            yield ("exponents over head_dim in place of rotary_dim",
                   self._with(rope_theta=self._config["rope_theta"] ** share))
        if self._type == "yarn":
            truncates = self._config.get("truncate", True)
            yield f"yarn truncate {str(not truncates).lower()}", self._with(truncate=not truncates)
            # llama3 has the ramp of yarn's paper. Its attention factor is not yarn's.
            yield RAMP_BY_TURNS, {
                **self._plain, "rope_type": "llama3", "factor": self._config.get("factor"),
                "original_max_position_embeddings": self._config.get(
                    "original_max_position_embeddings"),
                "low_freq_factor": self._config.get("beta_slow", 1),
                "high_freq_factor": self._config.get("beta_fast", 32)}
            yield "attention factor of yarn without mscale", self._with(
                attention_factor=None, attn_factor=None, mscale=None, mscale_all_dim=None)
        if self._type == "longrope":
            for name in ("short", "long"):
                factors = self._config.get(f"{name}_factor")
                yield f"longrope {name} factors", self._with(short_factor=factors,
                                                             long_factor=factors)

    def _thetas(self) -> Iterator[tuple[str, Config]]:
        measured = [each.theta for each in self._estimates if each.theta > 0]
        seen = [self._config["rope_theta"]]
        for theta in [*_THETAS, *(value for each in measured for value in (snapped(each), each))]:
            # Estimates are as exact as the elements they come from.
            if all(abs(other - theta) > 1e-6 * theta for other in seen):
                seen.append(theta)
                yield f"theta {theta:.10g}", self._with(rope_theta=theta)

    def _rotary_dims(self) -> Iterator[tuple[str, Config]]:
        dims = [self._rotary_dim, *(int(self._channels * part) for part in _FRACTIONS)]
        for dim in dict.fromkeys(dims):
            if dim >= 2 and dim % 2 == 0 and dim != 2 * self._pairs:
                yield f"rotary_dim {dim}", self._with(rotary_dim=dim, partial_rotary_factor=None)
