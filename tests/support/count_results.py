#!/usr/bin/env python3
"""Counts test cases in the JUnit file that ctest writes; the last line says `N passed, N failed`.

A GoogleTest program counts as its cases, a Python unittest program too, anything else as one test.
Lines of a test that begin with `measured: ` are repeated, and skipped tests are named with their
reason. Failed tests are named last, with what they said. Exits 1 if anything failed or nothing ran.

Usage: count_results.py [--step NAME=passed|failed]... JUNIT.xml
"""
import argparse
import dataclasses
import re
import sys
import xml.etree.ElementTree

GTEST_SUMMARY = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) +\] (\d+) tests?[.,]", re.MULTILINE)
GTEST_SKIPPED_CASE = re.compile(r"^\[  SKIPPED \] ([\w/.]+)(?: \(\d+ ms\))$", re.MULTILINE)
GTEST_SKIP_REASON = re.compile(r"^.*: Skipped\n(.*)$", re.MULTILINE)
UNITTEST_SUMMARY = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_BAD = re.compile(r"(failures|errors|skipped)=(\d+)")
GTEST_FAILED_CASE = re.compile(r"^\[  FAILED  \] (\S+?),? .*\(\d+ ms\)$", re.MULTILINE)
GTEST_FAILURE = re.compile(r"^(\S+:\d+): Failure\n((?:.+\n?){1,6})", re.MULTILINE)
UNITTEST_FAILED_CASE = re.compile(r"^(?:FAIL|ERROR): (.+)$", re.MULTILINE)
LAST_LINES = 10
MEASURED = re.compile(r"^measured: .*$", re.MULTILINE)


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_cases(output):
    """Counts the cases that a program's own summary names; all zero if it has none."""
    counts = Counts()
    for outcome, number in GTEST_SUMMARY.findall(output):
        setattr(counts, outcome.lower(), getattr(counts, outcome.lower()) + int(number))
    for ran in UNITTEST_SUMMARY.findall(output):
        counts.passed += int(ran)
    if UNITTEST_SUMMARY.search(output):
        for kind, number in UNITTEST_BAD.findall(output):
            counts.passed -= int(number)
            counts.add(Counts(skipped=int(number)) if kind == "skipped"
                       else Counts(failed=int(number)))
    return counts


def count_test(case):
    """Counts one <testcase>: a program that failed counts at least one failure."""
    output = case.findtext("system-out") or ""
    skipped = case.find("skipped")
    if skipped is not None:
        # ctest also says "skipped" of a program that was not built: that is a failure.
        by_choice = skipped.get("message", "").startswith("SKIP_")
        return Counts(skipped=1) if by_choice else Counts(failed=1)
    counts = count_cases(output)
    if case.get("status") != "run":
        counts.failed = max(counts.failed, 1)
    elif counts == Counts():
        counts.passed = 1
    return counts


def notes(case):
    """Yields the lines worth repeating: what was measured, and what was skipped and why."""
    output = case.findtext("system-out") or ""
    for line in MEASURED.findall(output):
        yield line
    names = GTEST_SKIPPED_CASE.findall(output)
    reasons = GTEST_SKIP_REASON.findall(output)
    for index, name in enumerate(names):
        reason = f" ({reasons[index]})" if index < len(reasons) else ""
        yield f"skipped: {name}{reason}"
    skipped = case.find("skipped")
    if skipped is not None:
        yield f"skipped: {case.get('name')} ({skipped.get('message')})"


def failures(case):
    """Yields a line for each thing that failed in the <testcase>, and for each reason it gave."""
    if count_test(case).failed == 0:
        return
    output = case.findtext("system-out") or ""
    yield f"failed: {case.get('name')} ({case.get('status')} after {case.get('time')} s)"
    names = GTEST_FAILED_CASE.findall(output) + UNITTEST_FAILED_CASE.findall(output)
    for name in names:
        yield f"failed: {case.get('name')}: {name}"
    if not names:  # it crashed, or ctest's timeout ended it
        for line in output.splitlines()[-LAST_LINES:]:
            yield f"failed: {case.get('name')}: the last lines: {line[:400]}"
    for place, text in GTEST_FAILURE.findall(output):
        yield f"failed: {place}: {' '.join(text.split())[:400]}"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", action="append", default=[], metavar="NAME=passed|failed")
    parser.add_argument("junit")
    options = parser.parse_args(arguments)
    total = Counts()
    try:
        cases = list(xml.etree.ElementTree.parse(options.junit).iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"{options.junit}: {error}")
        cases = []
        total.failed += 1
    for case in cases:
        total.add(count_test(case))
        for note in notes(case):
            print(note)
    for case in cases:
        for failure in failures(case):
            print(failure)
    for step in options.step:
        name, outcome = step.split("=", 1)
        total.add(Counts(**{outcome: 1}))
        if outcome != "passed":
            print(f"{outcome}: {name}")
    if total.passed + total.failed == 0:
        total.failed = 1
        print("no test ran")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
