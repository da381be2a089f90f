"""What the vectors of a sample say one by one: which were rotated, and to which positions."""
from __future__ import annotations

import dataclasses
import functools
import math
from typing import Iterator, Sequence

import numpy as np

from ._positions import Intervals, Rule, common, contains, rules_of, short_form, solve
from ._trial import (CHANGES_MAX, FLOAT32_HALF_UNIT, TINY, TOLERANCE, Explanation, Numbers, Order,
                     Program, Sample, arithmetics)

# Relative errors that are allowed beside those of the tensor's type: for arithmetic and tables in
# a 16-bit type, and for several of its roundings.
SOME_ROUNDINGS = 2.0**-6
MANY_ROUNDINGS = 2.0**-4
INVERSE = "inverse rotation"
TRANSPOSED = "transposed rotation (backward)"
_SWAPPED = "head and sequence axes swapped"
_TIMES_MAX = 8            # rotations of one vector
_POSITION_TIMES_MAX = 9   # positions are looked for up to this many times the largest right one,
_POSITIONS_MIN = 2.0**20  # at least so far,
_POSITIONS_MAX = 2.0**31  # and at most so far
_EXPLANATIONS_MAX = 12    # of one order and one set of frequencies
_SEQUENCES_NAMED = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """What vectors say of a rotation in one order of channels, whatever the frequencies are."""

    angles: np.ndarray  # [tokens, rows, pairs], by which each pair turned
    slack: np.ndarray   # the same, its largest error
    fits: np.ndarray    # [tokens, rows]: some rotation gives the vector. All that changed fit.
    multiplier: tuple[float, float]  # on cos and sin: at least, and at most


def cells_of(sample: Sample, order: Order, more: float) -> Cells | None:
    """None: no rotation in this order, by any angles, with one multiplier, gives the sample.

    `more` is the relative error to allow for beside that of the tensor's type. Bounds: a rotation
    that Program.compare accepts keeps to every one of them.
    """
    source, target = order.still
    unit, own = sample.half_unit, sample.before[..., source]
    allowed = (FLOAT32_HALF_UNIT + more) * np.abs(own) + unit[..., target] + TINY
    fits = (np.abs(sample.after[..., target] - own) <= allowed).all(axis=-1)
    if not (fits | sample.still).all():
        return None
    before = sample.before[..., order.before[0]] + 1j * sample.before[..., order.before[1]]
    after = sample.after[..., order.after[0]] + 1j * sample.after[..., order.after[1]]
    went, came = np.abs(before), np.abs(after)
    is_zero = went == 0
    norm = np.where(is_zero, 1.0, went)
    turned = 1.01 * TOLERANCE * came / norm * (np.abs(before.real) + np.abs(before.imag)) + TINY
    error = more * came + np.hypot(turned + unit[..., order.after[0]],
                                   turned + unit[..., order.after[1]])
    low = np.where(is_zero, 0, (came - error) / norm).max(axis=-1, initial=0)
    high = np.where(is_zero, np.inf, (came + error) / norm).min(axis=-1, initial=np.inf)
    fits &= (low <= high) & (~is_zero | (came <= error)).all(axis=-1)
    turning = ~sample.still
    bounds = low[turning].max(initial=0), high[turning].min(initial=np.inf)
    if not (fits | sample.still).all() or bounds[0] > bounds[1]:
        return None
    is_known = ~is_zero & (error < came)
    sine = np.divide(error, came, out=np.zeros_like(came), where=is_known)
    return Cells(np.angle(after * before.conj()), np.where(is_known, np.arcsin(sine), np.inf),
                 fits, bounds)


def _solved(sample: Sample, numbers: Numbers, cells: Cells) -> list[list[Intervals]] | None:
    """The positions of each vector, [tokens][rows]. None: one that changed has none."""
    most = min(max(_POSITION_TIMES_MAX * float(sample.positions.max()), _POSITIONS_MIN),
               _POSITIONS_MAX)
    solved: list[list[Intervals]] = [[[] for _ in sample.rows] for _ in sample.tokens]
    first = np.argwhere(cells.fits & ~sample.still)[:1]  # it alone refuses most numbers
    for at in (first, np.argwhere(cells.fits)):
        chosen = at[:, 0], at[:, 1]
        found = solve(cells.angles[chosen], cells.slack[chosen], numbers.inv_freq, most)
        for (token, row), intervals in zip(at.tolist(), found):
            solved[token][row] = intervals
            if not intervals and not sample.still[token, row]:
                return None
    return solved


