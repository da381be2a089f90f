#!/usr/bin/env python3
"""Prints the size of the house: lines of production and tests in all languages; of C++ and CUDA
files, units, lines and lines of code; test programs and tests.

A unit is a header with its source. A line of code is neither blank nor comment.
Usage: count.py [ROOT...]      several trees: a column for each, such as a commit before and now
"""
import pathlib
import sys

sys.dont_write_bytecode = True
import tidy  # noqa: E402  (after the line above, so that it leaves nothing in the tree)


def sums(tree, sizes, folders):
    """Returns {"files": ..., "lines": ...} of the C++ and CUDA in folders. sizes: of all rooms."""
    names = [name for name in tree.named(*tidy.CODE_SUFFIXES) if name.split("/")[0] in folders]
    rooms = [size for room, size in sizes.items() if room.split("/")[0] in folders]
    return {
        "files": len(names),
        "units": sum(units for _, units in rooms),
        "lines": sum(len(tree.text(name).splitlines()) for name in names),
        "lines of code": sum(lines for lines, _ in rooms),
    }


def test_programs(tree):
    """Returns the number of calls of rope_test, and of functions that call it once, in lists."""
    lists = tidy.reached_lists(tree)
    registering = tidy.registering_commands(tree, lists) - {"add_test"}
    return sum(1 for function, command in tidy.calls_in(tree, lists)
               if function is None and command in registering)


def measure(root):
    tree = tidy.Tree(root)
    sizes = tidy.room_sizes(tree)
    rows = {}
    for what, (folders, _) in tidy.TOTALS.items():
        rows[f"{what}: lines in all languages"] = tidy.total_lines(tree, what)
        rows |= {f"{what}: {key}": value for key, value in sums(tree, sizes, folders).items()}
    rows["test programs"] = test_programs(tree)
    rows["tests: TEST, TEST_F, TEST_P"] = sum(
        len(tidy.GTEST.findall(tree.text(name))) for name in tree.named(".cc"))
    for folder, (lines, units) in sorted(sizes.items()):
        if folder.split("/")[0] in tidy.TOTALS["production"][0]:
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
