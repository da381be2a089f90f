"""One hypothesis about a rotated tensor: what a program did, and how well that fits."""
from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, Sequence

import numpy as np

from ._positions import ANGLE_SLACK

TOLERANCE = 1.5e-7          # relative, of a channel that turns: float32 arithmetic
FLOAT32_HALF_UNIT = 2.0**-24
_FLOAT64_UNIT = 2.0**-52
_NEXT_UNITS = 3              # by which a result differs where cos or sin is the next number
TINY = 1e-37                # gives a value of 0 a tolerance
CHANGES_MAX = 2             # of one explanation


@dataclasses.dataclass(frozen=True)
class Explanation:
    """How well one hypothesis fits.

    Attributes:
        changes: what the program did differently, in words, at most two; empty: as configured.
        positions: solved ones of the compared tokens, in short form; empty: none were solved.
        max_error, rms_error: of the compared elements.
        ratio: the largest error divided by its tolerance: the error that float32 arithmetic and
            the tensor's type allow.
    """

    changes: tuple[str, ...]
    positions: str = ""
    max_error: float = 0.0
    rms_error: float = 0.0
    ratio: float = 0.0

    @property
    def explains(self) -> bool:
        """Whether every element is within its tolerance."""
        return self.ratio <= 1


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Vectors before and after a rotation. A row is one head of one sequence (and layer)."""

    before: np.ndarray         # [tokens, rows, channels], float64
    after: np.ndarray          # the same
    dtype: str                 # that `after` comes from: "fp32", "fp16" or "bf16"
    positions: np.ndarray      # [tokens], as believed
    tokens: np.ndarray         # where the sampled ones are in the whole tensor
    rows: np.ndarray           # the same of rows
    all_positions: np.ndarray  # of every token of the whole tensor
    rows_total: int            # of the whole tensor
    heads: int = 1             # length of the axis H, else 1
    head_stride: int = 1       # row r is of head r // head_stride % heads
    heads_before_tokens: bool = False      # in the layout
    input_error: np.ndarray | None = None  # [tokens, rows, channels], that `before` may have

    @property
    def channels(self) -> int:
        return int(self.before.shape[-1])

    @functools.cached_property
    def half_unit(self) -> np.ndarray:
        """[tokens, rows, channels], half a unit of `after` in its type; 0 for fp32."""
        return half_unit(self.after, self.dtype)

    @functools.cached_property
    def still(self) -> np.ndarray:
        """[tokens, rows]: whether nothing of the vector changed."""
        error = np.abs(self.after - self.before)
        allowed = FLOAT32_HALF_UNIT * np.abs(self.before) + self.half_unit + TINY
        return np.asarray((error <= allowed).all(axis=-1))

    @functools.cached_property
    def head_of(self) -> np.ndarray:
        """[rows]"""
        return np.asarray(self.rows // self.head_stride % self.heads)

    @functools.cached_property
    def sequence_of(self) -> np.ndarray:
        """[rows]: the row without its head."""
        outer = self.rows // self.head_stride // self.heads
        return np.asarray(self.rows % self.head_stride + outer * self.head_stride)

    def part(self, tokens: np.ndarray, rows: np.ndarray) -> Sample:
        chosen = np.ix_(tokens, rows)
        return dataclasses.replace(
            self, before=self.before[chosen], after=self.after[chosen],
            positions=self.positions[tokens], tokens=self.tokens[tokens], rows=self.rows[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    """What a config means."""

    changes: tuple[str, ...]  # in words, to the given config
    config: dict[str, Any]    # with all defaults filled in
    inv_freq: np.ndarray      # [pairs], radians per position; below 0 for one that turns back
    factor: float             # the attention factor
    window: int               # the first channel that turns

    @property
    def pairs(self) -> int:
        return len(self.inv_freq)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for configs that rotate in the same way."""
        return self.factor, self.window, self.inv_freq.tobytes()


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """Which channels turn together, where they come from and where they go.

    Half and interleaved code order the channels of a head differently. De-interleaving puts the
    even channels before the odd ones (0, 2, 4, ..., 1, 3, 5, ...); interleaving is the way back.
    A program may do so before it rotates, or leave its result that way.
    """

    changes: tuple[str, ...]  # to the given pairing, in words
    before: np.ndarray        # [2, pairs], the two channels of each pair, by frequency
    after: np.ndarray         # the same, where they go
    still: np.ndarray         # [2, others], before and after, of the channels that do not turn


def other_pairing(pairing: str) -> str:
    return "interleaved" if pairing == "half" else "half"


@functools.lru_cache(maxsize=1024)
def plain_order(pairing: str, window: int, pairs: int, channels: int) -> Order:
    """The 2 * pairs channels from `window` on turn in this pairing."""
    index = np.arange(pairs)
    first = window + (index if pairing == "half" else 2 * index)
    both = np.stack([first, first + (pairs if pairing == "half" else 1)])
    others = np.setdiff1d(np.arange(channels), both)
    return Order((), both, both, np.stack([others, others]))


