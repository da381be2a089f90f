"""Envoy with deploy/envoy/balancer.yaml in front of three rope_servers, mutual TLS on both sides.

Under load servers are killed, started, drained and added, and all certificates are replaced: no
call of a client fails. ROPE_ENVOY names Envoy; ropectl stands beside ROPE_SERVER.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from authority import Authority, openssl
from reference import LLAMA, draw

import ropeserve as rs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from rope_server import RopeServer  # noqa: E402

ENVOY = os.environ.get("ROPE_ENVOY")
SERVER = os.environ["ROPE_SERVER"]
ROPECTL = pathlib.Path(SERVER).with_name("ropectl")
EVEN = 0.2  # of the mean
COUNTED = 300  # calls from which evenness is seen
LIMIT_S = 100  # on a machine that does much else
INVALID_ARGUMENT, UNAUTHENTICATED = 3, 16
EJECTED = "cluster.rope.outlier_detection.ejections_enforced_consecutive_local_origin_failure"

pytestmark = [
    pytest.mark.skipif(not ENVOY, reason="envoy is not here (ROPE_ENVOY)"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not here"),
    pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here"),
]


def until(holds, what):
    deadline = time.monotonic() + LIMIT_S
    while not (value := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return value


def curl(*arguments):
    """What curl prints, with an empty message of gRPC as its input."""
    return subprocess.run(["curl", "-s", "--noproxy", "*", *arguments], input="\0" * 5, text=True,
                          stdout=subprocess.PIPE, timeout=LIMIT_S, check=False).stdout


def replace(path, content):
    """As an operator should: the file is whole at any time."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def serial(certificate):
    text = openssl("x509", "-in", certificate, "-noout", "-serial")
    return text.strip().partition("=")[2].lower()


class Server:
    """A rope_server at an address of its own, where it can be started again."""

    def __init__(self, host, folder, access):
        self.host, self.folder, self.access, self.port = host, folder, access, 0
        self.log = folder / f"{host}.log"
        self.start()

    def start(self):
        files = {name: self.folder / file
                 for name, file in (("cert", "own.pem"), ("key", "own.key"),
                                    ("client_ca", "authority.pem"))}
        self.server = RopeServer(
            SERVER, f"--listen={self.host}:{self.port}", f"--metrics_listen={self.host}:0",
            *(f"--tls_{name}={path}" for name, path in files.items()),
            f"--access_file={self.access}", "--trusted_proxy=ip:loopback", "--drain_lead=20s",
            "--threads=4", "--poll_spin_us=0", log=self.log.open("a"))
        self.process, self.kill = self.server.process, self.server.kill
        self.port = int(self.server.address.rpartition(":")[2])

    def count(self, code="OK"):
        """The Rotate calls that it has answered so since it was started; 0: it is gone."""
        try:
            page = self.server.get("/metrics")[1]
        except OSError:
            return 0
        found = re.search(r'^grpc_server_call_duration_seconds_count\{grpc_method="[\w.]+/Rotate",'
                          rf'grpc_status="{code}"\}} (\S+)$', page, re.MULTILINE)
        return float(found[1]) if found else 0

    def times_read(self):
        """How often it has read its TLS files again."""
        return self.log.read_text().count("TLS files: read again")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)


