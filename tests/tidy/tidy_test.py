#!/usr/bin/env python3
"""Tests of tidy.py: every rule is seen to fail on a small made-up tree, which keeps all of them."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import tidy  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

LAYERS = pathlib.Path(__file__).with_name("layers.txt").read_text()
CLEAN = {
    "CMakeLists.txt": "add_subdirectory(kernels)\nadd_subdirectory(server)\n"
                      "add_subdirectory(tests)\n",
    "README.md": "See [the kernels](kernels/a.h), `kernels/a.cc`, `kernels/*.cc` and `a.{h,cc}`.\n"
                 "`rope.v1.RopeService/Rotate` `build/bin/x` `AdderTest.AddsZero` `f_a_test`\n"
                 "| what | here |\n|---|---|\n| a | `AdderTest` |\n| b | not built |\n\n"
                 f"    {'x' * 121}\n```\n{'x' * 121}\n```\nhttps://{'x' * 121}\n",
    "kernels/CMakeLists.txt": "rope_library(k SOURCES ${PROJECT_SOURCE_DIR}/kernels/a.cc)\n",
    "kernels/a.h": "#include <vector>\n// " + "é" * 97 + "\n",
    "kernels/a.cc": '#include "kernels/a.h"\n#include "rope/config.h"\nint a = 0;\n',
    "server/CMakeLists.txt": "rope_library(s SOURCES main.cc b.cc engine/b.cc)\n",
    "server/main.cc": '#include <grpcpp/grpcpp.h>\n\n#include "kernels/a.h"\n',
    "server/b.cc": "/* throw\nnew */ auto s = \"new \\\"x\";\nauto r = R\"(throw \" 1)\"; f(new T);"
                   "  // Owned by the queue.\nstd::unique_ptr<T> t(new T());\n"
                   'auto e = absl::NotFoundError("x");\nusleep(1);\n',
    "server/engine/b.cc": '#include "server/request/c.h"\n',
    "server/request/c.h": "",
    "tests/CMakeLists.txt": "function(f n s)\n  rope_test(${n} ${s})\nendfunction()\n"
                            "f(f_a_test a_test.cc)\n",
    "tests/a_test.cc": '#include "kernels/a.h"\nTEST(AdderTest, AddsZero) {}\n',
    "tests/tidy/layers.txt": LAYERS,
    "proto/p.txt": "", "client/c.txt": "", "deploy/d.txt": 'cd some/wor' 'k/main\n',
    "Dockerfile": "", "LICENSE": "", ".gitignore": "/build/\n", "build/junk.cc": "throw 1;\n",
}
RAISES = ": a commit that raises the number says what it buys and what went for it"
# (what, {changed file: text, or None}, the problems)
CASES = (
    ("a stranger at the top level", {"utils/x.txt": ""},
     ["utils: not one of the names at the top level"]),
    ("a missing name", {"Dockerfile": None}, ["Dockerfile: missing at the top level"]),
    ("an arrow between folders", {"server/b.cc": '#include "rope/client.h"\n'},
     ["server/b.cc:1: server may not include client (rope/client.h)"]),
    ("a denied header", {"server/engine/b.cc": "#include <grpcpp/grpcpp.h>\n"},
     ["server/engine/b.cc:1: may not include grpcpp/grpcpp.h"]),
    ("an arrow up between rooms",
     {"server/request/c.h": '#include "server/engine/d.h"\n', "server/engine/d.h": ""},
     ["server/request/c.h:1: server/request may not include server/engine (server/engine/d.h)"]),
    ("an arrow between strangers",
     {"server/ipc/c.h": '#include "server/grpc/d.h"\n', "server/grpc/d.h": ""},
     ["server/ipc/c.h:1: server/ipc may not include server/grpc (server/grpc/d.h)"]),
    ("a folder that is no room", {"server/utils/b.h": ""},
     ["server/utils/b.h:1: in none of the rooms of server"]),
    ("a cycle by way of a source's header",
     {"server/b.h": "", "server/c.h": '#include "server/b.h"\n',
      "server/b.cc": '#include "server/c.h"\n'},
     ["server/b: a cycle of includes: server/b -> server/c -> server/b"]),
    ("a room above its budget",
     {"tests/tidy/layers.txt": LAYERS + "budget server/py 1 1\n", "server/py/b.py": "b = 0  # b\n",
      "server/py/c.py": "# No code.\n\nc = 1\n"},
     ["server/py: 2 lines of code, want at most 1 (layers.txt)",
      "server/py: 2 units, want at most 1 (layers.txt)"]),
    ("a total above its number",
     {"tests/tidy/layers.txt": LAYERS + "total production 1\ntotal tests 1\n",
      "server/page.html": "<script>\n</script>\n"},
     [f"production: 17 lines, want at most 1 (layers.txt){RAISES}",
      f"tests: 2 lines, want at most 1 (layers.txt){RAISES}"]),
    ("a long line", {"kernels/a.h": "// " + "é" * 98 + "\n", "server/README.md": "x" * 121},
     ["kernels/a.h:1: 101 columns, want at most 100",
      "server/README.md:1: 121 columns, want at most 120"]),
    ("a long first page", {"README.md": "x\n" * 151},
     ["README.md:1: 151 lines, want at most 150"]),
    ("a source in no list", {"kernels/CMakeLists.txt": "rope_library(k SOURCES x # a.cc\n)\n"},
     ["kernels/a.cc:1: in no CMakeLists.txt that the top one reaches"]),
    ("a folder that nobody adds",
     {"CMakeLists.txt": "add_subdirectory(server)\nadd_subdirectory(tests)\n"},
     ["kernels/a.cc:1: in no CMakeLists.txt that the top one reaches"]),
    ("a test that is only compiled",
     {"tests/CMakeLists.txt": "add_executable(f a_test.cc)\nadd_test(f_a_test)\n"},
     ["tests/a_test.cc:1: not registered with rope_test"]),
    ("a Python test that nobody runs", {"tests/x_test.py": ""},
     ["tests/x_test.py:1: not registered with add_test"]),
    ("a word after a literal", {"server/b.cc": "auto c = '\\''; int n = 1'000; throw 1;\n"},
     ["server/b.cc:1: throws"]),
    ("a raw new", {"server/b.cc": "auto* p = new int(1);\n"},
     ["server/b.cc:1: raw new, want a smart pointer or `// owned by ...`"]),
    ("a sleeping test", {"tests/a_test.cc": "TEST(AdderTest, AddsZero) { usleep(1); }\n"},
     ["tests/a_test.cc:1: sleeps, want a fake clock or a notification"]),
    ("an error in one string", {"server/engine/b.cc": 'auto s = absl::NotFoundError("x");\n'},
     ["server/engine/b.cc:1: an error without its parts, want MakeError"]),
    ("a path of one machine", {"deploy/d.txt": "cd /wor" "k/main\n"},
     ["deploy/d.txt:1: '/wor" "k/m' belongs to one machine or host"]),
    ("a broken link", {"server/README.md": "[b](b.h#part) [c](https://example.com/c)\n"},
     ["server/README.md:1: link to b.h, which does not exist"]),
    ("a missing file in backticks", {"server/README.md": "`kernels/{a,b}.h` `c.h` `d.h`\n"},
     ["server/README.md:1: names d.h, which does not exist",
      "server/README.md:1: names kernels/{a,b}.h, which does not exist"]),
    ("a test that does not exist", {"server/README.md": "`AdderTest.AddsOne`\n"},
     ["server/README.md:1: names the test AdderTest.AddsOne, which does not exist"]),
    ("a row without a proof", {"server/README.md": "| what | here |\n|---|---|\n| a | `x` |\n"},
     ['server/README.md:3: a row without a test, golden files or "not built"']),
)


class TidyTest(unittest.TestCase):
    def check(self, changes):
        """(exit status, the problems) of the clean tree with some files changed or taken away."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **changes}.items():
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
        for what, changes, wanted in CASES:
            with self.subTest(what):
                self.assertEqual(self.check(changes), (1, wanted))

    def test_every_room_has_a_budget_and_each_part_a_total(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        layers = tidy.Layers(LAYERS)
        rooms = {folder for folder in tidy.room_sizes(tidy.Tree(root))
                 if folder.split("/")[0] in layers.rooms}
        self.assertEqual(rooms - set(layers.budgets), set())
        self.assertEqual(set(layers.totals), set(tidy.TOTALS))


if __name__ == "__main__":
    unittest.main()
