"""Positions of rotated vectors: solved from the angles of their pairs, and named by rule."""
from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Iterable, Sequence

import numpy as np

# Positions from low to high, both included, ascending; they need not be integers.
Intervals = list[tuple[float, float]]

ANGLE_SLACK = 2.0**-22    # two units in the last place of a float32 angle, relative
_SMALLEST = 1e-10         # of a slack, for the arithmetic here
_INTERVALS_MAX = 4096     # of one vector, at any step
_VECTORS_MAX = 256        # that are solved together, which bounds memory
_PARTS_MAX = 16           # of a short form
_LISTED_MAX = 4           # equal positions in a row that are written one by one
_SHIFTS_MAX = 8           # shifts that one interval may hold
_GROUP_MAX = 256          # tokens that share a position
_MODULUS_MAX = 2**22      # largest difference whose divisors are tried
_FACTOR_MAX = 1e6


def solve(angles: np.ndarray, slack: np.ndarray, inv_freq: np.ndarray,
          most: float) -> list[Intervals]:
    """The positions from -most to most at which every pair of a vector has its angle.

    Low frequencies decide the coarse position, higher ones refine it. Bounds, not estimates: a
    position that is compatible with every angle is in one of the intervals. A vector has none if
    nothing is compatible, or if more than _INTERVALS_MAX intervals are.

    Args:
        angles: [vectors, pairs], radians by which each pair turned.
        slack: [vectors, pairs], the largest error of each angle; from pi on nothing is known. Two
            units of a float32 angle are allowed beside it: many programs compute in float32.
        inv_freq: [pairs], radians per position.
    """
    parts = (slice(begin, begin + _VECTORS_MAX) for begin in range(0, len(angles), _VECTORS_MAX))
    return [each for part in parts for each in _solve(angles[part], slack[part], inv_freq, most)]


def _solve(angles: np.ndarray, slack: np.ndarray, inv_freq: np.ndarray,
           most: float) -> list[Intervals]:
    known = np.where((slack < math.pi) & (inv_freq != 0), np.abs(inv_freq), np.inf)
    slowest = known.min(axis=1, initial=np.inf)
    # So far that the slowest pair turns _INTERVALS_MAX / 2 times.
    reach = np.where(np.isinf(slowest), np.inf, math.pi * _INTERVALS_MAX / 2 / slowest)
    vector, high = np.arange(len(angles)), np.minimum(most, reach)
    low = -high
    slowest_first = np.argsort(np.abs(inv_freq), kind="stable")
    for step, pair in enumerate(slowest_first):
        rest = slowest_first[step:]
        if len(vector) <= len(angles) and (narrowed := _narrowed(
                low, high, angles[vector[:, np.newaxis], rest], slack[vector[:, np.newaxis], rest],
                inv_freq[rest])) is not None:
            keep = narrowed[0] <= narrowed[1]
            vector, low, high = vector[keep], narrowed[0][keep], narrowed[1][keep]
            break
        frequency = abs(inv_freq[pair])
        angle = angles[vector, pair] * (1 if inv_freq[pair] >= 0 else -1)
        error = slack[vector, pair] + _SMALLEST
        if frequency == 0:
            keep = (error >= math.pi) | (np.abs(angle) <= error)
            vector, low, high = vector[keep], low[keep], high[keep]
            continue
        error = error + ANGLE_SLACK * frequency * np.maximum(-low, high)
        is_free = error >= math.pi
        error = np.minimum(error, math.pi)
        first = np.ceil((low * frequency - angle - error) / (2 * math.pi))
        last = np.floor((high * frequency - angle + error) / (2 * math.pi))
        count = np.where(is_free, 1, np.maximum(last - first + 1, 0)).astype(np.int64)
        if (count != 1).any():
            # One entry for each turn that an interval allows; none where there are too many.
            is_lost = np.bincount(vector, count, len(angles)) > _INTERVALS_MAX
            count[is_lost[vector]] = 0
            source = np.repeat(np.arange(len(count)), count)
            nth = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
            first, angle, error = first[source] + nth, angle[source], error[source]
            vector, low, high, is_free = vector[source], low[source], high[source], is_free[source]
        middle = angle + 2 * math.pi * first
        low = np.where(is_free, low, np.maximum(low, (middle - error) / frequency))
        high = np.where(is_free, high, np.minimum(high, (middle + error) / frequency))
        keep = low <= high
        vector, low, high = vector[keep], low[keep], high[keep]
    found: list[Intervals] = [[] for _ in angles]
    for index, begin, end in zip(vector.tolist(), low.tolist(), high.tolist()):
        found[index].append((begin, end))
    return found