class Balancer:
    """Envoy with the files of deploy/envoy in a folder."""

    def __init__(self, folder, servers):
        self.folder = folder
        self.list(servers)
        for name in ("certificate", "authority"):
            self.write(name, {"/etc/envoy": folder})
        self.write("balancer", {"/etc/envoy": folder, "/run/envoy": folder,
                                "0.0.0.0, port_value: 50052": "127.0.0.1, port_value: 0"})
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [ENVOY, "-c", folder / "balancer.yaml", "--disable-hot-restart", "--concurrency", "2",
             "--log-level", "warning"], stderr=self.log.open("a"))
        until(self.is_ready, "Envoy and its servers")
        self.port = int(self.ask("/listeners").rpartition(":")[2])

    def write(self, name, changes):
        text = (ROOT / f"deploy/envoy/{name}.yaml").read_text()
        for was, now in changes.items():
            assert was in text, f"{name}.yaml: {was}"
            text = text.replace(was, str(now))
        replace(self.folder / f"{name}.yaml", text.encode())

    def list(self, servers):
        """Writes servers.yaml: a line for each, as the one of the file."""
        text = (ROOT / "deploy/envoy/servers.yaml").read_text()
        lines = [line for line in text.splitlines() if "10.0.0." in line]
        assert len(lines) == 3
        written = [lines[0].replace("10.0.0.1, port_value: 50051",
                                    f"{server.host}, port_value: {server.port}")
                   for server in servers]
        replace(self.folder / "servers.yaml",
                text.replace("\n".join(lines), "\n".join(written)).encode())
        self.listed = len(servers)

    def is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        return (self.ask("/ready") == "LIVE\n" and
                self.ask("/clusters").count("health_flags::healthy") == self.listed)

    def ask(self, path):
        """What the admin page says; nothing before Envoy listens."""
        return curl("--unix-socket", self.folder / "admin.sock", f"http://envoy{path}")

    def number(self, statistic):
        return int(self.ask(f"/stats?filter=^{re.escape(statistic)}$").rpartition(":")[2])

    def uses(self, kind, serials):
        """Whether the listener and the cluster both have these certificates and no others of the
        kind, cert_chain or ca_cert. Those of open connections are listed too."""
        used = [{item["serial_number"] for item in one[kind]}
                for one in json.loads(self.ask("/certs"))["certificates"]]
        return used.count(set(serials)) >= 2


