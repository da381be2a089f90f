#!/usr/bin/env python3
"""librope.so loaded by a process that is not C: Python's ctypes, which uses RTLD_LOCAL. And the C
test program against a real server, over TCP, a Unix socket and the ring.

Usage: c_api_test.py BUILD_FOLDER. Needs only Python. If the package protobuf is there, its own copy
of Protobuf is loaded first, and works afterwards.
"""

import ctypes
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import librope  # noqa: E402

BUILD = pathlib.Path()  # set by main


def own_protobuf():
    """A message of the package protobuf, or None."""
    try:
        from google.protobuf import timestamp_pb2
    except ImportError:
        return None
    return timestamp_pb2.Timestamp(seconds=7)


class CApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.message = own_protobuf()
        cls.library = librope.load(BUILD)
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = librope.Server(BUILD, cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.folder.cleanup()
        assert status == 0, status

    def rotated_pair(self, client, position):
        prepared = client.prepare(
            rope={"config_json": '{"model_type": "llama", "rope_theta": 10000.0, "head_dim": 2}'},
            tensors=[librope.tensor_json("SD", (1, 2))])
        pair = (ctypes.c_float * 2)(1, 0)
        prepared.call({"q": librope.tensor(pair, "fp32", 1, 2),
                       "positions": librope.tensor(ctypes.c_int64(position), "int64")})()
        prepared.close()
        return list(pair)

    def test_ctypes_rotates_in_process_and_through_a_server(self):
        for target in ("inproc:", self.server.address, self.server.socket):
            client = librope.Client(self.library, target)
            for position in (0, 1, 100000):
                got = self.rotated_pair(client, position)
                self.assertAlmostEqual(got[0], math.cos(position), delta=3e-7)
                self.assertAlmostEqual(got[1], math.sin(position), delta=3e-7)
            client.close()

    def test_another_protobuf_in_the_process_still_works(self):
        if self.message is None:
            self.skipTest("the package protobuf is not installed")
        self.assertEqual(type(self.message).FromString(self.message.SerializeToString()).seconds, 7)

    def test_example_of_the_page_rotates(self):
        page = (ROOT / "client/README.md").read_text()
        example = re.search(r"```python\n(import ctypes.*?)```", page, re.DOTALL)[1]
        self.assertLessEqual(len(example.splitlines()), 15)
        run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True,
                             env={"LD_LIBRARY_PATH": str(BUILD / "lib")}, check=False,
                             timeout=librope.LIMIT_S)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertAlmostEqual(float(run.stdout), math.cos(1), delta=3e-7)

    def test_version_is_that_of_the_build(self):
        cache = (BUILD / "CMakeCache.txt").read_text()
        version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", cache, re.MULTILINE)[1]
        self.assertEqual(self.library.rope_version().decode(), version)

    def test_the_c_program_against_a_server(self):
        for target, transport in ((self.server.address, "inline"), (self.server.socket, "ring")):
            run = subprocess.run([BUILD / "tests" / "c_api_test", target], capture_output=True,
                                 text=True, timeout=librope.LIMIT_S, check=False)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertEqual(run.stdout, f"{target}: {transport}\n")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
