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
TRANSPORTS = ("inline", "memfd", "ring")
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


def pair_call(client, start):
    """A function that rotates one pair of channels, and what it has prepared."""
    prepared = client.prepare(rope={"config_json": json.dumps({**CONFIG, "head_dim": 2})},
                              tensors=[librope.tensor_json("SD", (1, 2))])
    call = prepared.call({"q": librope.tensor((ctypes.c_float * 2)(1, 0), "fp32", 1, 2),
                          "positions": librope.tensor(ctypes.c_int64(start), "int64")})
    return call, prepared


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
        call, prepared = pair_call(client, 1)
        for _ in range(100):
            call()
        prepared.close()
        client.close()

    def _fail(self):
        client = librope.Client(self._library, self._server.address)
        call, prepared = pair_call(client, -1)
        for _ in range(ERRORS):
            try:
                call()
            except librope.RopeError:
                continue
            raise AssertionError("a negative position was rotated")
        prepared.close()
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
