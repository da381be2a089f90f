#!/usr/bin/env python3
"""Tests of count_results.py: each kind of test program, each way to fail."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape

sys.dont_write_bytecode = True
import count_results  # noqa: E402  (after the line above, so that it leaves nothing in the tree)


def case(output="", status="run", inner=""):
    return (f'<testcase name="t" status="{status}" time="3.5">{inner}'
            f"<system-out>{escape(output)}</system-out></testcase>")


def run(*cases, steps=()):
    """Returns the exit status and the printed lines for a file with these cases."""
    with tempfile.TemporaryDirectory() as folder:
        junit = pathlib.Path(folder, "junit.xml")
        junit.write_text(f"<testsuite>{''.join(cases)}</testsuite>", encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = count_results.main([*(f"--step={step}" for step in steps), str(junit)])
    return status, printed.getvalue().splitlines()


class CountResultsTest(unittest.TestCase):
    def test_gtest_cases_are_counted_one_by_one(self):
        output = "[==========] 3 tests\n[  PASSED  ] 3 tests.\n"
        self.assertEqual(run(case(output)), (0, ["3 passed, 0 failed"]))

    def test_single_gtest_case_is_counted(self):
        self.assertEqual(run(case("[  PASSED  ] 1 test.\n")), (0, ["1 passed, 0 failed"]))

    def test_failed_gtest_cases_fail_the_run(self):
        output = "[  PASSED  ] 3 tests.\n[  FAILED  ] 2 tests, listed below:\n"
        status, lines = run(case(output, "fail"))
        self.assertEqual((status, lines[-1]), (1, "3 passed, 2 failed"))

    def test_failed_gtest_cases_are_named_last_with_their_reasons(self):
        output = ("[ RUN      ] A.B\na_test.cc:5: Failure\nExpected: x\n  Actual: y\n\n"
                  "[  FAILED  ] A.B (3 ms)\n[ RUN      ] P/A.C/0\n"
                  "[  FAILED  ] P/A.C/0, where GetParam() = 4 (12 ms)\nmeasured: 1 ms\n"
                  "[  FAILED  ] 2 tests, listed below:\n[  FAILED  ] A.B\n")
        _, lines = run(case(output, "fail"), case("[  PASSED  ] 1 test.\n"))
        self.assertEqual(lines, [
            "measured: 1 ms", "failed: t (fail after 3.5 s)", "failed: t: A.B",
            "failed: t: P/A.C/0",
            "failed: a_test.cc:5: Expected: x Actual: y", "1 passed, 2 failed"])

    def test_skipped_gtest_case_is_named_with_its_reason(self):
        output = ("a_test.cc:5: Skipped\nno grpcurl\n\n[  SKIPPED ] A.B (0 ms)\n"
                  "[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.B\n")
        status, lines = run(case(output), case("[  PASSED  ] 2 tests.\n"))
        self.assertEqual(status, 0)
        self.assertEqual(lines, ["skipped: A.B (no grpcurl)", "2 passed, 0 failed, 1 skipped"])

    def test_program_without_a_summary_is_one_failure_with_its_time_and_its_last_lines(self):
        output = "".join(f"line {i}\n" for i in range(20)) + "[ RUN      ] A.B\n"
        status, lines = run(case(output, "fail"))
        self.assertEqual((status, lines[0], lines[-1]),
                         (1, "failed: t (fail after 3.5 s)", "0 passed, 1 failed"))
        self.assertEqual(lines[1:-1], [f"failed: t: the last lines: line {i}"
                                       for i in range(11, 20)] +
                         ["failed: t: the last lines: [ RUN      ] A.B"])

    def test_crash_after_a_passing_summary_is_one_failure(self):
        status, lines = run(case("[  PASSED  ] 3 tests.\n", "fail"))
        self.assertEqual((status, lines[-1]), (1, "3 passed, 1 failed"))

    def test_unittest_cases_are_counted_one_by_one(self):
        output = ("FAIL: test_a (b.C)\nERROR: test_d (b.C)\n"
                  "Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=1, skipped=1)\n")
        self.assertEqual(run(case(output, "fail")),
                         (1, ["failed: t (fail after 3.5 s)", "failed: t: test_a (b.C)",
                              "failed: t: test_d (b.C)", "2 passed, 2 failed, 1 skipped"]))

    def test_plain_program_counts_as_one(self):
        self.assertEqual(run(case("hello")), (0, ["1 passed, 0 failed"]))

    def test_program_that_was_not_built_is_a_failure(self):
        inner = '<skipped message="Unable to find executable"/>'
        status, lines = run(case(status="notrun", inner=inner))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_program_that_skips_itself_is_skipped(self):
        inner = '<skipped message="SKIP_RETURN_CODE=77"/>'
        status, lines = run(case("x"), case(status="notrun", inner=inner))
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(run(), (1, ["no test ran", "0 passed, 1 failed"]))

    def test_missing_file_is_a_failure(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = count_results.main(["/nonexistent/junit.xml"])
        self.assertEqual((status, printed.getvalue().splitlines()[-1]), (1, "0 passed, 1 failed"))

    def test_failed_step_fails_the_run(self):
        status, lines = run(case(), steps=["quickstart=failed"])
        self.assertEqual((status, lines), (1, ["failed: quickstart", "1 passed, 1 failed"]))

    def test_measured_lines_are_repeated(self):
        _, lines = run(case("noise\nmeasured: largest error 0.5\n"))
        self.assertEqual(lines[0], "measured: largest error 0.5")


if __name__ == "__main__":
    unittest.main()
