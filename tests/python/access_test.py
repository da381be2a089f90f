"""Who may do what at a server: TLS, certificates, tokens, Unix users, and files that change while
calls run."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest
from authority import Authority, openssl
from reference import LLAMA, draw
from rope_server import RopeServer

import ropeserve as rs

Q = draw(3, 4, 64)
RIGHTS = ("rotate", "describe", "inspect")
ROPECTL = pathlib.Path(os.environ["ROPE_SERVER"]).with_name("ropectl")


class Server(RopeServer):
    """With a metrics page, and a log in a folder."""

    def __init__(self, folder, *flags):
        self.log = folder / "log"
        super().__init__(os.environ["ROPE_SERVER"], "--listen=127.0.0.1:0",
                         "--metrics_listen=127.0.0.1:0", *flags, log=self.log.open("a"))

    def until_logged(self, pattern):
        until(lambda: re.search(pattern, self.log.read_text()), pattern)

    def metric(self, name):
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return found and float(found.group(1))


def until(holds, what):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextlib.contextmanager
def serving(folder, *flags):
    with Server(folder, *flags) as server:
        yield server
        assert server.stop() == 0, server.log.read_text()


def sha256(token):
    return hashlib.sha256(token.encode()).hexdigest()


def write(path, identities):
    """As an operator should: the file is whole at any time."""
    path.with_suffix(".new").write_text(json.dumps({"identities": identities}))
    path.with_suffix(".new").replace(path)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


@pytest.fixture
def certificate(authority):
    """Flags of a server with TLS."""
    cert, key = authority.issue("server", "IP:127.0.0.1,DNS:rope.test")
    return [f"--tls_cert={cert}", f"--tls_key={key}"]


def rotate(client):
    return client.rotate(Q, start=0, config=LLAMA)


def ropectl(server, *arguments, **files):
    flags = [f"--{name}={path}" for name, path in files.items()]
    return subprocess.run([ROPECTL, *arguments, f"--target={server.address}", *flags],
                          capture_output=True, text=True, timeout=60)


CALLS = {
    "rotate": [rotate, lambda c: c.prepare(Q, config=LLAMA)],
    "describe": [lambda c: c.describe(config=LLAMA), lambda c: c.models(),
                 lambda c: c.tables(config=LLAMA, begin=0, end=4)],
}
# Those without a method of the Python client.
COMMANDS = {
    "inspect": [["info"], ["connections"]],
}


@pytest.mark.parametrize("way", ["certificate", "token", "user"])
def test_each_identity_may_do_what_its_rights_say_and_nothing_else(way, tmp_path, authority,
                                                                   certificate):
    access = tmp_path / "access.json"
    flags = [f"--access_file={access}", *certificate, f"--listen=unix:{tmp_path}/s"]
    if way == "certificate":
        flags.append(f"--tls_client_ca={authority.cert}")
    cert, key = authority.issue("engine", "URI:spiffe://cluster/engine")
    known_by = {"certificate": {"certificates": ["spiffe://cluster/engine"]},
                "token": {"tokens_sha256": [sha256("s3cret")]},
                "user": {"uids": [os.getuid()]}}[way]
    (tmp_path / "token").write_text("s3cret\n")
    tls = {"tls_ca": authority.cert}
    shown = {"certificate": {**tls, "tls_cert": cert, "tls_key": key},
             "token": {**tls, "token_file": tmp_path / "token"}, "user": {}}[way]
    write(access, [{"name": "one", "rights": [], **known_by}])
    with serving(tmp_path, *flags) as server:
        if way == "user":
            server.address = f"unix:{tmp_path}/s"
        names = {"tls_ca": "ca_file", "tls_cert": "cert_file", "tls_key": "key_file"}
        with rs.connect(server.address, transports=["inline"],
                        **{names.get(name, name): path for name, path in shown.items()}) as client:
            for right in RIGHTS:
                write(access, [{"name": "one", "rights": [right], **known_by}])
                server.process.send_signal(signal.SIGHUP)
                until(lambda: allowed(server, client, shown) == {right}, right)
        server.until_logged(r"audit: refused method=GetServerInfo peer=\S+ code=PERMISSION_DENIED")


def allowed(server, client, shown):
    """The rights whose calls all succeed; all others must all be refused."""
    found = set()
    for right in RIGHTS:
        errors = []
        for call in CALLS.get(right, []):
            try:
                call(client)
                errors.append(None)
            except rs.Permission as error:
                errors.append(error.code)
        for command in COMMANDS.get(right, []):
            done = ropectl(server, *command, **shown)
            refused = "PERMISSION_DENIED" in done.stderr
            assert refused or done.returncode == 0, done.stderr
            errors.append("PERMISSION_DENIED" if refused else None)
        if len(set(errors)) == 1 and errors[0] is None:
            found.add(right)
        else:
            assert set(errors) <= {None, "PERMISSION_DENIED"}
    return found


def test_what_matches_no_identity_is_refused_and_health_is_not(tmp_path, authority, certificate):
    access = tmp_path / "access.json"
    write(access, [{"name": "other", "tokens_sha256": [sha256("x")], "rights": list(RIGHTS)}])
    with serving(tmp_path, f"--access_file={access}", *certificate,
                 f"--listen=unix:{tmp_path}/s", "--enable_shared_memory") as server:
        for token in (None, "wrong"):
            with rs.connect(server.address, ca_file=authority.cert, token=token) as client:
                with pytest.raises(rs.Credentials) as refused:
                    rotate(client)
                assert refused.value.code == "UNAUTHENTICATED"
        # Over a Unix socket a token is as good, but the ring needs the user.
        with rs.connect(f"unix:{tmp_path}/s", token="x") as client:
            assert client.transport == "inline"
            rotate(client)
        assert ropectl(server, "health", tls_ca=authority.cert).returncode == 0
        server.until_logged(r"audit: refused method=Rotate peer=\"ip:loopback\" "
                            r"code=UNAUTHENTICATED message=.*a token that nobody has")
        assert "wrong" not in server.log.read_text()


def test_revoked_token_is_refused_and_a_new_one_is_read_by_the_client(tmp_path, authority,
                                                                      certificate):
    access, token = tmp_path / "access.json", tmp_path / "token"
    rights = {"name": "one", "rights": ["rotate"]}
    write(access, [{**rights, "tokens_sha256": [sha256("old")]}])
    token.write_text("old\n")
    with serving(tmp_path, f"--access_file={access}", *certificate) as server, \
            rs.connect(server.address, ca_file=authority.cert, token_file=token) as client:
        rotate(client)
        write(access, [{**rights, "tokens_sha256": [sha256("new")]}])
        until(lambda: raised(rs.Credentials, rotate, client), "revoked")
        token.write_text("new\n")
        until(lambda: not raised(rs.Credentials, rotate, client), "the new token")


def raised(error, call, client):
    try:
        call(client)
        return False
    except error:
        return True


def test_ring_of_a_user_who_may_not_rotate_any_more_refuses(tmp_path):
    access = tmp_path / "access.json"
    one = {"name": "one", "uids": [os.getuid()]}
    write(access, [{**one, "rights": ["rotate"]}])
    with serving(tmp_path, f"--access_file={access}", f"--listen=unix:{tmp_path}/s",
                 "--enable_shared_memory") as server, \
            rs.connect(f"unix:{tmp_path}/s") as client:
        rotate(client)
        write(access, [{**one, "rights": ["describe"]}])  # seen without a signal
        until(lambda: raised(rs.Permission, rotate, client), "refused")
        assert client.transport == "ring"
        write(access, [{**one, "rights": ["rotate"]}])
        server.process.send_signal(signal.SIGHUP)
        until(lambda: not raised(rs.Permission, rotate, client), "admitted")
        assert client.transport == "ring"


def test_limits_of_an_identity_hold(tmp_path):
    access = tmp_path / "access.json"
    one = {"name": "one", "uids": [os.getuid()], "rights": list(RIGHTS)}
    write(access, [{**one, "max_bytes": 4096}])
    with serving(tmp_path, f"--access_file={access}", f"--listen=unix:{tmp_path}/s",
                 "--enable_shared_memory") as server:
        server.address = f"unix:{tmp_path}/s"
        for transport in ("inline", "ring"):
            with rs.connect(server.address, transports=[transport]) as client:
                client.rotate(draw(1, 1, 64), start=0, config=LLAMA)
                with pytest.raises(rs.LimitExceeded, match="for id:one"):
                    client.rotate(draw(64, 8, 64), start=0, config=LLAMA)
        write(access, [{**one, "max_requests": 0}])
        server.process.send_signal(signal.SIGHUP)
        with rs.connect(server.address) as client:
            until(lambda: raised(rs.LimitExceeded, rotate, client), "no request")


def test_certificates_that_are_wrong_end_at_the_handshake(tmp_path, authority):
    other = Authority(tmp_path / "other", "other") if (tmp_path / "other").mkdir() is None else None
    cert, key = authority.issue("server", "IP:127.0.0.1,DNS:rope.test")
    ended, ended_key = authority.issue("ended", "URI:spiffe://cluster/ended", days=-1)
    foreign, foreign_key = other.issue("foreign", "URI:spiffe://cluster/engine")
    good, good_key = authority.issue("engine", "URI:spiffe://cluster/engine")
    with serving(tmp_path, f"--tls_cert={cert}", f"--tls_key={key}",
                 f"--tls_client_ca={authority.cert}") as server:
        def connect(ca, own, own_key, **more):
            return rs.connect(server.address, ca_file=ca, cert_file=own, key_file=own_key,
                              timeout=2, **more)
        with connect(authority.cert, good, good_key) as client:
            rotate(client)
        cases = {"the server is of another authority": (other.cert, good, good_key),
                 "the client is of another authority": (authority.cert, foreign, foreign_key),
                 "the client's certificate has ended": (authority.cert, ended, ended_key),
                 "the client has none": (authority.cert, None, None)}
        for case, files in cases.items():
            with pytest.raises((rs.ConnectionLost, rs.Deadline)):
                connect(*files)
                pytest.fail(case)
        with pytest.raises((rs.ConnectionLost, rs.Deadline)):
            connect(authority.cert, good, good_key, server_name="another.test")
        with connect(authority.cert, good, good_key, server_name="rope.test") as client:
            rotate(client)
        with pytest.raises((rs.ConnectionLost, rs.Deadline)):  # without TLS
            rs.connect(server.address, timeout=2)
        with connect(authority.cert, good, good_key) as client:
            rotate(client)


def test_old_versions_of_tls_are_refused(tmp_path, certificate):
    with serving(tmp_path, *certificate) as server:
        def connects(flag):
            done = subprocess.run(["openssl", "s_client", flag, "-alpn", "h2", "-connect",
                                   server.address], input=b"", capture_output=True)
            return b"Cipher is (NONE)" not in done.stdout
        assert connects("-tls1_2")
        assert connects("-tls1_3")
        assert not connects("-tls1_1")


def test_replaced_files_are_seen_under_load_without_a_failed_call(tmp_path, authority):
    cert, key = authority.issue("server", "IP:127.0.0.1")
    access = tmp_path / "access.json"
    one = {"name": "one", "rights": ["rotate"], "tokens_sha256": [sha256("t")]}
    write(access, [one])
    calls, errors, stop = [0], [], threading.Event()

    def load(server):
        while not stop.is_set():
            try:
                with rs.connect(server.address, ca_file=authority.cert, token="t") as client:
                    for _ in range(20):
                        rotate(client)
                        calls[0] += 1
            except rs.RopeError as error:
                errors.append(error)

    with serving(tmp_path, f"--tls_cert={cert}", f"--tls_key={key}",
                 f"--access_file={access}") as server:
        ends = server.metric("rope_tls_certificate_expiry_timestamp_seconds")
        assert abs(ends - time.time() - 30 * 86400) < 100
        thread = threading.Thread(target=load, args=(server,))
        thread.start()
        try:
            for days in (40, 50):
                new, new_key = authority.issue(f"server{days}", "IP:127.0.0.1", days)
                new.replace(cert)  # for a moment the key is of another certificate
                until(lambda: server.metric("rope_tls_reload_failures_total") > 0, "no pair")
                new_key.replace(key)
                write(access, [one, {"name": f"at{days}", "uids": [days], "rights": []}])
                server.process.send_signal(signal.SIGHUP)
                until(lambda: abs(server.metric("rope_tls_certificate_expiry_timestamp_seconds") -
                                  time.time() - days * 86400) < 100, "the new certificate")
            until(lambda: calls[0] >= 40 or errors, "two connections at least")
        finally:
            stop.set()
            thread.join()
        assert not errors


def test_slow_handshakes_are_closed_in_time_and_delay_nobody(tmp_path, authority, certificate):
    host = "127.0.0.1"
    with serving(tmp_path, *certificate, "--handshake_timeout=3s") as server:
        port = int(server.address.rpartition(":")[2])
        hello = client_hello()
        slow = []
        for sent in (b"", hello[:1], hello[:40], hello):
            for _ in range(8):
                connection = socket.create_connection((host, port))
                connection.sendall(sent)
                slow.append(connection)
        with rs.connect(server.address, ca_file=authority.cert) as client:
            begin = time.monotonic()
            rotate(client)
            assert time.monotonic() - begin < 2.5
        begin = time.monotonic()
        for connection in slow:
            connection.settimeout(10)
            while connection.recv(65536):
                pass  # what the server answers to a whole hello
        assert time.monotonic() - begin < 5
        assert raised(ConnectionError, plain_text, (host, port))


def test_wrong_handshakes_have_a_line_with_the_peer_and_a_count(tmp_path, authority, certificate):
    with serving(tmp_path, *certificate, f"--tls_client_ca={authority.cert}",
                 f"--listen=unix:{tmp_path}/s") as server:
        address = ("127.0.0.1", int(server.address.rpartition(":")[2]))
        assert raised(ConnectionError, plain_text, address)
        closed_once(server, "ip:loopback reason=client_without_tls")
        context = ssl.create_default_context(cafile=authority.cert)
        with contextlib.suppress(OSError), socket.create_connection(address, 10) as connection, \
                context.wrap_socket(connection, server_hostname="rope.test") as secure:
            secure.recv(1)  # TLS 1.3 lets a client begin before its certificate is looked at
        closed_once(server, "ip:loopback reason=tls_handshake",
                    ' cause="peer did not return a certificate"')
        assert "Handshake failed" not in server.log.read_text(), "a second line"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{tmp_path}/s")
            connection.sendall(client_hello())
            closed_once(server, f"uid:{os.getuid()} reason=client_with_tls")


def closed_once(server, owner_and_reason, cause=""):
    line = f" warning connection closed: owner={owner_and_reason}{cause}\n"
    server.until_logged(re.escape(line))
    assert server.log.read_text().count(owner_and_reason) == 1
    reason = owner_and_reason.rpartition("=")[2]
    assert server.metric(f'rope_connections_closed_total{{reason="{reason}"}}') == 1


def plain_text(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        connection.settimeout(10)
        if not connection.recv(1):
            raise ConnectionResetError


def client_hello():
    to_server = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="rope.test").do_handshake()
    return to_server.read()


def test_key_pairs_that_make_no_sense_are_refused_at_the_start(tmp_path, authority):
    cert, _ = authority.issue("server", "IP:127.0.0.1")
    _, key = authority.issue("other", "IP:127.0.0.1")
    short, short_key = tmp_path / "short.pem", tmp_path / "short.key"
    openssl("req", "-x509", "-newkey", "rsa:1024", "-nodes", "-keyout", short_key, "-out", short,
            "-subj", "/CN=short")
    for pair, message in {
            ("/nope", "/nope"): "--tls_cert: got /nope, which cannot be opened (No such file",
            (cert, key): f"--tls_key: got {key}, of another certificate",
            (short, short_key): f"--tls_cert: got {short}, which OpenSSL refuses"}.items():
        done = subprocess.run([os.environ["ROPE_SERVER"], f"--tls_cert={pair[0]}",
                               f"--tls_key={pair[1]}"], capture_output=True, text=True, timeout=30)
        assert done.returncode in (1, 2)
        assert message in done.stderr


def test_two_tokens_are_refused():
    with pytest.raises(rs.InvalidField, match="token_file"):
        rs.connect("127.0.0.1:1", token="a", token_file="b")


def test_targets_without_a_name_to_check_are_refused():
    with pytest.raises(rs.InvalidField, match="tls: got it for unix:/x, want a TCP target"):
        rs.connect("unix:/x", tls=True)
    with pytest.raises(rs.InvalidField, match="tls.server_name: got nothing for ipv4:127.0.0.1:1,"):
        rs.connect("https://127.0.0.1:1,127.0.0.2:1")


def test_tls_gives_the_same_bytes(authority, tmp_path, certificate):
    large = draw(256, 32, 64)
    with serving(tmp_path, *certificate) as server, \
            rs.connect(f"https://{server.address}", ca_file=authority.cert) as client, \
            rs.local() as local:
        np.testing.assert_array_equal(client.rotate(large, start=7, config=LLAMA),
                                      local.rotate(large, start=7, config=LLAMA))


def test_a_line_of_the_log_says_who_called_and_how_long_it_took(tmp_path):
    access = tmp_path / "access.json"
    write(access, [{"name": "one", "uids": [os.getuid()], "rights": list(RIGHTS)}])
    with serving(tmp_path, f"--access_file={access}", f"--listen=unix:{tmp_path}/s",
                 "--enable_shared_memory", "--log_format=json", "--log_level=debug") as server:
        for transport in ("inline", "ring"):
            with rs.connect(f"unix:{tmp_path}/s", transports=[transport]) as client:
                rotate(client)
        with rs.connect(f"unix:{tmp_path}/s", transports=["inline"]) as client, \
                pytest.raises(rs.ModelNotFound):
            client.describe(model="nobody")
        server.until_logged('"code":"NOT_FOUND"')
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    calls = [line for line in lines if line.get("method") in ("Rotate", "Describe")]
    assert [line["code"] for line in calls] == ["OK", "OK", "NOT_FOUND"]
    for line in calls:
        assert (line["peer"], line["identity"]) == (f"uid:{os.getuid()}", "one")
        assert 0 < line["duration_us"] < 10**7
        assert line["received_bytes"] > 0
    assert calls[0]["sent_bytes"] > Q.nbytes and calls[2]["sent_bytes"] == 0
