"""Finds the deviations from a config that explain a rotated tensor.

Three kinds are tried: other settings of the config (_settings.py), other behaviour of the rotating
code (pairing, direction, rounding and so on), and what the vectors say one by one (_vectors.py).
"""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from ._positions import ANGLE_SLACK, short_form
from ._settings import RAMP_BY_TURNS, Config, Settings, estimate, estimated_rotary_dim
from ._trial import (CHANGES_MAX, Explanation, Numbers, Order, Program, Sample, arithmetics,
                     half_unit, orders_of, other_pairing, plain_order, rounded_to)
from ._vectors import (INVERSE, MANY_ROUNDINGS, SOME_ROUNDINGS, TRANSPOSED, Cells, cells_of,
                       explain_repeated, explain_vectors, named_magnitudes)

_SECONDS = 3              # changes of the config that a second one is tried beside
_EPSILONS = (1e-6, 1e-5)  # of norms
_NORM_ROUNDINGS = 8       # half units of a 16-bit type, of a norm and a rotation in it
_NORM_VECTORS_MIN = 4     # from which the weight of a norm is solved
_ANGLE_ERROR_MAX = 0.05   # radians, of a pair whose frequency is measured
_THIN_TOKENS, _THIN_ROWS = 32, 8
_LISTED_MIN = 3           # commas, from which positions are a list


def tokens_of(total: int, most: int) -> np.ndarray:
    """At most `most` of `total` tokens: first a run of neighbours, half of them, then evenly spaced
    ones, including the last. Neighbouring positions make theta measurable."""
    neighbours = total if total <= most else (most + 1) // 2
    more = min(total - neighbours, most - neighbours)
    spaced = np.arange(1, more + 1) * (total - neighbours) // max(more, 1) + neighbours - 1
    return np.concatenate([np.arange(neighbours), spaced])


def rows_of(total: int, most: int) -> np.ndarray:
    """At most `most` of `total` rows, evenly spaced."""
    count = min(total, most)
    return np.arange(count) * total // count


# One deviation of a program: in words, and as fields of Program, and `pairing` or `window` of its
# order of channels. Two with the same first field exclude each other.
_Change = tuple[str, dict[str, Any]]


def _changes_of(sample: Sample, pairing: str, numbers: Numbers) -> list[_Change]:
    """Typical errors of rotating code, one at a time, the most frequent first."""
    other, factor = other_pairing(pairing), numbers.factor
    first, last = int(sample.positions.min()), sample.channels - 2 * numbers.pairs
    shifts = {"positions + 1": 1, "positions - 1": -1, **{
        f"positions counted from {start}": start - first for start in (0, 1)
        if abs(start - first) > 1}}
    turns = [(INVERSE if factor == 1 else TRANSPOSED, 1.0)]
    turns += [(INVERSE, 1 / (factor * factor))] if factor not in (0, 1) else []
    windows = {"start": 0, "end": last} if last > 0 else {}
    return [
        (f"pairing {other}", {"pairing": other}),
        *((words, {"shift": shift}) for words, shift in shifts.items()),
        *((words, {"inverse": True, "scale": scale}) for words, scale in turns),
        *((words, {"scale": value / factor}) for value, words in _magnitudes(sample, numbers)),
        *((f"rotated channels at the {place} of the head", {"window": window})
          for place, window in windows.items() if window != numbers.window),
        *arithmetics(sample.dtype)]


def _magnitudes(sample: Sample, numbers: Numbers) -> list[tuple[float, str]]:
    """Other multipliers of cos and sin; what the norms say, if it is none that has a name."""
    factor = numbers.factor
    if factor <= 0:
        return []
    wanted = named_magnitudes(factor) if factor != 1 else []
    turned = slice(numbers.window, numbers.window + 2 * numbers.pairs)
    before, after = (float(np.square(each[..., turned]).sum())
                     for each in (sample.before, sample.after))
    stretch = math.sqrt(after / before) if before > 0 else 0
    is_named = any(abs(value - stretch) <= 1e-3 * stretch
                   for value in (factor, *(value for value, _ in wanted)))
    return wanted if is_named else [*wanted, (stretch, f"attention factor {stretch:.7g}")]


