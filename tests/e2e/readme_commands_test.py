#!/usr/bin/env python3
"""Every command of every page is run against a real server, or is on the list with its reason;
those of README.md in their order, with what they print.

Usage: readme_commands_test.py BUILD_FOLDER. The list is readme_commands.txt: "[reason]", then the
patterns of the commands that the reason holds for. Of a listed script the path and the flags are
checked; of a listed test the name. Needs only Python.
"""

import concurrent.futures
import contextlib
import fnmatch
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import readme_commands
from readme_commands import Command

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from rope_server import LIMIT_S, RopeServer  # noqa: E402

LIST = pathlib.Path(__file__).with_name("readme_commands.txt")
BUILD = pathlib.Path()  # set by main
# What stands for the reader's own files.
SUBSTITUTES = {
    "CONFIG...": "config.json",
    " A B": " old/config.json new/config.json",
    "help COMMAND": "help lint",
}
# Exit statuses other than 0 that answer the question of a command.
STATUSES = {"lint": {0, 1}, "diff": {0, 1}}
CONFIG = {
    "model_type": "llama",
    "head_dim": 128,
    "num_attention_heads": 2,
    "hidden_size": 256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "vision_config": {"model_type": "qwen2_vl_vision", "hidden_size": 64, "num_heads": 2},
}


def pages():
    """All but the changelog, which names commands that went."""
    found = [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md")]
    found.remove(ROOT / ".github/CHANGELOG.md")
    for folder in ("client", "deploy", "kernels", "proto", "server", "tests"):
        found += (ROOT / folder).rglob("README.md")
    return sorted(path for path in found if "decisions" not in path.name)


def commands_of_page(name):
    return readme_commands.commands_of(name, (ROOT / name).read_text())


def all_commands():
    return [
        command
        for page in pages()
        for command in readme_commands.commands_of(str(page.relative_to(ROOT)), page.read_text())
    ]


def read_list(text):
    """[(pattern, reason)]."""
    entries, reason = [], None
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(.+)\]", line):
            reason = match[1]
        elif reason is None:
            raise ValueError(f"{line}: got no reason above it, want [reason]")
        else:
            entries.append((line, reason))
    return entries


def listed(command, entries):
    """The patterns that the command matches."""
    text = re.sub(r"\s+", " ", command.text)
    return [pattern for pattern, _ in entries if fnmatch.fnmatchcase(text, pattern)]


