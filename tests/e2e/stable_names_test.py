#!/usr/bin/env python3
"""Names that scripts rely on stay (.github/STABILITY.md): flags, commands, metrics, Python names.
So do the ids of two configs. stable_names.txt has a line for each.

Usage: stable_names_test.py BUILD_FOLDER [--write]
--write adds what is new to the file; it keeps lines whose name has gone. Needs Python and openssl.
"""

import ast
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from certificate import make_certificate  # noqa: E402
from rope_server import LIMIT_S, RopeServer  # noqa: E402

LIST = pathlib.Path(__file__).with_name("stable_names.txt")
BUILD = pathlib.Path()  # set by main
FLAG = re.compile(r"^ +(?:-\w,)?(--(?!help|version)\w+)", re.MULTILINE)  # not those of all


def output(*command):
    return subprocess.run([BUILD / "bin" / command[0], *command[1:]], capture_output=True,
                          text=True, check=True, timeout=LIMIT_S).stdout


def flags():
    for name in FLAG.findall(output("rope_server", "--help")):
        yield f"flag rope_server {name}"
    for command in re.findall(r"^  (\w+) ", output("ropectl", "help"), re.MULTILINE):
        yield f"command ropectl {command}"
        for name in FLAG.findall(output("ropectl", "help", command)):
            yield f"flag ropectl {command} {name}"


def metrics():
    """The names and types that the metrics page of a server with TLS has."""
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder)
        yield from metrics_of(f"--tls_cert={cert}", f"--tls_key={key}")


def metrics_of(*flags):
    with RopeServer(BUILD / "bin/rope_server", "--listen=127.0.0.1:0",
                    "--metrics_listen=127.0.0.1:0", *flags) as server:
        for name, kind in re.findall(r"^# TYPE ((?:rope|grpc)_\w+) (\w+)",
                                     server.get("/metrics")[1], re.MULTILINE):
            yield f"metric {name} {kind}"


def python_names():
    tree = ast.parse((ROOT / "client/python/ropeserve/__init__.py").read_text())
    listed = [node.value for node in tree.body if isinstance(node, ast.Assign)
              and node.targets[0].id == "__all__"]
    for name in ast.literal_eval(listed[0]):
        yield f"python ropeserve.{name}"


def ids():
    """Of one config of each format; another format number changes them."""
    folder = ROOT / "tests/conformance/configs"
    described = json.loads(output("ropectl", "describe", folder / "llama-3.1-8b.json", "--json"))
    yield f"id config_id llama-3.1-8b {described['config_id']}"
    fingerprint = output("ropectl", "fingerprint", folder / "qwen3-8b.json",
                         "--engine=vllm@0.33.0", "--dtype=bf16")
    yield f"id fingerprint qwen3-8b vllm bf16 {fingerprint.strip()}"


def names():
    return {*flags(), *metrics(), *python_names(), *ids()}


class StableNamesTest(unittest.TestCase):
    def test_every_name_is_still_there_and_every_new_one_is_listed(self):
        now, listed = names(), set(LIST.read_text().splitlines())
        for kind in ("flag rope_server", "command", "flag ropectl", "metric", "python", "id"):
            self.assertTrue([name for name in now if name.startswith(kind)], kind)
        self.assertEqual(sorted(listed - now), [], "names that went")
        self.assertEqual(sorted(now - listed), [], "not listed: --write adds them")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if sys.argv[1:] == ["--write"]:
        kept = set(LIST.read_text().splitlines()) if LIST.exists() else set()
        LIST.write_text("".join(f"{name}\n" for name in sorted(kept | names())))
    else:
        unittest.main()