def _narrowed(low: np.ndarray, high: np.ndarray, angles: np.ndarray, slack: np.ndarray,
              inv_freq: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The intervals, [vectors], after several pairs at once; None: one allows several turns."""
    far = np.maximum(-low, high)[:, np.newaxis]
    error = slack + _SMALLEST + ANGLE_SLACK * np.abs(inv_freq) * far
    reach = error + ((high - low) / 2)[:, np.newaxis] * np.abs(inv_freq)
    if (inv_freq == 0).any() or (reach >= math.pi).any():
        return None
    middle = ((low + high) / 2)[:, np.newaxis] * inv_freq
    angle = angles + 2 * math.pi * np.round((middle - angles) / (2 * math.pi))
    middle, width = angle / inv_freq, error / np.abs(inv_freq)
    return (np.maximum(low, (middle - width).max(axis=1)),
            np.minimum(high, (middle + width).min(axis=1)))


def common(a: Intervals, b: Intervals) -> Intervals:
    """The positions that are in both."""
    found = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def contains(intervals: Intervals, position: float) -> bool:
    return any(low <= position <= high for low, high in intervals)


def integer_in(intervals: Intervals) -> int | None:
    """The smallest, in magnitude, of the integers nearest to the middle of an interval."""
    middles = ((round((low + high) / 2), low, high) for low, high in intervals)
    return min((middle for middle, low, high in middles if low <= middle <= high),
               key=abs, default=None)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How positions differ from the right ones. No words: they do not."""

    words: str
    positions: list[float]


def rules_of(indices: Sequence[int], believed: Sequence[int], mirrored: Sequence[int],
             solved: Sequence[Intervals]) -> list[Rule]:
    """Every rule that gives each token a position that it may have, the most plausible first.

    If none fits, the positions one by one; no rule if some token has no position.

    Args:
        indices: of each token, at least one, in its sequence, ascending.
        believed: its right position.
        mirrored: the right position of the token as far from the other end.
        solved: the positions that its channels allow.
    """
    if not all(solved):
        return []
    integers = [integer_in(each) for each in solved]
    candidates = itertools.chain(
        [("", believed)], _shifts(believed, solved), _constant(solved),
        [("positions reversed", mirrored)] if len(solved) > 1 else [],
        _scaled(believed, solved), _grouped(believed, solved), _modulo(believed, integers),
        _clamped(believed, integers), _padded(indices, solved, integers),
        [("inverse rotation", [-each for each in believed])])
    rules = [Rule(words, [*map(float, positions)]) for words, positions in candidates
             if _fits(positions, solved)]
    if not rules:
        listed = [sum(each[0]) / 2 if integer is None else float(integer)
                  for integer, each in zip(integers, solved)]
        rules.append(Rule(f"positions {short_form(listed)}", listed))
    return rules


_Candidates = Iterable[tuple[str, Sequence[float]]]


def _fits(positions: Sequence[float], solved: Sequence[Intervals]) -> bool:
    return all(contains(each, position) for each, position in zip(solved, positions))


def _shifts(believed: Sequence[int], solved: Sequence[Intervals]) -> _Candidates:
    # The token that says most has the fewest intervals, then the narrowest ones.
    own, sharpest = min(zip(believed, solved),
                        key=lambda each: (len(each[1]), each[1][0][1] - each[1][0][0]))
    smallest = min(believed)
    for low, high in sharpest:
        first = math.ceil(low - own)
        for by in range(first, min(math.floor(high - own), first + _SHIFTS_MAX) + 1):
            words = f"positions {'-' if by < 0 else '+'} {abs(by)}"
            if abs(by) != 1 and by in (-smallest, 1 - smallest):
                words = f"positions counted from {smallest + by}"
            if by:
                yield words, [each + by for each in believed]


def _constant(solved: Sequence[Intervals]) -> _Candidates:
    shared = solved[0]
    for each in solved:
        shared = common(shared, each)
    position = integer_in(shared)
    if len(solved) > 1 and position is not None:
        yield f"every token at position {position}", [position] * len(solved)


def _scaled(believed: Sequence[int], solved: Sequence[Intervals]) -> _Candidates:
    factors = [(-_FACTOR_MAX, _FACTOR_MAX)]
    for position, each in zip(believed, solved):
        if position:
            factors = common(factors, [(low / position, high / position) for low, high in each])
    if len(factors) <= _PARTS_MAX and factors and factors[0][0] > -_FACTOR_MAX:
        for words, factor in (_roundest(low, high) for low, high in factors if low > 0 or high < 0):
            if words:
                yield words, [factor * position for position in believed]


def _roundest(low: float, high: float) -> tuple[str, float]:
    """The roundest factor of an interval, which is on one side of 0. No words: 1, or -1."""
    middle = (low + high) / 2
    whole, part = round(middle), round(1 / middle)
    if whole and low <= whole <= high:
        return ("" if abs(whole) == 1 else f"positions * {whole}"), whole
    if part and low <= 1 / part <= high:
        return f"positions / {part}", 1 / part
    rounded = (float(f"{middle:.{digits}g}") for digits in range(1, 12))
    factor = next((each for each in rounded if low <= each <= high), 0.0)
    return (f"positions * {factor:.10g}" if factor else ""), factor


def _grouped(believed: Sequence[int], solved: Sequence[Intervals]) -> _Candidates:
    for group in range(2, _GROUP_MAX + 1):
        shared = [position // group for position in believed]
        if shared[0] == shared[-1]:
            return  # one group: every token at one position
        if any(position % group for position in believed) and _fits(shared, solved):
            yield f"positions / {group}, rounded down", shared
            return


def _modulo(believed: Sequence[int], integers: Sequence[int | None]) -> _Candidates:
    """A modulus divides every difference and is above every position."""
    positions = [each for each in integers if each is not None and each >= 0]
    if len(positions) < len(integers):
        return
    most, divisor = max(positions), math.gcd(*(a - b for a, b in zip(believed, positions)))
    if most < divisor <= _MODULUS_MAX:
        moduli = [each for each in range(most + 1, divisor + 1) if divisor % each == 0]
        modulus = next((each for each in moduli if each & (each - 1) == 0), moduli[0])
        more = f" (or another divisor of {divisor} above {most})" if len(moduli) > 1 else ""
        yield f"positions modulo {modulus}{more}", [each % modulus for each in believed]


def _clamped(believed: Sequence[int], integers: Sequence[int | None]) -> _Candidates:
    if integers[0] is not None and integers[-1] is not None:
        low, high = sorted((integers[0], integers[-1]))
        if min(believed) <= high < max(believed):
            yield f"positions not above {high}", [min(each, high) for each in believed]
        if min(believed) < low <= max(believed):
            yield f"positions not below {low}", [max(each, low) for each in believed]


def _padded(indices: Sequence[int], solved: Sequence[Intervals],
            integers: Sequence[int | None]) -> _Candidates:
    """The first tokens share a position and the others count up, or the last ones share one."""
    left, right, count = integers[0], integers[-1], len(solved)
    if count < 3 or left is None or right is None:
        return
    begin = next((i for i in range(count) if not contains(solved[i], left)), count)
    end = next((i for i in range(count, 0, -1) if not contains(solved[i - 1], right)), 0)
    # A padded token may have the position of the first real one, or of the last.
    for first in (begin - 1, begin):
        start = integers[first] if 0 < first < count - 1 else None
        if start is None:
            continue
        counted = [start + index - indices[first] for index in indices]
        positions = [left] * first + counted[first:]
        if _fits(positions, solved) and (first > 1 or counted[0] != left):
            yield (f"left padding: the first {_tokens(indices[first])} at position {left}, the "
                   f"others count from {start}"), positions
            break
    for last in (end + 1, end):
        if not 1 < last < count:
            continue
        counted = [left + index - indices[0] for index in indices]
        positions = counted[:last] + [right] * (count - last)
        if _fits(positions, solved) and (last + 1 < count or counted[last] != right):
            padded = _tokens(indices[-1] + 1 - indices[last])
            yield (f"right padding: the last {padded} at position {right}, the others count from "
                   f"{left}"), positions
            break


def _tokens(count: int) -> str:
    return f"{count} token" + ("" if count == 1 else "s")


def short_form(numbers: Sequence[Any] | np.ndarray) -> str:
    """"0..7, 7, 7, 7", "12 (40 times)", "0..3, 9..6". At most _PARTS_MAX parts, then "..."."""
    parts: list[str] = []
    begin = 0
    while begin < len(numbers):
        if len(parts) == _PARTS_MAX:
            return ", ".join([*parts, "..."])
        ends = {}
        for step in (1, -1, 0):  # where the run of equal steps ends
            ends[step] = begin + 1
            while ends[step] < len(numbers) and (
                    numbers[ends[step]] - numbers[ends[step] - 1] == step):
                ends[step] += 1
        end, text = max(ends[1], ends[-1]), f"{numbers[begin]:.10g}"
        if end > begin + 2:
            text += f"..{numbers[end - 1]:.10g}"
        elif ends[0] > begin + _LISTED_MAX:
            end = ends[0]
            text += f" ({end - begin} times)"
        else:
            end = begin + 1
        parts.append(text)
        begin = end
    return ", ".join(parts)
