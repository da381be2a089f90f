"""Runs an implementation over cases and says what it did with each."""
from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Iterable

import numpy as np

from .cases import Answer, Case, cases as all_cases

PASSED = ("exact", "float32", "reading", "refused", "avoided")
FAILED = ("wrong", "raised", "accepted")


class Unsupported(NotImplementedError):
    """Raised by an implementation that does not do what a case asks: the case is skipped."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        outcome: one of PASSED or FAILED, or "skipped".
        words: why.
        error: the largest absolute one, against the answer that was matched, else the first.
    """

    case: Case
    outcome: str
    words: str = ""
    error: float = float("nan")


class Report:
    """The results of one implementation. As a text: a table, and a line that counts."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)
        self.passed = [each for each in self.results if each.outcome in PASSED]
        self.failed = [each for each in self.results if each.outcome in FAILED]
        self.skipped = [each for each in self.results if each.outcome == "skipped"]

    def count(self, flag: str, *outcomes: str) -> int:
        return sum(each.case.flag == flag and each.outcome in outcomes for each in self.results)

    def largest_error(self, flag: str = "valid") -> float:
        """Of the cases that passed."""
        return max((each.error for each in self.passed if each.case.flag == flag), default=0.0)

    def __str__(self) -> str:
        lines = [f"{each.case.name:<44} {each.case.flag:<10} {each.outcome:<8} "
                 f"{'' if np.isnan(each.error) else f'{each.error:.1e}':<7} {each.words}".rstrip()
                 for each in self.results]
        counted = collections.Counter(each.outcome for each in self.results)
        names = [name for name in (*PASSED, *FAILED, "skipped") if counted[name]]
        return "\n".join([*lines, ", ".join(f"{counted[name]} {name}" for name in names) + (
            f"; largest error of a valid case {self.largest_error():.1e}")])


def run(function: Callable[[Case], Any], cases: Iterable[Case] | None = None) -> Report:
    """Calls the function with each case.

    Args:
        function: returns case.x rotated, as anything that numpy reads. It raises Unsupported (or
            NotImplementedError) with the reason for what it does not do, and any other exception
            to refuse a config.
    """
    return Report(_judge(case, function) for case in (all_cases() if cases is None else cases))


def _judge(case: Case, function: Callable[[Case], Any]) -> Result:
    try:
        got = np.asarray(function(case), np.float64)
    except NotImplementedError as reason:
        return Result(case, "skipped", str(reason))
    except Exception as error:
        words = f"{type(error).__name__}: {error}".split("\n")[0]
        return Result(case, "refused" if case.must_be_refused else "raised", words)
    if case.must_be_refused:
        return Result(case, "accepted", case.reason)
    if got.shape != case.x.shape:
        return Result(case, "wrong", f"shape {got.shape}, want {case.x.shape}")
    if case.wrong:
        is_wrong = _is_within(got, case.wrong, case.wrong.tolerance)
        return Result(case, "wrong" if is_wrong else "avoided", case.reason if is_wrong else "")
    for answer in case.answers:
        if _is_within(got, answer, answer.tolerance):
            precision = "exact" if _is_within(got, answer, answer.exact) else "float32"
            given = answer is case.answers[0]
            return Result(case, precision if given else "reading", "" if given else answer.name,
                          abs(got - answer.values).max())
    named = (each.name for each in case.mistakes() if _is_within(got, each, each.tolerance))
    return Result(case, "wrong", next(named, ""), abs(got - case.expected).max())


def _is_within(got: np.ndarray, answer: Answer, tolerance: np.ndarray) -> bool:
    return bool((abs(got - answer.values) <= tolerance).all())  # NaN is not
