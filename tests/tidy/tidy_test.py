#!/usr/bin/env python3
"""Tests of tidy.py: every rule is seen to fail on a small made-up tree, which keeps all of them.

tidy_cases.json has the tree, and for each breach the files that change (null: taken away; lines of
layers.txt are added) and the problems.
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import tidy  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "tidy_cases.json").read_text(encoding="utf-8"))


class TidyTest(unittest.TestCase):
    def check(self, changes):
        """(exit status, the problems) of the clean tree with some files changed or taken away."""
        files = {**CASES["clean"], "tests/tidy/layers.txt": "", **changes}
        files["tests/tidy/layers.txt"] = (
            (HERE / "layers.txt").read_text() + files["tests/tidy/layers.txt"])
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                if text is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = tidy.main([folder])
        return status, printed.getvalue().splitlines()[:-1]

    def test_a_tree_that_keeps_the_rules_has_no_problem(self):
        self.assertEqual(self.check({}), (0, []))

    def test_each_breach_is_seen_and_no_other(self):
        for case in CASES["breaches"]:
            with self.subTest(case["what"]):
                self.assertEqual(self.check(case["changes"]), (1, case["problems"]))


if __name__ == "__main__":
    unittest.main()