@functools.lru_cache(maxsize=256)
def orders_of(pairing: str, window: int, pairs: int, channels: int) -> list[Order]:
    """Every order of at most two changes (pairing, order of the input and of the output), those
    with fewer changes first. No two are equal."""
    made = []
    places = _reorderings(window, pairs, channels)
    for chosen, (taken, source), (left, target) in itertools.product(
            (pairing, other_pairing(pairing)), places.items(), places.items()):
        changes = [f"pairing {chosen}"] if chosen != pairing else []
        changes += [f"input channels {taken}"] if taken else []
        changes += [f"output channels {left}"] if left else []
        plain, goes_to = plain_order(chosen, window, pairs, channels), np.argsort(target)
        still = np.stack([source[plain.still[0]], goes_to[plain.still[1]]])
        made.append(Order(tuple(changes), source[plain.before], goes_to[plain.after],
                          still[:, np.argsort(still[1])]))
    different: dict[tuple[bytes, ...], Order] = {}
    for order in sorted(made, key=lambda order: len(order.changes)):
        key = (order.before.tobytes(), order.after.tobytes(), order.still.tobytes())
        different.setdefault(key, order)
    return [order for order in different.values() if len(order.changes) <= CHANGES_MAX]


def _reorderings(window: int, pairs: int, channels: int) -> dict[str, np.ndarray]:
    """For each reordering, in words: the channel that each one of the result comes from."""
    made = {"": np.arange(channels)}
    parts = [("", window, pairs)]
    if 2 * pairs != channels and channels % 2 == 0:
        parts.append(("of the whole head ", 0, channels // 2))
    for words, first, half in parts:
        source, part = np.arange(channels), np.arange(first, first + 2 * half)
        source[part] = np.concatenate([part[::2], part[1::2]])
        made[f"{words}de-interleaved"] = source
        made[f"{words}interleaved"] = np.argsort(source)
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What a program did."""

    numbers: Numbers
    order: Order
    shift: int = 0         # was added to every position
    inverse: bool = False  # it turned the other way
    scale: float = 1.0     # multiplied cos and sin of each rotation, beside the attention factor
    times: int = 1         # rotations, one after the other
    # What it rounded on the way to its angles, which are float32 then: "positions"; "products" of
    # positions and frequencies; or "angles": all of them. Empty: nothing, and angles are exact.
    narrow: str = ""
    narrow_to: str = "fp32"
    # The step that it rounded: "table" of cos and sin, "result" or "throughout"; empty: none.
    rounded: str = ""
    rounded_to: str = "fp32"
    positions: np.ndarray | None = None  # [tokens, rows], in place of the sample's
    still: np.ndarray | None = None      # [tokens, rows], the vectors that it did not rotate

    def compare(self, sample: Sample) -> Explanation:
        """How well the sample fits. The tolerance of a channel of the pair (a, b) is 1.5e-7 *
        multiplier * (|a| + |b|), plus half a unit of a 16-bit type; with angles in float32 plus
        two units of the angle; with repeated rotations as much for each of them. That of a channel
        that does not turn is half a unit of its type."""
        predicted, tolerance = self.predicted(sample)
        after = sample.after
        if self.rounded == "result":
            # A value that the type can represent may be off by half a unit of it.
            on_grid = rounded_to(after, self.rounded_to) == after
            predicted = np.where(on_grid, predicted, rounded_to(predicted, self.rounded_to))
            tolerance = tolerance + on_grid * half_unit(after, self.rounded_to)
        error = np.abs(after - predicted)
        return Explanation((), max_error=float(error.max()),
                           rms_error=float(np.sqrt(np.square(error).mean())),
                           ratio=float((error / (tolerance + sample.half_unit + TINY)).max()))

    def explains(self, samples: Sequence[Sample]) -> Explanation | None:
        """compare with the last of these samples, of which the others are parts that refuse most
        programs; None: it does not explain it."""
        for sample in samples:
            found = self.compare(sample)
            if not found.explains:
                return None
        return found

    def predicted(self, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """What the program makes of `before`, and the tolerance of each element."""
        order, before = self.order, sample.before
        predicted, tolerance = np.empty_like(before), np.empty_like(before)
        a, b = before[..., order.before[0]], before[..., order.before[1]]
        cos, sin, slack = self._turns(sample)
        multiplier = abs(self.numbers.factor * self.scale)
        earlier: Any = 0.0  # that the rotations before the last one may have changed
        for _ in range(1, self.times):
            size = np.abs(a) + np.abs(b)
            a, b = a * cos - b * sin, a * sin + b * cos
            largest = np.maximum(np.abs(a), np.abs(b))
            unit = np.maximum(FLOAT32_HALF_UNIT * largest, half_unit(largest, sample.dtype))
            earlier = earlier * multiplier + np.sqrt(2) * (TOLERANCE * multiplier * size + unit)
        if sample.input_error is not None:
            earlier = earlier + sample.input_error[..., order.before].sum(axis=-2)
        size = np.abs(a) + np.abs(b)
        allowed = ((TOLERANCE + slack) * size + earlier) * multiplier

        def step(values: np.ndarray) -> np.ndarray:
            return rounded_to(values, self.rounded_to) if self.rounded == "throughout" else values

        turned = step(step(a * cos) - step(b * sin)), step(step(a * sin) + step(b * cos))
        for channels, values in zip(order.after, turned):
            predicted[..., channels] = values
            tolerance[..., channels] = allowed
        source, target = order.still
        predicted[..., target] = before[..., source]
        tolerance[..., target] = FLOAT32_HALF_UNIT * np.abs(before[..., source])
        if sample.input_error is not None:
            tolerance[..., target] += sample.input_error[..., source]
        if self.still is not None:
            predicted[self.still] = before[self.still]
            tolerance[self.still] = FLOAT32_HALF_UNIT * np.abs(before[self.still])
        return predicted, tolerance

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """By which a pair turns at each position; the last axis is that of the pairs."""
        inv_freq = self.numbers.inv_freq
        def narrow(values: np.ndarray) -> np.ndarray:
            made = rounded_to(values, self.narrow_to)
            return np.where(np.isfinite(made), made, 0)  # above the type's largest

        if self.narrow in ("positions", "angles"):
            positions = narrow(positions)
        if self.narrow == "angles":
            inv_freq = narrow(inv_freq)
        if not self.narrow:
            return np.asarray(positions * inv_freq)
        products = positions.astype(np.float32) * inv_freq.astype(np.float32)
        return products.astype(np.float64) if self.narrow == "positions" else narrow(products)

    def _turns(self, sample: Sample) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """cos and sin of each vector's pairs, and the relative error that they may have."""
        positions = self.positions
        if positions is None:
            positions = (sample.positions + self.shift).astype(np.float64)[:, np.newaxis]
        positions = positions[..., np.newaxis]
        angles = self.angles(positions)
        slack = (ANGLE_SLACK if self.narrow else _FLOAT64_UNIT) * np.abs(angles)
        if self.narrow in ("products", "angles"):
            # A product in float32 may round to the next number of the type.
            ends = [rounded_to(angles + each, self.narrow_to) for each in (slack, -slack)]
            slack = slack + np.where(np.isfinite(ends[0]), ends[0] - ends[1], 0)
        multiplier = self.numbers.factor * self.scale
        cos = multiplier * np.cos(angles)
        sin = multiplier * np.sin(angles) * (-1 if self.inverse else 1)
        if self.rounded in ("table", "throughout"):
            # An angle in float32 may round to the next number of the type.
            near = abs(multiplier) * ANGLE_SLACK * np.abs(angles)
            spread = [rounded_to(each + near, self.rounded_to) - rounded_to(
                each - near, self.rounded_to) for each in (cos, sin)]
            slack = slack + _NEXT_UNITS * np.maximum(*spread)
            cos, sin = rounded_to(cos, self.rounded_to), rounded_to(sin, self.rounded_to)
        return cos, sin, slack


def rounded_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers of the type, as float64. "fp32", "fp16" or "bf16"."""
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float16).astype(np.float64)
    narrow = np.asarray(values, np.float32)
    if dtype == "bf16":
        bits = narrow.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
        narrow = bits.astype(np.uint32).view(np.float32)
    return narrow.astype(np.float64)


def half_unit(values: np.ndarray, dtype: str) -> np.ndarray:
    """Half a unit in the last place of numbers of a 16-bit type; 0 for "fp32"."""
    if dtype == "fp32":
        return np.zeros_like(values)
    mantissa_bits, exponent_min = (10, -14) if dtype == "fp16" else (7, -126)
    exponents = np.where(values == 0, exponent_min, np.frexp(values)[1] - 1)
    return np.asarray(np.ldexp(0.5, np.maximum(exponents, exponent_min) - mantissa_bits))


def arithmetics(dtype: str) -> list[tuple[str, dict[str, Any]]]:
    """Other arithmetic than exact one, in words and as attributes of Program."""
    made: list[tuple[str, dict[str, Any]]] = [
        ("angles in float32", {"narrow": "positions", "narrow_to": "fp32"})]
    for narrow in ("bf16", "fp16"):
        ways = {"positions": f"positions in {narrow}", "angles": f"angles in {narrow}",
                "products": f"products of positions and frequencies in {narrow}"}
        made += [(words, {"narrow": way, "narrow_to": narrow}) for way, words in ways.items()]
        steps = {"table": f"cos and sin rounded to {narrow}",
                 "throughout": f"computed in {narrow} throughout"}
        if dtype != narrow:  # a result of this type is rounded to it in any case
            steps = {"result": f"result rounded to {narrow}", **steps}
        made += [(words, {"rounded": step, "rounded_to": narrow}) for step, words in steps.items()]
    return made
