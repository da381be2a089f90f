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
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import monitoring  # noqa: E402
from monitoring import missing_in, panels_of, read_page, until  # noqa: E402
from monitoring_calls import SERVER_FLAGS, Calls  # noqa: E402
from rope_server import RopeServer  # noqa: E402

CONFIG = ROOT / "deploy/prometheus.yml"
DASHBOARD = ROOT / "deploy/dashboards/rope_server.json"
RULES = ROOT / "deploy/alerts/rope_server.rules.yaml"
RULE_TESTS = ROOT / "deploy/alerts/rope_server.test.yaml"
RUNBOOK = ROOT / "deploy/alerts/README.md"
BUILD = pathlib.Path()  # set by main
PROGRAMS = ("prometheus", "promtool")
FLAGS = ("--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--device=cpu")
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


def promtool(*arguments, page=""):
    """(exit status, output)."""
    done = subprocess.run(["promtool", *map(str, arguments)], input=page, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def names_of_codes():
    source = (ROOT / "client/error.cc").read_text()
    return set(re.findall(r'"([A-Z_]+)"', re.search(r"kCodeNames.*?};", source, re.DOTALL)[0]))


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
                    for _, matchers in monitoring.SELECTOR.findall(target["expr"]):
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
        cls.server = RopeServer(BUILD / "bin/rope_server", *FLAGS, f"--listen=unix:{folder}/socket",
                                "--enable_shared_memory", *SERVER_FLAGS)
        cls.addClassCleanup(cls.server.stop)
        cls.prometheus = monitoring.Prometheus(CONFIG, folder, cls.server.metrics)
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
            for expression in monitoring.expressions_of(panel):
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
                   for expression in monitoring.expressions_of(panel)
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