@dataclasses.dataclass(frozen=True, eq=False)
class _Pattern:
    """What happened to the vectors. No words: the right positions, everywhere."""

    words: tuple[str, ...]
    positions: np.ndarray              # [tokens, rows]
    still: np.ndarray | None = None    # [tokens, rows]
    shown: str = ""                    # the positions in short form; empty: not worth printing


class _Patterns:
    """The patterns that are compatible with the solved positions, the more plausible first."""

    def __init__(self, sample: Sample, solved: list[list[Intervals]]) -> None:
        self._sample = sample
        self._solved = solved
        self._tokens = range(len(sample.tokens))
        self._rows = range(len(sample.rows))

    def __iter__(self) -> Iterator[_Pattern]:
        yield from self._by_token("", self._tokens, self._rows)
        yield from self._some_heads()
        yield from self._some_tokens()
        if self._sample.heads > 1 and len(self._tokens) > 1:
            yield from self._by_head()
            yield from self._by_memory()
        yield from self._by_sequence()

    def _common(self, tokens: Sequence[int], rows: Sequence[int]) -> Intervals:
        return functools.reduce(common, (self._solved[token][row]
                                         for token in tokens for row in rows))

    def _right(self, index: int) -> int:
        """The right position of the token at `index`, also past the last one."""
        past = max(index - len(self._sample.all_positions) + 1, 0)
        return int(self._sample.all_positions[index - past]) + past

    def _rules(self, tokens: Sequence[int], rows: Sequence[int]) -> list[Rule]:
        indices = [int(self._sample.tokens[token]) for token in tokens]
        last = len(self._sample.all_positions) - 1
        return rules_of(indices, [self._right(index) for index in indices],
                        [self._right(last - index) for index in indices],
                        [self._common([token], rows) for token in tokens])

    def _by_token(self, where: str, tokens: Sequence[int],
                  rows: Sequence[int]) -> Iterator[_Pattern]:
        """Each of these tokens has a position, which these rows share; nothing else is rotated."""
        for rule in self._rules(tokens, rows):
            positions, still = np.zeros(self._sample.still.shape), np.ones_like(self._sample.still)
            chosen = np.ix_(list(tokens), list(rows))
            positions[chosen], still[chosen] = np.array(rule.positions)[:, np.newaxis], False
            yield _Pattern(tuple(each for each in (where, rule.words) if each), positions, still,
                           short_form(rule.positions) if rule.words else "")

    def _some_heads(self) -> Iterator[_Pattern]:
        """Rows of which every vector is still; the others follow a rule."""
        is_still = self._sample.still.all(axis=0)
        turned = np.flatnonzero(~is_still)
        if len(turned) in (0, len(self._rows)):
            return
        heads = self._sample.head_of
        named, kind = np.unique(heads[turned]), "heads"
        if np.intersect1d(named, heads[is_still]).size:
            named, kind = self._sample.rows[turned], "rows"
        yield from self._by_token(f"only {kind} {short_form(named)} rotated", self._tokens,
                                  turned.tolist())

    def _some_tokens(self) -> Iterator[_Pattern]:
        """Tokens of which every vector is still; the others follow a rule, but not one by one."""
        is_still = self._sample.still.all(axis=1)
        turned = np.flatnonzero(~is_still)
        # A token whose right position is 0 may be still.
        if len(turned) and (is_still & (self._sample.positions != 0)).any():
            where = f"only tokens {short_form(self._sample.tokens[turned])} rotated"
            yield from self._by_token(where, turned.tolist(), self._rows)

    def _by_head(self) -> Iterator[_Pattern]:
        """Each head has a position, which its tokens share."""
        heads, last = self._sample.head_of.tolist(), self._sample.heads - 1
        for rule in rules_of(heads, [self._right(head) for head in heads],
                             [self._right(last - head) for head in heads],
                             [self._common(self._tokens, [row]) for row in self._rows]):
            if not rule.words.startswith("every token"):  # that is found by token
                words = f"{_SWAPPED}: positions follow the heads", rule.words
                yield _Pattern(words if rule.words else words[:1],
                               np.tile(rule.positions, (len(self._tokens), 1)), None,
                               short_form(rule.positions) if rule.words else "")

    def _by_memory(self) -> Iterator[_Pattern]:
        """The memory of [tokens, heads] was read as [heads, tokens], or the reverse."""
        sample = self._sample
        token, head, count = sample.tokens[:, np.newaxis], sample.head_of, len(sample.all_positions)
        index = ((head * count + token) // sample.heads if sample.heads_before_tokens
                 else (token * sample.heads + head) % count)
        positions = sample.all_positions[index].astype(np.float64)
        if sample.heads == sample.rows_total and all(
                contains(self._solved[i][j], positions[i, j])
                for i in self._tokens for j in self._rows):
            yield _Pattern((f"{_SWAPPED}: the memory was viewed with them exchanged",), positions)

    def _by_sequence(self) -> Iterator[_Pattern]:
        """The sequences follow different rules, for example each with its own padding."""
        sequences = self._sample.sequence_of
        different = np.unique(sequences)
        positions, words = np.zeros(self._sample.still.shape), []
        for sequence in different if len(different) > 1 else ():
            rows = np.flatnonzero(sequences == sequence)
            rules = self._rules(self._tokens, rows.tolist())
            if not rules:
                return
            positions[:, rows] = np.array(rules[0].positions)[:, np.newaxis]
            words.append(f"sequence {sequence} {rules[0].words or 'as configured'}")
        if words:
            words[_SEQUENCES_NAMED:] = ["..."] if len(words) > _SEQUENCES_NAMED else []
            yield _Pattern(("; ".join(words),), positions)


