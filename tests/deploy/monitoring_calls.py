"""Calls of every kind to one server, which move what it counts: the server's flags make it drop
table pages, refuse regions and close connections soon. Needs only Python, ropectl and librope.so.
"""

import ctypes
import json
import pathlib
import socket
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import librope  # noqa: E402

SERVER_FLAGS = ("--table_cache_bytes=1MiB", "--session_memory_bytes=8MiB",
                "--handshake_timeout=3s")
ARENA_TOO_LARGE = 16 << 20
CONFIG = {"model_type": "llama", "rope_theta": 10000.0, "head_dim": 128, "num_attention_heads": 4,
          "hidden_size": 512}
TRANSPORTS = ("inline", "stream", "memfd", "ring")
ERRORS = 200  # the log takes 20 lines a second of one kind

# HTTP/2.
SETTINGS, HEADERS, END_OF_STREAM_AND_HEADERS = 4, 1, 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    return b"".join([b"\0", *(bytes([len(text)]) + text for text in (name, value))])


def call_of(method):
    """The frame of a call without a message."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": method, b":authority": b"test",
              b"content-type": b"application/grpc", b"te": b"trailers"}
    block = b"".join(header(*field) for field in fields.items())
    return frame(HEADERS, END_OF_STREAM_AND_HEADERS, 1, block)


class Pair:
    """A request that rotates one pair of channels, whole and prepared."""

    def __init__(self, start):
        self._pair, self._shape = (ctypes.c_float * 2)(1, 0), (ctypes.c_int64 * 2)(1, 2)
        self._rope = librope.Spec(config_json=json.dumps({**CONFIG, "head_dim": 2}).encode())
        self._positions = librope.Positions(start=start)
        self._memory = ctypes.c_void_p(ctypes.addressof(self._pair))
        self._tensor = librope.Tensor(data=self._memory, output=self._memory, layout=b"SD", rank=2,
                                      shape=ctypes.addressof(self._shape))
        self.request = librope.Request(
            rope=ctypes.addressof(self._rope), positions=ctypes.addressof(self._positions),
            tensors=ctypes.addressof(self._tensor), tensor_count=1)
        self.values = librope.Values(
            positions=ctypes.addressof(self._positions), data=ctypes.addressof(self._memory),
            outputs=ctypes.addressof(self._memory), tensor_count=1)


class Calls:
    def __init__(self, build, server, folder):
        self._build, self._server = pathlib.Path(build), server
        self._library = librope.load(build)
        self._config = pathlib.Path(folder) / "config.json"
        self._config.write_text(json.dumps(CONFIG))

    def make(self):
        """A second of load on each transport, and some calls of every other kind."""
        self._connect_without_a_call()
        for transport in TRANSPORTS:
            self._ropectl("load", f"--transport={transport}", "--duration=1s", "--concurrency=8",
                          "--tokens=64", "--heads=4", "--kv_heads=1", "--head_dim=128")
        config = f"--config={self._config}"
        for command in (("models",), ("describe", config),
                        ("tables", config, "--end=64", f"--output={self._config}.npy"),
                        ("info",), ("connections",), ("fingerprint", str(self._config))):
            self._ropectl(*command)
        self._rotate_prepared()
        self._fail()
        self._call_unknown_method()

    def _ropectl(self, *arguments):
        done = subprocess.run(
            [self._build / "bin/ropectl", *arguments, f"--target={self._server.socket}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=librope.LIMIT_S,
            check=False)
        if done.returncode:
            raise AssertionError(f"{arguments}: {done.stdout}")

    def _rotate_prepared(self):
        """With an arena that the server refuses, so that the bytes are sent."""
        client = librope.Client(self._library, self._server.socket, arena_bytes=ARENA_TOO_LARGE)
        pair, prepared = Pair(1), ctypes.c_void_p()
        librope.check(self._library, self._library.rope_prepare(
            client.handle, ctypes.byref(pair.request), None, None, ctypes.byref(prepared)))
        for _ in range(100):
            librope.check(self._library, self._library.rope_rotate_prepared(
                client.handle, prepared, ctypes.byref(pair.values), None, None))
        self._library.rope_prepared_free(prepared)
        client.close()

    def _fail(self):
        client = librope.Client(self._library, self._server.address)
        pair = Pair(-1)
        for _ in range(ERRORS):
            try:
                client.rotate(pair.request)
            except librope.RopeError:
                continue
            raise AssertionError("a negative position was rotated")
        client.close()

    def _connect(self, *frames):
        host, port = self._server.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=librope.LIMIT_S)
        connection.sendall(b"".join([PREFACE, frame(SETTINGS, 0, 0), *frames]))
        return connection

    def _call_unknown_method(self):
        with self._connect(call_of(b"/other.Service/Call")) as connection:
            answer = b""
            while b"grpc-status" not in answer:
                part = connection.recv(65536)
                if not part:
                    raise AssertionError(f"the connection was closed after {answer}")
                answer += part

    def _connect_without_a_call(self):
        """Until the server closes the connection."""
        with self._connect() as connection:
            while connection.recv(65536):
                pass
