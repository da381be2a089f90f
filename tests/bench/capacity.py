#!/usr/bin/env python3
"""Measures what one server carries by transport and size: the tables of deploy/CAPACITY.md.

Prints a Markdown table: tokens a second, bytes a second each way, and tokens a second for each
processor that the server is busy. Then it prints what TLS and a bearer token cost a client: the
median of a call over TCP against that of plain TCP, in turns. Clients and server share this
machine. --seconds: of each row.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
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
ROUNDS = 3  # of print_costs
ROWS = (("inline", "tcp"), ("inline", "tls"), ("inline", "unix"), ("staged", "unix"),
        ("ring", "unix"))


class Server(RopeServer):
    def __init__(self, *flags):
        super().__init__(BIN / "rope_server", *flags)

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(target, transport, tokens, duration, *flags):
    """The report of ropectl load."""
    command = [BIN / "ropectl", "load", f"--target={target}", f"--transport={transport}",
               f"--tokens={tokens}", f"--duration={duration}", "--json", *flags]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def rates(server, target, transport, tokens, seconds, *flags):
    """(tokens a second, tokens a second of a busy processor of the server)."""
    flags = (f"--concurrency={CONCURRENCY}", *flags)
    load(target, transport, tokens, "500ms", *flags)
    before = server.processor_seconds()
    result = load(target, transport, tokens, f"{seconds}s", *flags)
    used = server.processor_seconds() - before
    return result["tokens_per_second"], result["answered"] * tokens / used


def print_costs(ways, seconds):
    """What TLS and a bearer token cost one client: medians against plain TCP, in turns."""
    for tokens in (1, (16 << 20) // BYTES):
        medians = {name: [] for name in ("tcp", "tls", "token")}
        for _ in range(ROUNDS):
            for name, own in medians.items():
                _, target, flags = ways[name]
                result = load(target, "inline", tokens, f"{seconds}s", "--concurrency=1", *flags)
                own.append(result["latency_us"]["p50"])
        plain, tls, token = map(statistics.median, medians.values())
        print(f"{tokens} tokens over TCP {plain:.0f} us; with TLS {tls / plain:.2f} x, with a "
              f"bearer token {token / plain:.2f} x")


def access_of(folder):
    """The access file of an identity, and the file with its token."""
    token, access = pathlib.Path(folder, "token"), pathlib.Path(folder, "access.json")
    token.write_text("token")
    identity = {"name": "bench", "rights": ["rotate", "describe", "inspect"],
                "tokens_sha256": [hashlib.sha256(b"token").hexdigest()]}
    access.write_text(json.dumps({"identities": [identity]}))
    return access, token


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        cert, key = make_certificate(name)
        plain = Server("--listen=127.0.0.1:0", f"--listen=unix:{name}/socket",
                       "--enable_shared_memory")
        secure = Server("--listen=127.0.0.1:0", f"--tls_cert={cert}", f"--tls_key={key}")
        access, token = access_of(name)
        guarded = Server("--listen=127.0.0.1:0", f"--access_file={access}")
        ways = {"tcp": (plain, plain.targets[0], ()), "unix": (plain, plain.targets[1], ()),
                "tls": (secure, secure.targets[0], (f"--tls_ca={cert}",)),
                "token": (guarded, guarded.targets[0], (f"--token_file={token}",))}
        print("| transport | tokens | tokens/s | GB/s each way | tokens/s a server core |")
        print("|---|---|---|---|---|")
        for transport, socket in ROWS:
            for tokens in SIZES:
                server, target, flags = ways[socket]
                rate, of_core = rates(server, target, transport, tokens, seconds, *flags)
                print(f"| {transport}, {socket} | {tokens} | {rate:,.0f} | "
                      f"{rate * BYTES / 1e9:.2f} | {of_core:,.0f} |", flush=True)
        print_costs(ways, seconds)
        for server in (plain, secure, guarded):
            server.stop()


if __name__ == "__main__":
    main()
