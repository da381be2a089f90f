#!/usr/bin/env python3
"""The dashboard and the alerts of deploy/ against the metrics page of a real server and a real
Prometheus: every series exists, every panel moves, every alert is tested and has its runbook.

Usage: monitoring_test.py BUILD_FOLDER. Needs Python, prometheus and promtool; without one of these
programs it exits with status 77.
"""

import json
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from rope_server import LIMIT_S, RopeServer  # noqa: E402

CONFIG = ROOT / "deploy/prometheus.yml"
DASHBOARD = ROOT / "deploy/dashboards/rope_server.json"
RULES = ROOT / "deploy/alerts/rope_server.rules.yaml"
RULE_TESTS = ROOT / "deploy/alerts/rope_server.test.yaml"
RUNBOOK = ROOT / "deploy/alerts/README.md"
BUILD = pathlib.Path()  # set by main
PROGRAMS = ("prometheus", "promtool")
# Of a server that drops table pages, refuses regions and closes connections soon.
FLAGS = ("--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--device=cpu",
         "--enable_shared_memory", "--table_cache_bytes=1MiB", "--session_memory_bytes=8MiB",
         "--handshake_timeout=3s")
GRAFANA_10 = 38  # its schemaVersion
ROUNDS_MAX = 5
CALLS_MIN = 1000

# Panels that calls do not move.
UNMOVED = {
    "State": "changes when a server stops",
    "Version": "a label for each build",
    "Certificate expires in": "a server without TLS has no such series",
    "Device faults": "the CPU is not lost",
    "Limits of memory": "flags of the server",
    "Models": "presets and files of the start",
}
# That stable_names_test.py finds on the page of a server with TLS.
WITH_TLS = {"rope_tls_certificate_expiry_timestamp_seconds", "rope_tls_reload_failures_total"}

# Of a metrics page, and of PromQL.
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"\b((?:rope|process|grpc_server)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
TARGET_LABELS = {"job", "instance"}  # that Prometheus adds
# The variables of the dashboard, as short as the test.
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "5s"}

# Of calls.
TOKENS_TOO_MANY = 1 << 16  # for a ring in the memory of a session
LLAMA = {"model_type": "llama", "rope_theta": 10000.0, "head_dim": 128, "num_attention_heads": 4,
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


def until(condition, what):
    """The first true result of `condition`."""
    deadline = time.monotonic() + LIMIT_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {LIMIT_S} s: {what}")
    return result


def get(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=LIMIT_S) as answer:
        return answer.read().decode()


def read_page(text):
    """{name of a series: {label: its values}} of a metrics page."""
    series = {}
    for name, labels in SAMPLE.findall(text):
        values = series.setdefault(name, {})
        for label, value in LABEL.findall(labels):
            values.setdefault(label, set()).add(value)
    return series


def missing_in(series, expression):
    """The series, labels and values of labels that an expression names and a page does not have."""
    for name, matchers in SELECTOR.findall(expression):
        if name not in series:
            yield name
            continue
        for label, pattern in MATCHER.findall(matchers):
            if label in TARGET_LABELS:
                continue
            values = series[name].get(label, ())
            for one in pattern.split("|"):
                if not any(re.fullmatch(one, value) for value in values):
                    yield f'{name}{{{label}="{one}"}}'


def panels_of(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions_of(panel):
    """The expressions of a panel, with values for the variables of the dashboard."""
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        yield expression


class Prometheus:
    """A Prometheus with the configuration of the tree, but with this target and short intervals."""

    INTERVAL = "250ms"

    def __init__(self, config, folder, target):
        folder = pathlib.Path(folder)
        text = config.read_text().replace("rope:9464", target)
        text = re.sub(r"(scrape|evaluation)_interval: \w+", rf"\1_interval: {self.INTERVAL}", text)
        (folder / "prometheus.yml").write_text(text)
        (folder / "alerts").symlink_to(config.parent / "alerts")
        self._log = folder / "prometheus.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"],
                stdout=log, stderr=log)
        try:
            self._address = until(self._find_address, "Prometheus is ready")
        except BaseException:
            self.stop()
            raise

    def _find_address(self):
        log = self._log.read_text()
        if self._process.poll() is not None:
            raise AssertionError(log)
        found = re.search(r'msg="Listening on" address=(\S+)', log)
        return "Server is ready" in log and found[1]

    def ask(self, path, **parameters):
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        return json.loads(get(url))["data"]

    def value(self, expression):
        """Of the first series; None: there is none."""
        result = self.ask("query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else None

    def series(self, expression, begin, end):
        """[[value of each moment] of each series]; "NaN" is a value."""
        result = self.ask("query_range", query=expression, start=begin, end=end,
                          step=self.INTERVAL)["result"]
        return [[value for _, value in each["values"]] for each in result]

    def rules(self):
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self, *states):
        """The names of the alerts in one of these states, "pending" or "firing"."""
        return [alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"]
                if alert["state"] in states]

    def stop(self):
        self._process.terminate()
        self._process.wait(LIMIT_S)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Calls:
    """Of every kind to one server, which move what it counts."""

    def __init__(self, ropectl, server, folder):
        self._program, self._server = ropectl, server
        self._config, self._q = (pathlib.Path(folder) / name for name in ("config.json", "q.npy"))
        self._config.write_text(json.dumps(LLAMA))
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


