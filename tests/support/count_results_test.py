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


NAMED = ("[ RUN      ] A.B\na_test.cc:5: Failure\nExpected: x\n  Actual: y\n\n"
         "[  FAILED  ] A.B (3 ms)\n[ RUN      ] P/A.C/0\n"
         "[  FAILED  ] P/A.C/0, where GetParam() = 4 (12 ms)\nmeasured: 1 ms\n"
         "[  FAILED  ] 2 tests, listed below:\n[  FAILED  ] A.B\n")
SKIPPED = ("a_test.cc:5: Skipped\nno grpcurl\n\n[  SKIPPED ] A.B (0 ms)\n"
           "[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.B\n")
UNITTEST = ("FAIL: test_a (b.C)\nERROR: test_d (b.C)\n"
            "Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=1, skipped=1)\n")
CUT = "".join(f"line {i}\n" for i in range(20))
FAILED = "failed: t (fail after 3.5 s)"
# (what, the cases of the file, the exit status, the printed lines)
CASES = (
    ("cases of GoogleTest", [case("[==========] 3 tests\n[  PASSED  ] 3 tests.\n")], 0,
     ["3 passed, 0 failed"]),
    ("a single one", [case("[  PASSED  ] 1 test.\n")], 0, ["1 passed, 0 failed"]),
    ("failed ones, named last", [case(NAMED, "fail"), case("[  PASSED  ] 1 test.\n")], 1,
     ["measured: 1 ms", FAILED, "failed: t: A.B", "failed: t: P/A.C/0",
      "failed: a_test.cc:5: Expected: x Actual: y", "1 passed, 2 failed"]),
    ("a skipped one", [case(SKIPPED), case("[  PASSED  ] 2 tests.\n")], 0,
     ["skipped: A.B (no grpcurl)", "2 passed, 0 failed, 1 skipped"]),
    ("a program without a summary", [case(CUT, "fail")], 1,
     [FAILED, *(f"failed: t: the last lines: line {i}" for i in range(10, 20)),
      "0 passed, 1 failed"]),
    ("a crash after a summary", [case("[  PASSED  ] 3 tests.\n", "fail")], 1,
     [FAILED, "failed: t: the last lines: [  PASSED  ] 3 tests.", "3 passed, 1 failed"]),
    ("cases of unittest", [case(UNITTEST, "fail")], 1,
     [FAILED, "failed: t: test_a (b.C)", "failed: t: test_d (b.C)",
      "2 passed, 2 failed, 1 skipped"]),
    ("another program", [case("hello\nmeasured: largest error 0.5\n")], 0,
     ["measured: largest error 0.5", "1 passed, 0 failed"]),
    ("a program that was not built",
     [case(status="notrun", inner='<skipped message="Unable to find executable"/>')], 1,
     ["skipped: t (Unable to find executable)", "failed: t (notrun after 3.5 s)",
      "0 passed, 1 failed"]),
    ("a program that skips itself",
     [case("x"), case(status="notrun", inner='<skipped message="SKIP_RETURN_CODE=77"/>')], 0,
     ["skipped: t (SKIP_RETURN_CODE=77)", "1 passed, 0 failed, 1 skipped"]),
    ("nothing", [], 1, ["no test ran", "0 passed, 1 failed"]),
)


class CountResultsTest(unittest.TestCase):
    def test_each_kind_of_program_is_counted_and_its_troubles_are_named(self):
        for what, cases, status, lines in CASES:
            with self.subTest(what):
                self.assertEqual(run(*cases), (status, lines))

    def test_missing_file_is_a_failure(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = count_results.main(["/nonexistent/junit.xml"])
        self.assertEqual((status, printed.getvalue().splitlines()[-1]), (1, "0 passed, 1 failed"))

    def test_failed_step_fails_the_run(self):
        status, lines = run(case(), steps=["quickstart=failed"])
        self.assertEqual((status, lines), (1, ["failed: quickstart", "1 passed, 1 failed"]))


if __name__ == "__main__":
    unittest.main()
