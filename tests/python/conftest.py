"""A client in process, and a server of its own: each is a fixture. ROPE_SERVER is the program."""
import os
import pathlib
import sys

import pytest

import ropeserve as rs

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from rope_server import RopeServer  # noqa: E402


class Server:
    """A rope_server on a Unix socket."""

    def __init__(self, folder):
        self.target = f"unix:{folder}/rope.sock"
        self.process = RopeServer(
            os.environ["ROPE_SERVER"], f"--listen={self.target}", "--enable_shared_memory",
            log=(pathlib.Path(folder) / "log").open("a")).process

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.kill()


@pytest.fixture
def own_server(tmp_path):
    """One that a test may stop."""
    made = Server(tmp_path)
    yield made
    made.kill()


@pytest.fixture(scope="session")
def local():
    with rs.local(threads=1) as client:
        yield client


@pytest.fixture(params=["local", "ring", "memfd", "inline"])
def client(request, server):
    """Every way to the engine."""
    if request.param == "local":
        with rs.local(threads=1) as made:
            yield made
        return
    with rs.connect(server.target, transports=[request.param]) as made:
        assert made.transport == request.param
        yield made
