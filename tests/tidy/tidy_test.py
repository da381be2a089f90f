#!/usr/bin/env python3
"""Tests of tidy.py: every rule is seen to fail on a small made-up tree, and to pass when kept."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import tidy  # noqa: E402  (after the line above, so that it leaves nothing in the tree)

CLEAN = {
    "CMakeLists.txt": "add_subdirectory(kernels)\nadd_subdirectory(server)\n"
                      "add_subdirectory(tests)\n",
    "README.md": "See [the kernels](kernels/a.h), `kernels/a.cc`, `kernels/*.cc` and `a.{h,cc}`.\n",
    "kernels/CMakeLists.txt": "rope_library(k SOURCES a.cc)\n",
    "kernels/a.h": "#include <vector>\n",
    "kernels/a.cc": '#include "kernels/a.h"\nint a = 0;  // TODO(after the first release): more.\n',
    "server/CMakeLists.txt": "rope_library(s SOURCES main.cc b.cc)\n",
    "server/main.cc": '#include <grpcpp/grpcpp.h>\n\n#include "kernels/a.h"\n',
    "server/b.cc": "int b = 0;\n",
    "tests/CMakeLists.txt": "rope_test(a_test SOURCES a_test.cc)\n",
    "tests/a_test.cc": '#include "kernels/a.h"\n',
    "tests/tidy/layers.txt": pathlib.Path(__file__).with_name("layers.txt").read_text(),
    "proto/p.txt": "", "client/c.txt": "", "deploy/d.txt": "", "Dockerfile": "", "LICENSE": "",
    ".gitignore": "/build/\n", "build/junk.cc": "throw NULL;\n",
}


def check(changes=None, without=()):
    """Returns the problems of the clean tree with some files changed or taken away."""
    files = {**CLEAN, **(changes or {})}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            if name not in without:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return tidy.check_all(folder)


class TreeCase(unittest.TestCase):
    def assert_problems(self, wanted, changes=None, without=()):
        self.assertEqual(check(changes, without), wanted)


class WholeTest(TreeCase):
    def test_clean_tree_has_no_problem(self):
        self.assertEqual(check(), [])

    def test_main_exits_1_on_a_problem_and_0_without(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in CLEAN.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(tidy.main([folder]), 0)
                pathlib.Path(folder, "LICENSE").unlink()
                self.assertEqual(tidy.main([folder]), 1)
        self.assertIn("LICENSE: missing at the top level", printed.getvalue())


class TopLevelTest(TreeCase):
    def test_stranger_at_the_top_level_fails(self):
        self.assert_problems(["utils: not one of the names at the top level"], {"utils/x.txt": ""})

    def test_missing_name_fails(self):
        self.assert_problems(["Dockerfile: missing at the top level"], without=["Dockerfile"])


class IncludeTest(TreeCase):
    def include(self, name, header, wanted):
        text = CLEAN.get(name, "")
        changes = {name: f'#include "{header}"\n{text}'}
        problems = [p for p in check(changes) if p.startswith(f"{name}:1: ") and "nclude" in p]
        self.assertEqual(problems, [f"{name}:1: {what}" for what in wanted])

    def test_kernels_include_nobody(self):
        for header, folder in (("server/b.h", "server"), ("proto/wire_cursor.h", "proto"),
                               ("rope/client.h", "client")):
            self.include("kernels/a.cc", header, [f"kernels may not include {folder} ({header})"])

    def test_kernels_know_no_grpc_and_no_protobuf(self):
        for header in ("grpcpp/grpcpp.h", "grpc/grpc.h", "google/protobuf/message.h"):
            self.include("kernels/a.cc", header, [f"may not include {header}"])

    def test_kernels_include_no_schema(self):
        header = "rope/v1/rotate.pb.h"
        self.include("kernels/a.cc", header, [f"kernels may not include proto ({header})",
                                              f"may not include {header}"])

    def test_proto_includes_nobody(self):
        self.include("proto/p.cc", "kernels/a.h", ["proto may not include kernels (kernels/a.h)"])

    def test_server_does_not_include_client(self):
        for header in ("client/stub.h", "rope/client.h"):
            self.include("server/b.cc", header, [f"server may not include client ({header})"])

    def test_the_embedded_room_alone_includes_client(self):
        self.include("server/embedded/b.cc", "client/stub.h", [])
        self.include("server/embeddedness/b.cc", "client/stub.h",
                     ["server may not include client (client/stub.h)"])

    def test_client_includes_proto_only(self):
        self.include("client/c.cc", "kernels/a.h", ["may not include kernels/a.h"])
        self.include("client/c.cc", "server/b.h", ["client may not include server (server/b.h)"])
        self.include("client/c.cc", "proto/wire_cursor.h", [])
        self.include("client/c.cc", "rope/v1/rotate.pb.h", [])

    def test_tests_include_all(self):
        for header in ("kernels/a.h", "server/b.h", "client/stub.h", "proto/float16.h",
                       "hwy/highway.h"):
            self.include("tests/a_test.cc", header, [])

    def test_highway_stays_in_the_kernel_file(self):
        self.include("kernels/a.cc", "hwy/highway.h", ["may not include hwy/highway.h"])
        self.include("kernels/backend/cpu/cpu_rotate-inl.h", "hwy/highway.h", [])

    def test_cuda_stays_in_its_files(self):
        self.include("kernels/a.cc", "cuda_runtime_api.h", ["may not include cuda_runtime_api.h"])
        self.include("kernels/backend/cuda/cuda_plan.cc", "cuda_fp16.h",
                     ["may not include cuda_fp16.h"])
        self.include("kernels/backend/cuda/cuda_rotate.cuh", "cuda_fp16.h", [])

    def test_middle_of_the_server_knows_no_grpc(self):
        self.include("server/engine/batcher.cc", "grpcpp/grpcpp.h",
                     ["may not include grpcpp/grpcpp.h"])
        self.include("server/grpc/rope_service.cc", "grpcpp/grpcpp.h", [])

    def test_command_line_tool_uses_public_headers(self):
        self.include("client/cli/arguments.cc", "client/calls/retry.h",
                     ["may not include client/calls/retry.h"])
        self.include("client/cli/arguments.cc", "rope/client.h", [])

    def test_public_client_headers_name_nobody_elses_types(self):
        for header in ("grpcpp/grpcpp.h", "google/protobuf/message.h", "absl/status/status.h"):
            self.include("client/include/rope/client.h", header, [f"may not include {header}"])
        self.include("client/include/rope/client.h", "rope/status.h", [])

    def test_config_is_of_every_folder_and_includes_none(self):
        self.include("kernels/a.cc", "rope/config.h", [])
        self.include("client/include/rope/config.h", "rope/status.h",
                     ["may not include rope/status.h"])


class SpreadTest(TreeCase):
    def test_a_word_in_too_many_files_fails_and_names_them(self):
        files = [f"kernels/{letter}.cc" for letter in "bcdefghi"] + ["proto/p.proto"]
        changes = {**{name: "// kLlama3\n" for name in files}, "tests/b_test.cc": "// llama3\n"}
        spread = "tests/tidy/layers.txt: "
        self.assertEqual([p for p in check(changes) if p.startswith(spread)], [])
        changes["server/b.cc"] = 'const char* kType = "llama3";\n'
        self.assertEqual([p for p in check(changes) if p.startswith(spread)],
                         [f"{spread}10 files name llama3, want at most 9: "
                          f"{' '.join(sorted([*files, 'server/b.cc']))}"])


class RoomsTest(TreeCase):
    def room(self, name, target, wanted):
        changes = {name: f'#include "{target}"\n', target: ""}
        self.assertEqual([p for p in check(changes) if " may not include " in p], wanted)

    def test_room_includes_itself_and_what_is_below(self):
        self.room("server/engine/b.h", "server/engine/c.h", [])
        self.room("server/engine/b.h", "server/request/c.h", [])
        self.room("server/server.h", "server/grpc/c.h", [])
        self.room("server/memory/b.h", "server/error.h", [])

    def test_room_does_not_include_what_is_above(self):
        self.room("server/request/b.h", "server/engine/c.h",
                  ["server/request/b.h:1: server/request may not include server/engine "
                   "(server/engine/c.h)"])
        self.room("server/grpc/b.h", "server/server.h",
                  ["server/grpc/b.h:1: server/grpc may not include server/* (server/server.h)"])

    def test_strangers_do_not_include_each_other(self):
        self.room("kernels/backend/cuda/b.h", "kernels/backend/cpu/c.h",
                  ["kernels/backend/cuda/b.h:1: kernels/backend/cuda may not include "
                   "kernels/backend/cpu (kernels/backend/cpu/c.h)"])

    def test_public_header_of_the_client_is_the_ground(self):
        changes = {"client/include/rope/b.h": '#include "client/calls/c.h"\n',
                   "client/calls/c.h": '#include "rope/d.h"\n', "client/include/rope/d.h": ""}
        self.assert_problems(
            ["client/include/rope/b.h:1: client/include/rope may not include client/calls "
             "(client/calls/c.h)", "client/include/rope/b.h:1: may not include client/calls/c.h"],
            changes)

    def test_folder_that_is_no_room_fails(self):
        self.assert_problems(["server/utils/b.h:1: in none of the rooms of server"],
                             {"server/utils/b.h": ""})


class CycleTest(TreeCase):
    def test_headers_that_include_each_other_fail(self):
        changes = {"server/engine/b.h": '#include "server/engine/c.h"\n',
                   "server/engine/c.h": '#include "server/engine/b.h"\n'}
        self.assert_problems(["server/engine/b: a cycle of includes: server/engine/b -> "
                              "server/engine/c -> server/engine/b"], changes)

    def test_source_that_includes_what_knows_its_header_fails(self):
        changes = {"server/engine/b.h": "", "server/engine/c.h": '#include "server/engine/b.h"\n',
                   "server/b.h": "", "server/c.h": '#include "server/b.h"\n'}
        self.assert_problems([], changes)
        changes["server/b.cc"] = '#include "server/c.h"\n'
        self.assert_problems(["server/b: a cycle of includes: server/b -> server/c -> server/b"],
                             changes)


class ColumnsTest(TreeCase):
    def test_101_columns_fail_and_100_do_not(self):
        line = "// " + "é" * 97
        self.assert_problems(["kernels/a.h:2: 101 columns, want at most 100"],
                             {"kernels/a.h": f"{line}\n{line}x\n"})


    def test_prose_has_120_columns_and_code_in_it_any_number(self):
        line = "x" * 121
        self.assert_problems(
            ["README.md:1: 121 columns, want at most 120", "proto/p.proto:1: 121 columns, want at "
             "most 120"],
            {"README.md": f"{line}\n    {line}\n```\n{line}\n```\nhttps://{line}\n{line[1:]}\n",
             "proto/p.proto": f"{line}\n",
             "CMakeLists.txt": CLEAN["CMakeLists.txt"] + "protobuf_generate(proto/p.proto)\n"})


class PageTest(TreeCase):
    def test_first_page_has_150_lines(self):
        self.assert_problems(["README.md:1: 151 lines, want at most 150"],
                             {"README.md": "x\n" * 151})
        self.assert_problems([], {"README.md": "x\n" * 150})


class RegistrationTest(TreeCase):
    def test_source_in_no_list_fails(self):
        self.assert_problems(["kernels/b.cc:1: in no CMakeLists.txt that the top one reaches"],
                             {"kernels/b.cc": ""})

    def test_cuda_source_in_no_list_fails(self):
        self.assert_problems(["kernels/b.cu:1: in no CMakeLists.txt that the top one reaches"],
                             {"kernels/b.cu": ""})

    def test_source_named_only_in_a_comment_fails(self):
        self.assert_problems(["kernels/a.cc:1: in no CMakeLists.txt that the top one reaches"],
                             {"kernels/CMakeLists.txt": "rope_library(k SOURCES x # a.cc\n)\n"})

    def test_folder_that_nobody_adds_fails(self):
        self.assert_problems(["tests/a_test.cc:1: in no CMakeLists.txt that the top one reaches"],
                             {"CMakeLists.txt": "add_subdirectory(kernels)\n"
                                                "add_subdirectory(server)\n"})

    def test_test_that_is_only_compiled_fails(self):
        self.assert_problems(["tests/a_test.cc:1: not registered with rope_test"],
                             {"tests/CMakeLists.txt": "add_executable(a_test a_test.cc)\n"})

    def test_test_registered_through_a_function_passes(self):
        self.assert_problems([], {"tests/CMakeLists.txt": "function(f s)\n  rope_test(x ${s})\n"
                                                          "endfunction()\nf(a_test.cc)\n"})

    def test_function_that_registers_nothing_does_not_count(self):
        self.assert_problems(["tests/a_test.cc:1: not registered with rope_test"],
                             {"tests/CMakeLists.txt": "function(f s)\n  add_executable(x ${s})\n"
                                                      "endfunction()\nf(a_test.cc)\n"})

    def test_python_test_that_nobody_runs_fails(self):
        self.assert_problems(["tests/x_test.py:1: not registered with add_test"],
                             {"tests/x_test.py": ""})

    def test_source_named_from_the_top_passes(self):
        self.assert_problems([], {
            "kernels/CMakeLists.txt": "rope_library(k SOURCES ${PROJECT_SOURCE_DIR}/kernels/a.cc)"})


class WordsTest(TreeCase):
    def test_banned_words_fail(self):
        for code, what in (("throw 1;", "throws"), ("using namespace std;", "using namespace"),
                           ("int* p = NULL;", "NULL, want nullptr"),
                           ("auto* p = new int(1);",
                            "raw new, want a smart pointer or `// owned by ...`")):
            self.assert_problems([f"server/b.cc:1: {what}"], {"server/b.cc": code + "\n"})

    def test_errors_of_the_request_path_have_parts(self):
        code = 'auto s = absl::NotFoundError("x");\n'
        registered = "rope_library(s SOURCES main.cc b.cc engine/b.cc)\n"
        self.assert_problems(["server/engine/b.cc:1: an error without its parts, want MakeError"],
                             {"server/engine/b.cc": code, "server/CMakeLists.txt": registered})
        self.assert_problems([], {"server/b.cc": code})

    def test_banned_words_in_comments_and_literals_pass(self):
        self.assert_problems([], {"server/b.cc": '// throw NULL\n/* new\nnew */ auto s = "new x";\n'
                                                 'auto r = R"(throw " 1)"; auto c = \'"\';\n'})

    def test_code_after_a_literal_is_still_read(self):
        self.assert_problems(["server/b.cc:2: throws"],
                             {"server/b.cc": "auto s = \"a // b\\\"\"; int n = 1'000;\n"
                                             "auto c = '\\''; throw 1;\n"})

    def test_new_with_an_owner_passes(self):
        self.assert_problems([], {
            "server/b.cc": "f(new T);  // Owned by the queue.\n"
                           "std::unique_ptr<T> t(new T());\nreturn absl::WrapUnique(new T());\n"})

    def test_sleep_fails_in_tests_only(self):
        sleep = "void F() { absl::SleepFor(absl::Seconds(1)); }\n"
        self.assert_problems(["tests/a_test.cc:1: sleeps, want a fake clock or a notification"],
                             {"tests/a_test.cc": sleep, "server/b.cc": sleep})
        for call in ("std::this_thread::sleep_for(d)", "usleep(1)", "sleep(1)"):
            self.assert_problems(
                ["tests/a_test.cc:1: sleeps, want a fake clock or a notification"],
                {"tests/a_test.cc": f"void F() {{ {call}; }}\n"})

    def test_bare_todo_fails(self):
        self.assert_problems(["server/b.cc:1: TODO without (reason)"],
                             {"server/b.cc": "// TODO" + ": later\n"})

    def test_path_of_one_machine_fails(self):
        for word in ("/wor" "k/main", "/hom" "e/ann", "/roo" "t/x"):
            problems = check({"deploy/x.sh": f"cd {word}/y\n"})
            self.assertEqual(len(problems), 1, word)
            self.assertIn("belongs to one machine or host", problems[0])

    def test_path_within_the_tree_passes(self):
        self.assert_problems([], {"deploy/x.sh": "cd some/wor" "k/main; cd \"${x}/roo" "t/y\"\n"})


class LinksTest(TreeCase):
    def test_broken_link_fails(self):
        self.assert_problems(["README.md:1: link to kernels/b.h, which does not exist"],
                             {"README.md": "[b](kernels/b.h#part) [c](https://example.com/c)\n"})

    def test_missing_file_in_backticks_fails(self):
        for path in ("kernels/b.cc", "kernels/*.py", "kernels/{a,b}.h", "kernels/sub/", "b.h"):
            self.assert_problems([f"README.md:1: names {path}, which does not exist"],
                                 {"README.md": f"Look at `{path}`.\n"})

    def test_backticks_that_are_no_files_of_ours_pass(self):
        self.assert_problems([], {"README.md": "`rope.v1.RopeService/Rotate` `config.json` `q/k` "
                                               "`build/bin/x` `x_test.cc` `hwy/x`\n"})

    def test_path_beside_the_page_passes(self):
        self.assert_problems([], {"kernels/README.md": "`a.h`, [a](a.cc), `../server/b.cc`\n"})


class ProofsTest(TreeCase):
    TESTS = {"tests/a_test.cc": "TEST(AdderTest, AddsZero) {}\nTEST_P(\n    SumTest, IsOne) {}\n"}

    def check_page(self, page, wanted):
        self.assert_problems(wanted, {**self.TESTS, "kernels/README.md": page})

    def test_named_tests_that_exist_pass(self):
        self.check_page("`AdderTest` `AdderTest.AddsZero` `SumTest.IsOne` `a_test`\n", [])

    def test_named_test_of_a_function_passes(self):
        self.assert_problems([], {
            **self.TESTS, "kernels/README.md": "`f_a_test`\n",
            "tests/CMakeLists.txt": "function(f n s)\n  rope_test(${n} ${s})\nendfunction()\n"
                                    "f(f_a_test a_test.cc)\n"})

    def test_named_test_that_does_not_exist_fails(self):
        for name in ("OtherTest", "AdderTest.AddsOne", "b_test"):
            self.check_page(f"Seen by `{name}`.\n", [
                f"kernels/README.md:1: names the test {name}, which does not exist"])

    def test_row_without_a_proof_fails(self):
        head = "| what | here |\n|---|---|\n"
        for row in ("| a | `AdderTest` |", "| a | golden files |", "| a | not built |"):
            self.check_page(f"{head}{row}\n\n| b | c |\n", [])
        for row in ("| a | |", "| a | `x` says so |"):
            self.check_page(f"{head}{row}\n", [
                'kernels/README.md:3: a row without a test, golden files or "not built"'])


class SizesTest(TreeCase):
    def test_long_function_fails(self):
        body = "  x();\n" * 69
        changes = {"server/b.cc": f"void G(int a,\n       int b);\nvoid F() {{\n{body}}}\n"}
        self.assert_problems(["server/b.cc:3: function of 71 lines, want at most 70"], changes)

    def test_function_of_70_lines_passes(self):
        body = "  x();\n" * 68
        self.assert_problems([], {"server/b.cc": f"void F() {{\n{body}}}\n"})

    def test_long_file_fails(self):
        changes = {"kernels/a.h": "\n" * 351, "tests/a_test.cc": "\n" * 800,
                   "server/b.cc": "\n" * 801}
        self.assert_problems(["kernels/a.h:1: 351 lines, want at most 350",
                              "server/b.cc:1: 801 lines, want at most 800"], changes)

    def test_room_above_its_budget_fails(self):
        layers = CLEAN["tests/tidy/layers.txt"] + "budget server 1 1\n"
        changes = {"tests/tidy/layers.txt": layers,
                   "server/b.cc": "// No code.\n\nint b = 0;  /* one */\n/* nor\n here */\n"}
        self.assert_problems(["server: 2 units, want at most 1 (layers.txt)",
                              "server: 3 lines of code, want at most 1 (layers.txt)"], changes)

    def test_lines_of_python_count(self):
        layers = CLEAN["tests/tidy/layers.txt"] + "budget server/py 1 1\n"
        self.assert_problems(["server/py: 2 lines of code, want at most 1 (layers.txt)"], {
            "tests/tidy/layers.txt": layers,
            "server/py/b.py": "# No code.\n\nb = 0  # one\nc = 1\n"})

    def test_header_and_source_are_one_unit(self):
        layers = CLEAN["tests/tidy/layers.txt"] + "budget kernels 3 1\n"
        self.assert_problems([], {"tests/tidy/layers.txt": layers})


    def test_total_above_its_number_fails(self):
        layers = CLEAN["tests/tidy/layers.txt"] + "total production 8\ntotal tests 0\n"
        why = ": a commit that raises the number says what it buys and what went for it"
        self.assert_problems([f"production: 9 lines, want at most 8 (layers.txt){why}",
                              f"tests: 1 lines, want at most 0 (layers.txt){why}"], {
            "tests/tidy/layers.txt": layers, "server/page.html": "<script>\n</script>\n"})


class LayersTest(unittest.TestCase):
    def test_unknown_line_is_refused(self):
        with self.assertRaisesRegex(ValueError,
                                    "got 'forbid', want top, allow, rooms, ground, spread,"
                                    " deny, budget or total"):
            tidy.Layers("forbid a: b\n")

    def test_every_room_has_a_budget_and_each_part_a_total(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        layers = tidy.Layers(CLEAN["tests/tidy/layers.txt"])
        rooms = {folder for folder in tidy.room_sizes(tidy.Tree(root))
                 if folder.split("/")[0] in layers.rooms}
        self.assertEqual(rooms - set(layers.budgets), set())
        self.assertEqual(set(layers.totals), set(tidy.TOTALS))


if __name__ == "__main__":
    unittest.main()