def write_npy(path, shape, value):
    count = 1
    for size in shape:
        count *= size
    header = str({"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})
    header += " " * (63 - (len(header) + 10) % 64) + "\n"
    numbers = [value(i) for i in range(count)]
    path.write_bytes(
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(header))
        + header.encode()
        + struct.pack(f"<{count}f", *numbers)
    )


def flag_of(text, name, default=""):
    found = re.search(rf"--{name}=(\S+)", text)
    return found[1] if found else default


def serve():
    return RopeServer(BUILD / "bin/rope_server", "--listen=127.0.0.1:0",
                      "--metrics_listen=127.0.0.1:0")


def prepare(folder, text, environment):
    """The reader's files, as the command wants them."""
    for name in ("tests", "client", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").symlink_to(BUILD)
    for name in ("config.json", "old/config.json", "new/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(CONFIG))
    layout = flag_of(text, "layout", "SHD")
    shape = [{"B": 1, "S": 64, "T": 64, "H": 2, "D": 128}[axis] for axis in layout]
    for name in ("q", "k"):
        write_npy(folder / f"{name}.npy", shape, lambda i: (i * 37 % 101 - 50) / 50)
    write_npy(folder / "cos.npy", [64, 64], lambda i: 1)
    write_npy(folder / "sin.npy", [64, 64], lambda i: 0)
    if "q_rot.npy" in text:
        subprocess.run(
            ["ropectl", "rotate", "--config=config.json", "--q=q.npy", "--output_q=q_rot.npy",
             f"--layout={layout}", f"--start={flag_of(text, 'start', '0')}"],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )


def run_server(text, folder, environment):
    """Starts a server as the command says, on free ports, and stops it."""
    text = re.sub(r":(50051|9464)\b", ":0", text)
    arguments = shlex.split(text)
    if "--listen" not in text:
        arguments.append("--listen=127.0.0.1:0")
    with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=LIMIT_S)[0]
    is_good = process.returncode == 0 and first.startswith("listening on")
    return "" if is_good else f"status {process.returncode}: {first}{rest}"


def run(command, server):
    """Why the command fails; empty: it does what the page says."""
    text = command.text
    for placeholder, substitute in SUBSTITUTES.items():
        text = text.replace(placeholder, substitute)
    text = re.sub(r"(localhost|127.0.0.1):9464", server.metrics, text)
    text = text.replace("127.0.0.1:50051", server.address)
    environment = {
        **os.environ,
        "ROPE_TARGET": server.address,
        "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder, text, environment)
        if "rope_server" in text and "--help" not in text:
            return run_server(text, folder, environment)
        done = subprocess.run(text, shell=True, executable="/bin/bash", cwd=folder,
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=LIMIT_S, check=False)
    words = re.search(r"ropectl (\w+)", text)
    statuses = STATUSES.get(words[1], {0}) if words else {0}
    return "" if done.returncode in statuses else f"status {done.returncode}: {done.stdout[-500:]}"


def is_runnable(command):
    """Whether this test knows what the command needs."""
    return re.match(r"(build/bin/)?rope(ctl|_server)\b|curl ", command.text) is not None


def check_listed(command):
    """What is wrong with a listed command that can be checked without running it."""
    problems = []
    for script in re.findall(r"(?<!\S)(?:deploy|tests)/[\w/]+\.sh", command.text):
        if not (ROOT / script).is_file():
            problems.append(f"{script} does not exist")
            continue
        rest = command.text.split(script, 1)[1].split("&&")[0]
        for flag in re.findall(r"\s\[?(--[\w-]+)", rest):
            if not any(
                flag in path.read_text()
                for path in [ROOT / script, *(ROOT / script).parent.glob("*.py")]
            ):
                problems.append(f"{script} does not know {flag}")
    if command.text.startswith("ctest "):
        arguments = command.text.replace("--test-dir build", f"--test-dir {BUILD}") + " -N"
        listing = subprocess.run(
            arguments, shell=True, capture_output=True, text=True, check=False
        ).stdout
        if not re.search(r"Total Tests: [1-9]", listing):
            problems.append("no test has such a name")
    test = re.search(r"(?<!\S)build/tests/([a-z_]+)(?=\s|$)", command.text)
    if test and not (BUILD / "tests" / test[1]).is_file():
        problems.append(f"there is no {test[0]}")
    return problems


class PagesTest(unittest.TestCase):
    def test_every_command_runs_or_is_listed(self):
        commands, entries = all_commands(), read_list(LIST.read_text())
        self.assertGreater(len(commands), 50)
        elsewhere = [command for command in commands if command.page != "README.md"]
        unlisted = [command for command in elsewhere if not listed(command, entries)]
        for command in unlisted:
            with self.subTest(str(command)):
                self.assertTrue(is_runnable(command), "neither run by this test nor on its list")
        to_run = [command for command in unlisted if is_runnable(command)]
        # A command may need what the one before it on its page left at the server.
        by_page = [list(page) for _, page in itertools.groupby(to_run, lambda item: item.page)]
        with serve() as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda page: [run(command, server) for command in page], by_page)
            for command, answer in zip(to_run, itertools.chain.from_iterable(answers)):
                with self.subTest(str(command)):
                    self.assertEqual(answer, "")
        print(f"{len(commands)} commands: {len(to_run)} run, the others listed")

    def test_every_entry_of_the_list_is_a_command(self):
        commands, entries = all_commands(), read_list(LIST.read_text())
        used = {pattern for command in commands for pattern in listed(command, entries)}
        self.assertEqual([pattern for pattern, _ in entries if pattern not in used], [])

    def test_listed_scripts_and_tests_exist_and_know_their_flags(self):
        entries = read_list(LIST.read_text())
        for command in all_commands():
            if listed(command, entries):
                with self.subTest(str(command)):
                    self.assertEqual(check_listed(command), [])

    def test_page_that_runs_a_benchmark_says_how_it_is_built(self):
        builds = r"deploy/build\.sh --tests rope_|tests/gpu/run\.sh|tests/run\.sh"
        measures = [c for c in all_commands() if re.search(r"\brope_(bench|soak)\b", c.text)]
        for page in {command.page for command in measures}:
            with self.subTest(page):
                self.assertRegex((ROOT / page).read_text(), builds)


def has_output(printed, wanted):
    """Whether a program printed these lines; "..." stands for any number of any lines."""
    patterns = [r"(.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in wanted]
    lines = "".join(line.strip() + "\n" for line in printed.splitlines())
    return re.fullmatch("".join(patterns) if wanted else r"(.*\n)*", lines) is not None


class FirstPageTest(unittest.TestCase):
    """README.md from top to bottom, as a reader types it: nothing is there but a built clone."""

    def test_every_command_prints_what_the_page_says(self):
        entries = read_list(LIST.read_text())
        grpcurl = os.environ.get("ROPE_GRPCURL", "")
        path = f"{pathlib.Path(grpcurl).parent}:{os.environ['PATH']}"
        servers, ports, ran = [], {}, 0
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            for link, target in (("build", BUILD), ("tests", ROOT / "tests")):
                (pathlib.Path(name) / link).symlink_to(target)
            for command in commands_of_page("README.md"):
                text = command.text
                if listed(command, entries) and not (grpcurl and text.startswith("grpcurl")):
                    continue
                for port, address in ports.items():
                    text = text.replace(f"127.0.0.1:{port}", address)
                with self.subTest(str(command)):
                    if "rope_server " in text:
                        servers.append(stack.enter_context(serve()))
                        ports = {"50051": servers[-1].address, "9464": servers[-1].metrics}
                        page = "".join(f"{line}\n" for line in command.output)
                        for port, address in ports.items():
                            page = page.replace(f"127.0.0.1:{port}", address)
                        self.assertEqual(page, "".join(servers[-1].said))
                        continue
                    done = subprocess.run(text, shell=True, executable="/bin/bash", cwd=name,
                                          env={**os.environ, "PATH": path}, stdout=subprocess.PIPE,
                                          text=True, timeout=LIMIT_S, check=False)
                    self.assertIn(done.returncode, {0, 1} if "ropectl lint" in text else {0})
                    self.assertTrue(has_output(done.stdout, command.output), done.stdout)
                    ran += 1
        self.assertEqual(len(servers), 1)
        self.assertGreaterEqual(ran, 4)


class FindingTest(unittest.TestCase):
    PAGE = """
Call `ropectl diff A B` or `tests/run.sh`; `ropectl` and `--json` alone are names.

    $ ropectl a b
    x
    ...
    $ docker run \\
        image |
      grpcurl -d '{
      }' x

Build:

    deploy/build.sh   # it's all
    unknown --flag

```cpp
ropectl x;
```

    2026 info request
"""

    def test_commands_of_a_page_and_their_output(self):
        found = [(c.text, c.output) for c in readme_commands.commands_of("p", self.PAGE)]
        self.assertEqual(found, [
            ("ropectl diff A B", ()), ("tests/run.sh", ()), ("ropectl a b", ("x", "...")),
            ("docker run image | grpcurl -d '{ }' x", ()), ("deploy/build.sh", ()),
            ("unknown --flag", ())])
        self.assertTrue(has_output("x\n1\n2\n", ("x", "...")))
        self.assertFalse(has_output("y\n", ("x", "...")))

    def test_missing_script_and_unknown_flag_are_problems(self):
        for text, problem in (
            ("deploy/none.sh --a", "deploy/none.sh does not exist"),
            ("deploy/quickstart.sh --twice", "deploy/quickstart.sh does not know --twice"),
        ):
            self.assertEqual(check_listed(Command("p", 1, text)), [problem])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
