"""Calls of every kind to one server, which move what it counts: the server's flags make it drop
table pages, refuse regions and close connections soon. Needs only Python and ropectl.
"""

import json
import pathlib
import socket
import struct
import subprocess

LIMIT_S = 60
SERVER_FLAGS = ("--table_cache_bytes=1MiB", "--session_memory_bytes=8MiB",
                "--handshake_timeout=3s")
TOKENS_TOO_MANY = 1 << 16  # for a ring in that memory
CONFIG = {"model_type": "llama", "rope_theta": 10000.0, "head_dim": 128, "num_attention_heads": 4,
          "hidden_size": 512}
TRANSPORTS = ("inline", "memfd", "ring")
ERRORS = 200  # the log takes 20 lines a second of one kind
NPY_HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 128), }"

# HTTP/2.
SETTINGS, HEADERS, END_OF_STREAM_AND_HEADERS = 4, 1, 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FIELDS = {b":method": b"POST", b":scheme": b"http", b":path": b"/other.Service/Call",
          b":authority": b"test", b"content-type": b"application/grpc", b"te": b"trailers"}
BLOCK = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
                 for name, value in FIELDS.items())


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Calls:
    def __init__(self, ropectl, server, folder):
        self._program, self._server = ropectl, server
        self._config, self._q = (pathlib.Path(folder) / name for name in ("config.json", "q.npy"))
        self._config.write_text(json.dumps(CONFIG))
        self._q.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + NPY_HEADER.ljust(117) + b"\n" +
                            bytes(512))

    def make(self):
        """A second of load on each transport, and some calls of every other kind."""
        self._connect_without_a_call()
        load = ("load", "--concurrency=8", "--heads=4", "--kv_heads=1", "--head_dim=128")
        for transport in TRANSPORTS:
            self._ropectl(*load, f"--transport={transport}", "--duration=1s", "--tokens=64")
        self._ropectl(*load, "--transport=ring", "--requests=1", f"--tokens={TOKENS_TOO_MANY}",
                      want=1)
        config = f"--config={self._config}"
        for command in (("models",), ("describe", config), ("info",), ("connections",),
                        ("tables", config, "--end=64", f"--output={self._config}.npy"),
                        ("fingerprint", str(self._config)),
                        ("rotate", config, "--prepare", f"--q={self._q}", "--layout=SHD",
                         "--pairing=half", "--start=1", f"--output_q={self._q}")):
            self._ropectl(*command)
        self._call_unknown_method()

    def _ropectl(self, *arguments, want=0):
        done = subprocess.run(
            [self._program, *arguments, f"--target={self._server.targets[1]}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
            check=False)
        if done.returncode != want:
            raise AssertionError(f"{arguments}: {done.stdout}")

    def _connect(self, *frames):
        host, port = self._server.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        connection.sendall(b"".join([PREFACE, frame(SETTINGS, 0, 0), *frames]))
        return connection

    def _call_unknown_method(self):
        """Often enough that lines of the log are dropped."""
        calls = [frame(HEADERS, END_OF_STREAM_AND_HEADERS, 2 * i + 1, BLOCK) for i in range(ERRORS)]
        answer, last = b"", struct.pack(">I", 2 * ERRORS - 1)
        with self._connect(*calls) as connection:
            while last not in answer:
                if not (part := connection.recv(65536)):
                    raise AssertionError(f"the connection was closed after {answer}")
                answer += part

    def _connect_without_a_call(self):
        """Until the server closes the connection."""
        with self._connect() as connection:
            while connection.recv(65536):
                pass