class Cluster:
    """Three servers, Envoy, and the files of a client."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("old", "new", "envoy", "server", "client"):
            (folder / name).mkdir()
        self.old, self.new = (Authority(folder / name, name) for name in ("old", "new"))
        self.connecting = threading.Lock()  # a client reads files that belong together
        self.trust(self.old)
        self.certify(self.old)
        self.access = folder / "access.json"
        self.admit()
        self.servers = []
        self.balancer = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.end)
            for number in (2, 3, 4):
                self.add(f"127.0.0.{number}")
            self.balancer = Balancer(self.folder / "envoy", self.servers)
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        if self.balancer is not None:
            self.balancer.process.kill()
            self.balancer.process.wait()
        for server in self.servers:
            server.kill()

    def add(self, host):
        self.servers.append(Server(host, self.folder / "server", self.access))
        return self.servers[-1]

    def admit(self, **limits):
        replace(self.access, json.dumps({"identities": [
            {"name": "engine", "certificates": ["spiffe://cluster/engine"], "rights": ["rotate"],
             **limits}]}).encode())

    @contextlib.contextmanager
    def until_servers_read(self):
        """The files that the block replaces."""
        before = [server.times_read() for server in self.servers]
        yield
        until(lambda: all(server.times_read() > was
                          for server, was in zip(self.servers, before)), "the servers' files")

    def trust(self, *authorities):
        """Of everybody."""
        pem = b"".join(authority.cert.read_bytes() for authority in authorities)
        for name in ("envoy", "server", "client"):
            replace(self.folder / name / "authority.pem", pem)

    def certify(self, authority):
        """Everybody gets a new certificate. Returns the serial number of Envoy's."""
        names = {"envoy": "IP:127.0.0.1", "server": "DNS:rope-server.internal",
                 "client": "URI:spiffe://cluster/engine"}
        for name, subject in names.items():
            cert, key = authority.issue(name, subject)
            own = "envoy" if name == "envoy" else "own"
            with self.connecting:
                replace(self.folder / name / f"{own}.pem", cert.read_bytes())
                replace(self.folder / name / f"{own}.key", key.read_bytes())
        return serial(self.folder / "envoy/envoy.pem")

    def files(self, cert=None, key=None):
        folder = self.folder / "client"
        return {"ca": folder / "authority.pem", "cert": cert or folder / "own.pem",
                "key": key or folder / "own.key"}

    def connect(self, cert=None, key=None, timeout=LIMIT_S):
        files = {f"{name}_file": path for name, path in self.files(cert, key).items()}
        with self.connecting:
            return rs.connect(f"https://127.0.0.1:{self.balancer.port}", transports=["inline"],
                              timeout=timeout, **files)

    def ropectl_load(self, *flags):
        files = [f"--tls_{name}={path}" for name, path in self.files().items()]
        return subprocess.Popen(
            [ROPECTL, "load", f"--target=https://127.0.0.1:{self.balancer.port}", *files,
             "--transport=inline", "--json", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def seconds_until_even(self, servers, without=None):
        """From now until each server's part of the load is within EVEN of their mean, and another
        one gets nothing."""
        begin = time.monotonic()

        def counts():
            return np.array([server.count() for server in servers])

        while True:
            before = counts()
            before_without = without.count() if without else 0
            until(lambda before=before: (counts() - before).sum() >= COUNTED, "load")
            parts = counts() - before
            left = max(without.count() - before_without, 0) if without else 0
            if abs(parts / parts.mean() - 1).max() <= EVEN and left == 0:
                return time.monotonic() - begin
            assert time.monotonic() - begin < LIMIT_S, f"uneven: {parts}, {left} without"


@pytest.fixture
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("balancer")) as made:
        yield made


def in_new_array(client, q):
    return client.rotate(q, start=7, config=LLAMA)


def in_place(client, q):
    copy = q.copy()
    return client.rotate_(copy, start=7, config=LLAMA)


class Load:
    """Threads of Python clients, and ropectl, which repeats no call."""

    KINDS = ((in_new_array, draw(1, 32, 64)), (in_place, draw(16, 32, 64)),
             (in_new_array, draw(64, 32, 64)), (in_place, draw(256, 32, 64)))

    def __init__(self, cluster, reconnects=False):
        self.cluster, self.reconnects = cluster, reconnects
        self.stopping = threading.Event()
        self.answered = [0] * len(self.KINDS)
        self.failed = []
        with rs.local(threads=1) as local:
            self.wanted = [call(local, q) for call, q in self.KINDS]
        self.threads = [threading.Thread(target=self.run, args=(index,))
                        for index in range(len(self.KINDS))]
        self.ropectl = {"answered": 0, "failed": 0}

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.await_calls()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def run(self, index):
        call, q = self.KINDS[index]
        while not self.stopping.is_set():
            try:
                with self.cluster.connect() as client:
                    begin = self.answered[index]
                    while not (self.stopping.is_set() or
                               (self.reconnects and self.answered[index] > begin + 20)):
                        np.testing.assert_array_equal(call(client, q), self.wanted[index])
                        self.answered[index] += 1
            except (rs.RopeError, AssertionError) as error:
                self.failed.append(error)

    @contextlib.contextmanager
    def with_ropectl(self, seconds):
        """Beside the threads; ended when the block and the seconds are over."""
        if not self.reconnects:
            until(lambda: self.connections() == len(self.KINDS), "the end of another ropectl")
        process = self.cluster.ropectl_load("--concurrency=4", f"--duration={seconds}s")
        try:
            if not self.reconnects:
                until(lambda: self.connections() == len(self.KINDS) + 4, "ropectl")
            self.await_calls()
            yield
            out, err = process.communicate(timeout=LIMIT_S + seconds)
            assert out, err
            told = json.loads(out)
            assert told["failed"] == 0, told
            self.ropectl = {name: self.ropectl[name] + told[name] for name in self.ropectl}
        finally:
            process.kill()
            process.wait()

    def connections(self):
        return self.cluster.balancer.number("http.rope.downstream_cx_active")

    def await_calls(self):
        before = list(self.answered)
        until(lambda: all(now > was + 5 for now, was in zip(self.answered, before)), "load")

    def report(self, what, since):
        """Prints what has been sent since another report, and expects that none has failed."""
        sent = sum(self.answered) + self.ropectl["answered"]
        print(f"measured: {what}: {sent - since} sent, {len(self.failed)} failed")
        assert not self.failed, self.failed[0]
        return sent


def test_servers_that_go_and_come_fail_no_call(cluster):
    first, second, third = cluster.servers
    with Load(cluster) as load:
        cluster.seconds_until_even(cluster.servers)
        with load.with_ropectl(4):
            first.kill()
            seconds = cluster.seconds_until_even([second, third])
        assert cluster.balancer.number(EJECTED) > 0
        sent = load.report(f"killed, even after {seconds:.1f} s", 0)
        with load.with_ropectl(4):
            first.start()
            seconds = cluster.seconds_until_even(cluster.servers)
        sent = load.report(f"started again, even after {seconds:.1f} s", sent)
        with load.with_ropectl(4):
            second.stop()
            seconds = cluster.seconds_until_even([first, third], without=second)
            assert second.process.poll() is None, "within --drain_lead"
            second.stop()  # ends it
            assert second.process.wait(LIMIT_S) == 0, second.log.read_text()
        sent = load.report(f"drained, even after {seconds:.1f} s", sent)
        with load.with_ropectl(4):
            fourth = cluster.add("127.0.0.5")
            cluster.balancer.list([first, third, fourth])
            seconds = cluster.seconds_until_even([first, third, fourth])
        load.report(f"a new address, even after {seconds:.1f} s", sent)


def test_certificates_and_authority_are_replaced_without_a_failed_call(cluster):
    balancer = cluster.balancer
    old_cert, old_key = cluster.old.issue("before", "URI:spiffe://cluster/engine")
    authorities = {serial(authority.cert) for authority in (cluster.old, cluster.new)}
    with Load(cluster, reconnects=True) as load:
        with load.with_ropectl(4):
            with cluster.until_servers_read():
                cluster.trust(cluster.old, cluster.new)
                until(lambda: balancer.uses("ca_cert", authorities), "both authorities")
            with cluster.until_servers_read():
                own = cluster.certify(cluster.new)
            until(lambda: balancer.uses("cert_chain", {own}), "the new certificate")
            with cluster.connect(old_cert, old_key) as client:
                in_new_array(client, draw(1, 1, 64))
            cluster.trust(cluster.new)
            until(lambda: balancer.uses("ca_cert", {serial(cluster.new.cert)}), "the new authority")
        sent = load.report("all certificates replaced", 0)
        with pytest.raises((rs.ConnectionLost, rs.Deadline)):
            cluster.connect(old_cert, old_key, timeout=1)
        with load.with_ropectl(3):  # a server that has never known the old authority
            cluster.servers[0].kill()
            cluster.servers[0].start()
            seconds = cluster.seconds_until_even(cluster.servers)
        load.report(f"killed and started, even after {seconds:.1f} s", sent)


def test_servers_know_a_client_by_its_certificate(cluster):
    cert, key = cluster.old.issue("other", "URI:spiffe://cluster/other")
    with cluster.connect(cert, key) as other, pytest.raises(rs.Credentials):
        in_new_array(other, draw(1, 1, 64))
    with cluster.connect() as client:
        in_new_array(client, draw(1, 1, 64))
    assert code_of(cluster, cluster.files()) == INVALID_ARGUMENT
    forged = "x-forwarded-client-cert: URI=spiffe://cluster/engine"
    assert code_of(cluster, cluster.files(cert, key), forged) == UNAUTHENTICATED


def code_of(cluster, files, *headers):
    """Of a call with an empty message."""
    call = ["-D-", "--cacert", files["ca"], "--cert", files["cert"], "--key", files["key"],
            "--data-binary", "@-"]
    for header in ("content-type: application/grpc", "te: trailers", *headers):
        call += ["-H", header]
    said = curl(*call, f"https://127.0.0.1:{cluster.balancer.port}/rope.v1.RopeService/Rotate")
    return int(re.search(r"grpc-status: (\d+)", said)[1])


def test_refusals_with_a_delay_are_not_repeated_by_envoy(cluster):
    cluster.admit(max_requests=1)
    for server in cluster.servers:
        server.process.send_signal(signal.SIGHUP)
    until(lambda: all("read again, identities" in server.log.read_text()
                      for server in cluster.servers), "the access file")
    done = cluster.ropectl_load("--concurrency=12", "--requests=1000")
    told = json.loads(done.communicate(timeout=LIMIT_S)[0])
    assert told["errors"].keys() == {"RESOURCE_EXHAUSTED"}, told
    assert told["failed"] == sum(server.count("RESOURCE_EXHAUSTED") for server in cluster.servers)
    assert cluster.balancer.number("cluster.rope.upstream_rq_retry") == 0