class Search:
    """The search for explanations of one sample.

    Args:
        believed: what the config means.
        numbers_of: what a resolved config means; None: it is not valid, or does not fit.
        layers: of the config's other layer types, with "layer type ..." as their change.
    """

    def __init__(self, sample: Sample, believed: Numbers, pairing: str,
                 numbers_of: Callable[[Config], Numbers | None],
                 layers: Sequence[Numbers] = ()) -> None:
        # Parts refuse most hypotheses: one vector that changed, and a few.
        self._whole = sample
        self._thin = sample.part(tokens_of(len(sample.tokens), _THIN_TOKENS),
                                 rows_of(len(sample.rows), _THIN_ROWS))
        turning = np.argwhere(~self._thin.still)
        self._probe = self._thin.part(*np.array_split(turning[-1] if len(turning) else
                                                      np.zeros(2, np.int64), 2))
        self._probed: dict[Order, Cells | None] = {}
        self._pairing = pairing
        self._numbers_of = numbers_of
        self._believed = believed
        self._shape = believed.window, believed.pairs, sample.channels
        self._plain = plain_order(pairing, *self._shape)
        # Then with one change, then with two.
        self._variants = {each.key: each for each in (believed, *layers)}
        self._orders: list[tuple[Order, Cells | None]] = []  # that keep the norms of pairs
        self._found: list[Explanation] = []
        self._listed: list[Explanation] = []  # by lists of positions, where nothing else is found

    def run(self) -> tuple[Explanation, list[Explanation]]:
        """How the config fits, and what else explains the sample, with the fewest changes."""
        as_configured = Program(self._believed, self._plain).compare(self._whole)
        if self._whole.still.all():
            nothing = Program(self._believed, self._plain, still=self._whole.still)
            self._found.append(dataclasses.replace(nothing.compare(self._whole), ratio=0.0,
                                                   changes=("not rotated at all",)))
        if not as_configured.explains:
            for order in orders_of(self._pairing, *self._shape):
                if self._cells_of_probe(order) and cells_of(self._whole, order, MANY_ROUNDINGS):
                    self._orders.append((order, cells_of(self._whole, order, 0)))
            self._add_vectors(self._believed)
            self._add_settings()
        found = self._found or self._listed
        fewest = min((len(each.changes) for each in found), default=0)
        return as_configured, [each for each in found if len(each.changes) == fewest]

    def frequencies(self) -> np.ndarray | None:
        """[pairs, 2], measured and of the config, radians per position; None: angles do not grow
        evenly with the positions, or there are no neighbours."""
        measured = (estimate(self._whole, self._orders[0][0].before, self._orders[0][0].after)
                    if self._orders else None)
        if measured is None or np.median(measured.error) > _ANGLE_ERROR_MAX:
            return None
        inv_freq = np.where(measured.error <= _ANGLE_ERROR_MAX, measured.inv_freq, np.nan)
        return np.stack([inv_freq, self._believed.inv_freq], axis=-1)

    def facts(self) -> list[str]:
        """Sentences that hold whatever rotated the sample."""
        sample = self._whole
        changed, heads = sample.before != sample.after, sample.head_of
        order = next((order for order, exact in self._orders if exact is not None), None)
        pairs = "no order of channels that was tried keeps the norms of pairs"
        if order is not None:
            with_ = ", ".join(order.changes) or "the config's pairing"
            pairs = (f"each pair of channels keeps its norm with {with_}: a rotation by angles "
                     "that no setting which was tried gives")
        return [_fact_of_norms(sample), pairs,
                _changed("channel", np.flatnonzero(changed.any(axis=(0, 1))), sample.channels),
                _changed("token", sample.tokens[changed.any(axis=(1, 2))], len(sample.tokens)),
                _changed("head", np.unique(heads[changed.any(axis=(0, 2))]),
                         len(np.unique(heads)))]

    def _cells_of_probe(self, order: Order) -> Cells | None:
        if order not in self._probed:
            self._probed[order] = cells_of(self._probe, order, MANY_ROUNDINGS)
        return self._probed[order]

    def _add_vectors(self, numbers: Numbers) -> None:
        """What the vectors say, with the frequencies of a variant."""
        for order, exact in self._orders:
            is_many = len(numbers.changes) + len(order.changes) > CHANGES_MAX
            if is_many or numbers.pairs != order.before.shape[1]:
                continue
            if numbers is self._believed:
                self._add(explain_repeated([self._probe, self._whole], numbers, order))
            found = explain_vectors(self._whole, numbers, order, exact)
            if not found and numbers is self._believed:
                rough = cells_of(self._whole, order, SOME_ROUNDINGS)
                found = explain_vectors(self._whole, numbers, order, rough)
            self._add(found)

    def _add(self, found: Iterable[Explanation]) -> None:
        """Adds each explanation whose changes no other one has, in any order."""
        for new in found:
            into = self._listed if _is_list(new) else self._found
            same = [i for i, each in enumerate(into) if sorted(each.changes) == sorted(new.changes)]
            if not same:
                into.append(new)
            elif not into[same[0]].positions:
                into[same[0]] = dataclasses.replace(into[same[0]], positions=new.positions)

    def _add_settings(self) -> None:
        """Other settings and behaviour: one change each, and then two."""
        self._add_changes_of(self._believed)
        for dtype in ("bf16", "fp16"):  # what a cast of a whole module does to its buffers
            narrow = rounded_to(self._believed.inv_freq, dtype)
            made = dataclasses.replace(self._believed, inv_freq=narrow,
                                       changes=(f"inverse frequencies rounded to {dtype}",))
            self._variants.setdefault(made.key, made)
        # Another config is more plausible than the same numbers by other positions.
        found, self._found = self._found, []
        self._add(self._explain(1))
        self._add(found)
        if not self._has_one_change():
            self._add_norm()
        # Without an order of channels that keeps norms there is no rotation to look for.
        if self._has_one_change() or not any(self._probed.values()):
            return
        singles = list(self._variants.values())[1:]
        self._add(self._explain(CHANGES_MAX))
        if not self._found:
            self._add_second_changes(singles)
            self._add(self._explain(CHANGES_MAX))
        if not self._found:
            listed = [*self._listed]
            for numbers in singles:
                self._add_vectors(numbers)
            self._listed = listed or self._listed

    def _has_one_change(self) -> bool:
        return any(len(each.changes) == 1 for each in self._found)

    def _explain(self, changes_max: int) -> list[Explanation]:
        """Hypotheses of settings and behaviour that explain the sample, fewest changes first,
        without those that contain all changes of another one."""
        found = []
        for numbers in self._variants.values():
            for chosen in self._combined(numbers, changes_max - len(numbers.changes)):
                program = self._program(numbers, chosen)
                fit = program.explains([self._probe, self._thin, self._whole]) if self._may_fit(
                    program) else None
                if fit is not None:
                    found.append(dataclasses.replace(
                        fit, changes=numbers.changes + tuple(words for words, _ in chosen)))
        kept: list[Explanation] = []
        for explanation in sorted(found, key=lambda each: len(each.changes)):
            if not any(set(each.changes) <= set(explanation.changes) for each in kept):
                kept.append(explanation)
        return kept

    def _combined(self, numbers: Numbers, most: int) -> list[tuple[_Change, ...]]:
        """Up to `most` changes of the program beside those of a variant: none, one, two."""
        changes = _changes_of(self._thin, self._pairing, numbers) if most > 0 else []
        return [(), *((each,) for each in changes), *(
            (a, b) for i, a in enumerate(changes) for b in changes[i + 1:]
            if most > 1 and next(iter(a[1])) != next(iter(b[1])))]

    def _program(self, numbers: Numbers, changes: tuple[_Change, ...]) -> Program:
        fields: dict[str, Any] = {"pairing": self._pairing, "window": numbers.window}
        for _, changed in changes:
            fields.update(changed)
        fields["scale"] = math.prod(changed.get("scale", 1.0) for _, changed in changes)
        order = plain_order(fields.pop("pairing"), fields.pop("window"), numbers.pairs,
                            self._whole.channels)
        return Program(numbers, order, **fields)

    def _may_fit(self, program: Program) -> bool:
        """Whether the angles of one vector allow it, which takes little time to see."""
        cells = self._cells_of_probe(program.order)
        if cells is None:
            return False
        turned = program.angles(self._probe.positions[:1].astype(np.float64) + program.shift)
        off = cells.angles[0, 0] - (-turned if program.inverse else turned)
        off -= 2 * math.pi * np.round(off / (2 * math.pi))
        slack = cells.slack[0, 0] + ANGLE_SLACK * np.abs(turned)
        slack = slack + half_unit(turned, program.narrow_to) * 2
        return bool((np.abs(off) <= slack).all())

    def _add_second_changes(self, singles: Sequence[Numbers]) -> None:
        """Adds variants with a second change. The first change is one of those with the smallest
        errors, or the number of rotated channels that the tensors show."""
        dim = f"rotary_dim {estimated_rotary_dim(self._thin, self._believed.window)}"
        errors = [self._program(each, ()).compare(self._thin).rms_error for each in singles]
        best = sorted(zip(singles, errors), key=lambda each: (each[0].changes[0] != dim, each[1]))
        for numbers, _ in best[:_SECONDS]:
            self._add_changes_of(numbers)

    def _add_changes_of(self, numbers: Numbers) -> None:
        for words, config in Settings(numbers, self._thin, self._pairing):
            if (made := self._numbers_of(config)) is not None:
                factor = numbers.factor if words == RAMP_BY_TURNS else made.factor
                made = dataclasses.replace(made, changes=(*numbers.changes, words), factor=factor)
                self._variants.setdefault(made.key, made)

    def _add_norm(self) -> None:
        """An RMS norm of each head ahead of the rotation, with one weight for each channel."""
        sample, factor = self._whole, self._believed.factor
        back = Program(self._believed, self._plain, inverse=True, scale=1 / factor**2 if factor
                       else 1).predicted(dataclasses.replace(sample, before=sample.after))[0]
        mean = np.square(sample.before).mean(axis=-1, keepdims=True)
        for epsilon in _EPSILONS:
            normed = sample.before / np.sqrt(mean + epsilon)
            squares = np.square(normed).sum(axis=(0, 1))
            solved = (back * normed).sum(axis=(0, 1)) / np.where(squares > 0, squares, 1)
            for weight in [1.0, solved] if sample.still.size >= _NORM_VECTORS_MIN else [1.0]:
                ahead = normed * weight
                error = 4e-6 * np.abs(ahead) + _NORM_ROUNDINGS * half_unit(ahead, sample.dtype)
                fit = Program(self._believed, self._plain).compare(
                    dataclasses.replace(sample, before=ahead, input_error=error))
                if fit.explains:
                    changes = ("before was taken ahead of the norm",)
                    self._found.append(dataclasses.replace(fit, changes=changes))
                    return


