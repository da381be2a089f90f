#!/usr/bin/env python3
"""The headers of the C API keep what the librope-VERSION.abi beside this file froze, as abidiff
sees it.

Usage: abi_test.py                    the test; status 77 without abigail-tools or gcc
       abi_test.py --write=VERSION    writes librope-VERSION.abi; not if a frozen file is broken

The headers are compiled with debug information as a library of empty functions, so no build is
needed. That librope.so exports what the headers declare is exports_test.sh. Additions are no break:
functions, types, enumerators.
"""

import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

FOLDER = pathlib.Path(__file__).resolve().parent
HEADERS = FOLDER.parents[3] / "client/include/rope"
NAMES = ("rope.h", "dlpack.h")
TOOLS = ("gcc", "abidw", "abidiff")
INTEGERS = "".join(f"typedef __{sign}INT{bits}_TYPE__ {sign.lower()}int{bits}_t;\n"
                   for sign in ("", "U") for bits in (8, 16, 32, 64))


def run(*command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")


def as_definitions(header):
    """The header with a body for each function, and a name for each enum."""
    header = re.sub(r"//[^\n]*", "", header)
    header = re.sub(r"^((?:const )?\w+\*? rope_\w+\([^()]*\));", r"\1 { __builtin_trap(); }",
                    header, flags=re.MULTILINE)
    return re.sub(r"\benum \{\s*(\w+)", r"enum of_\1 { \1", header)


def abi_of(headers, folder):
    """The ABI of {name: text} as abidw writes it, the same with every C library."""
    folder = pathlib.Path(folder)
    (folder / "rope").mkdir(exist_ok=True)
    for name, text in headers.items():
        (folder / "rope" / name).write_text(as_definitions(text))
    (folder / "stddef.h").write_text("typedef __SIZE_TYPE__ size_t;\n")
    (folder / "stdint.h").write_text(INTEGERS)
    (folder / "rope.c").write_text('#include "rope/rope.h"\n')
    run("gcc", "-g", "-fno-eliminate-unused-debug-types", "-fPIC", "-shared", "-nostdlib",
        "-nostdinc", "-I.", "rope.c", "-o", "librope.so", folder=folder)
    run("abidw", "--load-all-types", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs",
        "--out-file", "librope.abi", "librope.so", folder=folder)
    return (folder / "librope.abi").read_text()


def without_growth(abi, frozen):
    """`abi` without new enumerators."""
    tree, old = map(xml.etree.ElementTree.fromstring, (abi, frozen))
    enums = {kind.get("name"): kind for kind in old.iter("enum-decl")}
    for kind in tree.iter("enum-decl"):
        if kind.get("name") not in enums:
            continue
        names = {value.get("name") for value in enums[kind.get("name")].findall("enumerator")}
        for value in kind.findall("enumerator"):
            if value.get("name") not in names:
                kind.remove(value)
    return xml.etree.ElementTree.tostring(tree, encoding="unicode")


def breaks(frozen, abi, folder):
    """abidiff's report if something that is frozen changed or went, else an empty text."""
    folder = pathlib.Path(folder)
    (folder / "frozen.abi").write_text(frozen)
    (folder / "now.abi").write_text(without_growth(abi, frozen))
    done = subprocess.run(["abidiff", "--harmless", "--non-reachable-types", "frozen.abi",
                           "now.abi"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode & 3:  # an error of the tool or of its usage
        raise RuntimeError(f"abidiff: {done.stdout}{done.stderr}")
    found = re.search(r"\b[1-9]\d* (removed|changed)\b", done.stdout, re.IGNORECASE)
    return done.stdout if found else ""


def headers_now():
    return {name: (HEADERS / name).read_text() for name in NAMES}


def frozen_files():
    return sorted(FOLDER.glob("librope-*.abi"))


def write(version):
    path = FOLDER / f"librope-{version}.abi"
    with tempfile.TemporaryDirectory() as folder:
        abi = abi_of(headers_now(), folder)
        for frozen in frozen_files():
            if report := breaks(frozen.read_text(), abi, folder):
                sys.exit(f"{report}{frozen.name} is broken, and {path.name} was not written")
    path.write_text(abi)


class AbiTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def edited(self, name, old, new):
        headers = headers_now()
        text = headers[name].replace(old, new, 1)
        self.assertNotEqual(text, headers[name], f"{name} does not have {old}")
        return abi_of({**headers, name: text}, self.folder)

    def test_headers_break_no_frozen_file(self):
        self.assertTrue(frozen_files())
        abi = abi_of(headers_now(), self.folder)
        for frozen in frozen_files():
            with self.subTest(frozen.name):
                self.assertEqual(breaks(frozen.read_text(), abi, self.folder), "")

    def test_each_break_is_noticed(self):
        now = abi_of(headers_now(), self.folder)
        for name, old, new, want in (
                ("rope.h", "  const char* name;\n", "  const char* name;\n  int64_t more;\n",
                 "rope_argument"),
                ("rope.h", "  const DLTensor* tensor;\n", "", "rope_argument"),
                ("rope.h", "void rope_close(rope_client*", "void rope_shut(rope_client*",
                 "1 Removed"),
                ("rope.h", "int64_t bytes, rope_memory**", "int32_t bytes, rope_memory**",
                 "rope_allocate"),
                ("rope.h", "const char* rope_version(", "char* rope_version(", "rope_version"),
                ("dlpack.h", "kDLROCM = 10,", "kDLROCM = 9,", "from value '10' to '9'"),
                ("dlpack.h", "kDLROCM = 10,", "", "kDLROCM"),
                ("dlpack.h", "int32_t device_id;", "int64_t device_id;", "DLDevice")):
            with self.subTest(new=new, old=old):
                self.assertIn(want, breaks(now, self.edited(name, old, new), self.folder))

    def test_additions_are_no_break(self):
        now = abi_of(headers_now(), self.folder)
        for name, old, new in (
                ("dlpack.h", "kDLROCM = 10,", "kDLROCM = 10, kDLMore = 99,"),
                ("rope.h", "void rope_close(", "int32_t rope_more(int64_t b);\nvoid rope_close(")):
            with self.subTest(new=new):
                self.assertEqual(breaks(now, self.edited(name, old, new), self.folder), "")


def why_skipped():
    if platform.machine() != "x86_64":
        return "the frozen files are of x86-64"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"{' '.join(missing)}: not installed" if missing else ""


if __name__ == "__main__":
    if reason := why_skipped():
        print(f"skipped: {reason}")
        sys.exit(77)
    if len(sys.argv) == 2 and sys.argv[1].startswith("--write="):
        write(sys.argv[1].partition("=")[2])
    else:
        unittest.main()
