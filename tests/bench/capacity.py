#!/usr/bin/env python3
"""Measures what one server carries by transport and size: the tables of deploy/CAPACITY.md.

Prints a Markdown table: tokens a second, bytes a second each way, and tokens a second for each
processor that the server is busy. Clients and server share this machine. --seconds: of each row.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from certificate import make_certificate  # noqa: E402
from rope_server import RopeServer  # noqa: E402

BIN = ROOT / "build/bin"
BYTES = (32 + 8) * 128 * 2  # of a token: ropectl load's heads, bf16
SIZES = (1, 64, 1024)
CONCURRENCY = 4
ROWS = (("inline", "tcp"), ("inline", "tls"), ("inline", "unix"), ("staged", "unix"),
        ("ring", "unix"))


class Server(RopeServer):
    def __init__(self, *flags):
        super().__init__(BIN / "rope_server", *flags)

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(server, target, transport, tokens, seconds, *flags):
    """(tokens a second, tokens a second of a busy processor of the server)."""
    command = [BIN / "ropectl", "load", f"--target={target}", f"--transport={transport}",
               f"--tokens={tokens}", f"--concurrency={CONCURRENCY}", "--json", *flags]
    subprocess.run([*command, "--duration=500ms"], check=True, capture_output=True)
    before = server.processor_seconds()
    result = json.loads(subprocess.run([*command, f"--duration={seconds}s"], check=True,
                                       capture_output=True).stdout)
    used = server.processor_seconds() - before
    return result["tokens_per_second"], result["answered"] * tokens / used


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        cert, key = make_certificate(name)
        plain = Server("--listen=127.0.0.1:0", f"--listen=unix:{name}/socket",
                       "--enable_shared_memory")
        secure = Server("--listen=127.0.0.1:0", f"--tls_cert={cert}", f"--tls_key={key}")
        ways = {"tcp": (plain, plain.targets[0], ()), "unix": (plain, plain.targets[1], ()),
                "tls": (secure, secure.targets[0], (f"--tls_ca={cert}",))}
        print("| transport | tokens | tokens/s | GB/s each way | tokens/s a server core |")
        print("|---|---|---|---|---|")
        for transport, socket in ROWS:
            for tokens in SIZES:
                server, target, flags = ways[socket]
                rate, of_core = load(server, target, transport, tokens, seconds, *flags)
                print(f"| {transport}, {socket} | {tokens} | {rate:,.0f} | "
                      f"{rate * BYTES / 1e9:.2f} | {of_core:,.0f} |", flush=True)
        for server in (plain, secure):
            server.stop()


if __name__ == "__main__":
    main()
