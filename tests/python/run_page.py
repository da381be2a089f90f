"""Runs the blocks of Python of a page, one after another, in the environment of this interpreter.

Usage: run_page.py PAGE [first]        first: only the first block

The block ```python torch needs torch, and so on. ```python server needs the server of the page's
command "rope_server ...", which is started from this environment.
"""
import importlib.util
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import types


def started(page):
    """The page's server, on a socket of its own, and the target."""
    command, = re.findall(r"^    (rope_server .*)$", page, re.MULTILINE)
    program, *flags = shlex.split(command)
    listen, = (flag.removeprefix("--listen=") for flag in flags if flag.startswith("--listen="))
    target = f"unix:{tempfile.mkdtemp()}/rope.sock"
    flags = [f"--listen={target}" if flag.startswith("--listen=") else flag for flag in flags]
    server = subprocess.Popen([pathlib.Path(sys.executable).parent / program, *flags],
                              stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.socket(socket.AF_UNIX).connect(target.removeprefix("unix:"))
            return server, listen, target
        except OSError:
            if time.monotonic() > deadline:
                raise


def main(file, which=""):
    page = pathlib.Path(file).read_text()
    blocks = re.findall(r"^```python ?(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    server, listen, target = (None, "", "") if which == "first" else started(page)
    page_module = sys.modules["page"] = types.ModuleType("page")
    names = vars(page_module)
    names["__name__"] = "__main__"
    ran = 0
    try:
        for needs, code in blocks[:1] if which == "first" else blocks:
            if needs not in ("", "server") and importlib.util.find_spec(needs) is None:
                print(f"skipped: {needs} is not installed")
                continue
            exec(compile(code.replace(listen, target) if listen else code, file, "exec"), names)
            ran += 1
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    assert ran, f"{file}: no block of Python"
    print(f"{file}: {ran} blocks ran")


if __name__ == "__main__":
    main(*sys.argv[1:])
