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
        shape, pair = (ctypes.c_int64 * 2)(1, 2), (ctypes.c_float * 2)(1, 0)
        rope = librope.Spec(
            config_json=b'{"model_type": "llama", "rope_theta": 10000.0, "head_dim": 2}')
        positions = librope.Positions(start=position)
        memory = ctypes.addressof(pair)
        tensor = librope.Tensor(data=memory, output=memory, layout=b"SD", rank=2,
                                shape=ctypes.addressof(shape))
        client.rotate(librope.Request(
            rope=ctypes.addressof(rope), positions=ctypes.addressof(positions),
            tensors=ctypes.addressof(tensor), tensor_count=1))
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

    def test_numbers_of_the_header_have_the_names_of_the_library(self):
        header = (ROOT / "client/include/rope/rope_error.h").read_text()
        reasons = re.findall(r"ROPE_REASON_(\w+) = (\d+)", header)
        codes = re.findall(r"ROPE_(?!REASON_)(\w+) = (\d+)", header)
        self.assertEqual([len(codes), len(reasons)], [17, 26])
        for name, number in codes:
            self.assertEqual(self.library.rope_code_name(int(number)), name.encode())
        for name, number in reasons:
            self.assertEqual(self.library.rope_reason_name(int(number)), name.encode())
        schema = (ROOT / "proto/rope/v1/rotate.proto").read_text()
        self.assertEqual(reasons, re.findall(r"^  REASON_(\w+) = (\d+);", schema, re.MULTILINE))

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