def named_magnitudes(factor: float) -> list[tuple[float, str]]:
    """What may multiply cos and sin in place of the attention factor."""
    return [(1, "attention factor missing"), (factor * factor, "attention factor squared"),
            (math.sqrt(factor), "square root of the attention factor"),
            (1 / factor, "attention factor inverted")]


def explain_vectors(sample: Sample, numbers: Numbers, order: Order,
                    cells: Cells | None) -> list[Explanation]:
    """Explanations with these frequencies and this order of channels, fewest changes first, then
    the more plausible ones. Each explains the sample. They concern positions, heads and tokens
    that were not rotated, swapped axes, the direction and the multiplier."""
    if cells is None or sample.still.all() or numbers.factor <= 0:
        return []
    (low, high), factor = cells.multiplier, numbers.factor
    measured = (low + high) / 2, f"attention factor {(low + high) / 2:.7g}"
    magnitude = next((each for each in [(factor, ""), *named_magnitudes(factor)]
                      if low <= each[0] <= high), measured)
    solved = _solved(sample, numbers, cells) if 0 < magnitude[0] < math.inf else None
    found: list[Explanation] = []
    for pattern in _Patterns(sample, solved) if solved is not None else ():
        changes = numbers.changes + order.changes + _named(pattern, magnitude[1], factor)
        if len(changes) > CHANGES_MAX or len(found) >= _EXPLANATIONS_MAX:
            continue
        program = Program(numbers, order, scale=magnitude[0] / factor,
                          positions=pattern.positions, still=pattern.still)
        ways = arithmetics(sample.dtype) if len(changes) < CHANGES_MAX else []
        for words, behavior in [("", {}), *ways]:
            fit = dataclasses.replace(program, **behavior).compare(sample)
            if fit.explains:
                found.append(dataclasses.replace(
                    fit, changes=changes + ((words,) if words else ()), positions=pattern.shown))
                break
    return sorted(found, key=lambda explanation: len(explanation.changes))


def _named(pattern: _Pattern, magnitude: str, factor: float) -> tuple[str, ...]:
    """The changes of a pattern, with that of the multiplier."""
    words = pattern.words
    if INVERSE in words and factor != 1:
        if magnitude == "attention factor inverted":
            return words
        words = tuple(TRANSPOSED if each == INVERSE else each for each in words)
    return words + ((magnitude,) if magnitude else ())


def explain_repeated(samples: Sequence[Sample], numbers: Numbers,
                     order: Order) -> list[Explanation]:
    """"rotated 2 times" and so on, with an order of channels that is the same before and after."""
    if not np.array_equal(order.before, order.after) or len(order.changes) >= CHANGES_MAX:
        return []
    fits = ((times, Program(numbers, order, times=times).explains(samples))
            for times in range(2, _TIMES_MAX + 1))
    return [dataclasses.replace(fit, changes=order.changes + (f"rotated {times} times",))
            for times, fit in fits if fit is not None]