def promtool(*arguments, page=""):
    """(exit status, output)."""
    done = subprocess.run(["promtool", *map(str, arguments)], input=page, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def names_of_codes():
    source = (ROOT / "client/error.cc").read_text()
    return set(re.findall(r'"([A-Z_]+)"', re.search(r"StatusCode code.*?};", source, re.DOTALL)[0]))


def alerts_of(rules):
    return re.findall(r"- alert: (\w+)", rules)


def tested_alerts(tests):
    """({alerts that a test sees firing}, {those that one sees quiet})."""
    firing, quiet = set(), set()
    for case in tests.split("- eval_time:")[1:]:
        name = re.search(r"alertname: (\w+)", case)[1]
        (quiet if "exp_alerts: []" in case else firing).add(name)
    return firing, quiet


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.dashboard = json.loads(DASHBOARD.read_text())
        self.panels = panels_of(self.dashboard)
        self.alerts = alerts_of(RULES.read_text())

    def test_promtool_accepts_rules_and_configuration(self):
        for arguments in (("check", "rules", RULES), ("check", "config", CONFIG)):
            status, output = promtool(*arguments)
            self.assertEqual(status, 0, output)
        self.assertIn("1 rule files found", output)

    def test_tests_of_the_rules_pass(self):
        status, output = promtool("test", "rules", RULE_TESTS)
        self.assertEqual(status, 0, output)

    def test_each_alert_fires_in_a_test_and_is_quiet_in_one(self):
        firing, quiet = tested_alerts(RULE_TESTS.read_text())
        self.assertEqual(sorted(firing), sorted(self.alerts))
        self.assertEqual(sorted(quiet), sorted(self.alerts))

    def test_runbook_has_a_heading_for_each_alert_in_their_order(self):
        headings = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)
        self.assertEqual(headings, self.alerts)

    def test_runbook_names_panels_of_the_dashboard(self):
        text = " ".join(RUNBOOK.read_text().split())
        titles = {panel["title"] for panel in self.panels}
        self.assertEqual(set(re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)) - titles, set())

    def test_dashboard_chooses_its_data_source_and_its_instances(self):
        self.assertGreaterEqual(self.dashboard["schemaVersion"], GRAFANA_10)
        variables = {each["name"]: each["type"] for each in self.dashboard["templating"]["list"]}
        self.assertEqual(variables,
                         {"datasource": "datasource", "job": "query", "instance": "query"})
        for panel in self.panels:
            for target in panel["targets"]:
                with self.subTest(panel["title"], target=target["refId"]):
                    self.assertEqual(target["datasource"]["uid"], "${datasource}")
                    for _, matchers in SELECTOR.findall(target["expr"]):
                        self.assertIn('job=~"$job", instance=~"$instance"', matchers)

    def test_panels_have_ids_titles_and_descriptions(self):
        every = self.dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in every}), len(every))
        self.assertEqual(len({panel["title"] for panel in self.panels}), len(self.panels))
        self.assertEqual([panel["title"] for panel in self.panels if not panel["description"]], [])


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        folder = temporary.name
        cls.server = RopeServer(BUILD / "bin/rope_server", *FLAGS, f"--listen=unix:{folder}/socket")
        cls.addClassCleanup(cls.server.stop)
        cls.prometheus = Prometheus(CONFIG, folder, cls.server.metrics)
        cls.addClassCleanup(cls.prometheus.stop)
        until(lambda: cls.prometheus.value('up{job="rope"}') == 1, "Prometheus scrapes")
        until(lambda: not cls.prometheus.alerts("pending", "firing"), "no alert of an idle server")
        cls.begin = time.time()
        cls.calls = Calls(BUILD / "bin/ropectl", cls.server, folder)
        cls.calls.make()
        cls.page = cls.server.get("/metrics")[1]
        cls.known = read_page(cls.page)
        cls.known["grpc_server_call_duration_seconds_count"]["grpc_status"] |= names_of_codes()
        cls.known["rope_pipelined_requests_total"]["code"] |= names_of_codes()
        cls.panels = panels_of(json.loads(DASHBOARD.read_text()))

    def test_promtool_has_nothing_to_say_of_the_page(self):
        self.assertEqual(promtool("check", "metrics", page=self.page), (0, ""))

    def missing(self, expression):
        return set(missing_in(self.known, expression)) - WITH_TLS

    def test_series_of_panels_exist(self):
        for panel in self.panels:
            for expression in expressions_of(panel):
                with self.subTest(panel["title"]):
                    self.assertEqual(self.missing(expression), set())

    def test_alerts_are_complete_and_their_series_exist(self):
        until(lambda: all(rule["health"] == "ok" for rule in self.prometheus.rules()),
              "Prometheus evaluates the rules")
        rules = self.prometheus.rules()
        self.assertEqual([rule["name"] for rule in rules], alerts_of(RULES.read_text()))
        for rule in rules:
            with self.subTest(rule["name"]):
                self.assertEqual(self.missing(rule["query"]), set())
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
                self.assertEqual(set(rule["annotations"]),
                                 {"summary", "description", "runbook_url"})
                self.assertEqual(rule["annotations"]["runbook_url"],
                                 f"{RUNBOOK.relative_to(ROOT)}#{rule['name'].lower()}")

    def test_flags_of_the_runbook_exist(self):
        text = subprocess.run([BUILD / "bin/rope_server", "--help"], capture_output=True, text=True,
                              check=True).stdout
        for flag in set(re.findall(r"--\w+", RUNBOOK.read_text())):
            self.assertIn(f"{flag} ", text)

    def moves(self, panel):
        """Whether a series of the panel has had two values."""
        return any(len(set(values)) > 1
                   for expression in expressions_of(panel)
                   for values in self.prometheus.series(expression, self.begin, time.time()))

    def test_calls_move_every_panel_and_raise_no_alert(self):
        still = [panel for panel in self.panels if panel["title"] not in UNMOVED]
        for _ in range(ROUNDS_MAX):
            still = [panel for panel in still if not self.moves(panel)]
            if not still:
                break
            self.calls.make()
        self.assertEqual([panel["title"] for panel in still], [])
        self.assertGreaterEqual(self.prometheus.value(
            "sum(grpc_server_call_duration_seconds_count)"), CALLS_MIN)
        self.assertEqual(self.prometheus.alerts("firing"), [])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        print(f"skipped: not installed: {' '.join(missing)}")
        sys.exit(77)
    unittest.main()
