"""What monitoring_test.py reads: a metrics page, the selectors of PromQL expressions, the panels of
a dashboard; and a Prometheus of its own. Needs only Python.
"""

import json
import pathlib
import re
import subprocess
import time
import urllib.parse
import urllib.request

LIMIT_S = 60
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"\b((?:rope|process|grpc_server)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
TARGET_LABELS = {"job", "instance"}  # that Prometheus adds
# The variables of the dashboard, as short as the test.
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "5s"}


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