def _is_list(explanation: Explanation) -> bool:
    """Whether it lists positions one by one, for want of a rule: two numbers that are a rule
    explain more."""
    return any(words.startswith("positions ") and words.count(",") >= _LISTED_MIN
               for words in explanation.changes)


def _fact_of_norms(sample: Sample) -> str:
    before = np.linalg.norm(sample.before, axis=-1)
    ratios = np.linalg.norm(sample.after, axis=-1)[before > 0] / before[before > 0]
    if not ratios.size:
        return "every vector was 0 before the rotation"
    least, most = float(ratios.min()), float(ratios.max())
    kept = 1e-5 if sample.dtype == "fp32" else 1e-2
    if most - least > kept * most:
        return f"norms of heads are not kept: after / before is {least:.5g} to {most:.5g}"
    if abs(least - 1) <= kept:
        return "norms of heads are kept"
    return f"norms of heads are all multiplied by {(least + most) / 2:.5g}"


def _changed(kind: str, changed: np.ndarray, total: int) -> str:
    """Indices of one kind that changed: "channels that changed: 0..63 (64 of 128)"."""
    if len(changed) in (0, total):
        return f"{'every' if len(changed) else 'no'} {kind} changed"
    return f"{kind}s that changed: {short_form(changed)} ({len(changed)} of {total})"
