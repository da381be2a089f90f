#!/usr/bin/env python3
"""Prints the size of the house: files, units, lines, lines of code, test programs and tests.

A unit is a header with its source. A line of code is neither blank nor comment.
Usage: count.py [ROOT...]      several trees: a column for each, such as a commit before and now
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import tidy  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

PRODUCTION = ("proto", "kernels", "server", "client")
WALKS = ("unary", "stream", "ring")


def sums(tree, folders):
    """Returns {"files": ..., "lines": ...} of the C++ and CUDA in folders."""
    names = [name for name in tree.named(*tidy.CODE_SUFFIXES) if name.split("/")[0] in folders]
    return {
        "files": len(names),
        "units": len({name.rpartition(".")[0] for name in names}),
        "lines": sum(len(tree.text(name).splitlines()) for name in names),
        "lines of code": sum(tidy.code_lines(tree.text(name)) for name in names),
    }


def test_programs(tree):
    """Returns the number of calls of rope_test, and of functions that call it once, in lists."""
    lists = tidy.reached_lists(tree)
    registering = tidy.registering_commands(tree, lists) - {"add_test"}
    wrapped, function = 0, None
    for command, arguments in [both for name in lists for both in tidy.cmake_commands(tree, name)]:
        if command == "function":
            function = arguments[0]
        elif command == "endfunction":
            function = None
        elif command in registering and function is None:
            wrapped += 1
    return wrapped


def measure(root):
    tree = tidy.Tree(root)
    rows = {}
    for what, folders in (("production", PRODUCTION), ("tests", ("tests",))):
        rows |= {f"{what}: {key}": value for key, value in sums(tree, folders).items()}
    rows["test programs"] = test_programs(tree)
    rows["tests: TEST, TEST_F, TEST_P"] = sum(
        len(tidy.GTEST.findall(tree.text(name))) for name in tree.named(".cc"))
    for folder, (lines, units) in sorted(tidy.room_sizes(tree).items()):
        if folder.split("/")[0] in PRODUCTION:
            rows[f"{folder}: lines of code, units"] = f"{lines}, {units}"
    return rows


def main(arguments):
    roots = arguments or [pathlib.Path(__file__).resolve().parents[2]]
    columns = [measure(root) for root in roots]
    for key in dict.fromkeys(key for column in columns for key in column):
        print(f"{key:45}" + "".join(f"{column.get(key, '-')!s:>14}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
