#!/usr/bin/env python3
"""deploy/kubernetes: the schemas of Kubernetes, the rules of kubernetes_rules.py, and the servers
that the manifests start.

Usage: kubernetes_test.py BUILD_FOLDER. Needs kubernetes-validate of PyPI: ROPE_KUBERNETES_PYTHON
names a Python that has it. A kubectl with kustomize 5, where there is one, renders the same.
"""

import copy
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

if importlib.util.find_spec("kubernetes_validate") is None:
    PYTHON = os.environ.pop("ROPE_KUBERNETES_PYTHON", "")
    if PYTHON:
        os.execv(PYTHON, [PYTHON, "-B", *sys.argv])
    print("skipped: kubernetes-validate is not here: set ROPE_KUBERNETES_PYTHON to a Python of it")
    sys.exit(77)

import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

import kubernetes_manifests as manifests  # noqa: E402
import kubernetes_rules as rules  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
EXAMPLES = FOLDER / "examples"
BUILD = pathlib.Path()  # set by main
NEWEST = "1.37"
# The oldest Kubernetes of README.md: sidecars and gRPC probes are there without a feature gate.
OLDEST = "1.29"
# Kinds of projects beside Kubernetes, which have no schema here.
CUSTOM = {"ServiceMonitor"}
LIMIT_S = 30


def overlays():
    return ["base", *sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir())]


def render(name):
    return manifests.render(FOLDER / name)


def page():
    return (FOLDER / "README.md").read_text()


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(\w+ VERSION ([\d.]+)", text)[1]


def output_of(*command):
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    ).stdout


def known_flags():
    text = output_of(BUILD / "bin/rope_server", "--help")
    return set(re.findall(r"^ +(?:-\w, *)?--(\w+)", text, re.MULTILINE))


def example(name):
    return manifests.documents(EXAMPLES / name)


def one_of(objects, kind):
    return next(one for one in objects if one["kind"] == kind)


class SchemaTest(unittest.TestCase):
    def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(self):
        rendered = [(name, one) for name in overlays() for one in render(name)]
        rendered += [
            (path.name, one)
            for path in sorted(EXAMPLES.iterdir())
            for one in manifests.documents(path)
            if "kind" in one and one["kind"] not in CUSTOM
        ]
        self.assertGreater(len(rendered), 15)
        for name, one in rendered:
            for release in (OLDEST, NEWEST):
                with self.subTest(f"{name} {rules.name_of(one)} {release}"):
                    kubernetes_validate.validate(one, release, strict=True)

    def test_unknown_field_and_wrong_type_are_errors(self):
        good = one_of(render("base"), "Deployment")
        for field, value in (("replica", 2), ("minReadySeconds", "ten")):
            bad = copy.deepcopy(good)
            bad["spec"][field] = value
            with self.subTest(field), self.assertRaises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(bad, NEWEST, strict=True)

    def test_page_names_the_oldest_kubernetes(self):
        self.assertIn(f"Kubernetes {OLDEST}", page())


class RenderTest(unittest.TestCase):
    def test_kubectl_renders_the_same(self):
        said = shutil.which("kubectl") and output_of("kubectl", "version", "--client")
        if not said or not re.search(r"Kustomize Version: v5", said):
            self.skipTest("kubectl with kustomize 5 is not installed")
        for name in overlays():
            with self.subTest(name):
                text = output_of("kubectl", "kustomize", FOLDER / name)
                text = re.sub(r"ropeserve-models-[a-z0-9]{10}", "ropeserve-models", text)
                theirs = [one for one in yaml.safe_load_all(text) if one]
                ours = sorted(render(name), key=manifests.identity)
                self.assertEqual(ours, sorted(theirs, key=manifests.identity))

    def test_patch_merges_lists_by_key_and_null_removes(self):
        old = {"containers": [{"name": "a", "args": ["x"], "probe": {"grpc": 1}}, {"name": "b"}]}
        patch = {"containers": [{"name": "a", "args": ["y"], "probe": {"grpc": None, "http": 2}}]}
        want = {"containers": [{"name": "a", "args": ["y"], "probe": {"http": 2}}, {"name": "b"}]}
        self.assertEqual(manifests.merged_with(old, patch), want)

    def test_patch_of_nothing_and_unknown_keys_are_errors(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "patch.yaml").write_text("{kind: Service, metadata: {name: none}}")
            for text in ("patches: [{path: patch.yaml}]", "commonLabels: {a: b}"):
                (folder / "kustomization.yaml").write_text(text)
                with self.subTest(text), self.assertRaises(ValueError):
                    manifests.render(folder)


class RulesTest(unittest.TestCase):
    def setUp(self):
        self.known = known_flags()

    def problems(self, objects):
        return rules.problems(objects, self.known, version())

    def test_overlays_break_no_rule(self):
        for name in overlays():
            with self.subTest(name):
                self.assertEqual(self.problems(render(name)), [])

    # (overlay, text of the rendered objects, its replacement, part of the problem)
    BREACHES = (
        ("base", "--drain_lead=", "--drain_leed=", "does not know it"),
        ("base", "--memory_bytes=", "memory_bytes=", "want --NAME"),
        ("overlays/gpu", '"ROPE_DEVICE"', '"ROPE_DEVISE"', "does not know it"),
        ("base", "bin/rope_server", "bin/rope", "no container runs"),
        ("base", "--insecure_listen", "--enable_shared_memory", "want --insecure_listen"),
        ("base", 'PeriodSeconds": 30', 'PeriodSeconds": 26', "a drain takes up to 27"),
        ("base", "--drain_lead=5s", "--drain_lead=9s", "a drain takes up to 31"),
        ("base", "--drain_timeout=10s", "--drain_timeout=12s", "a drain takes up to 31"),
        ("base", "--drain_lead=5s", "--drain_lead=0s", "no --drain_lead"),
        ("base", "--memory_bytes=1536MiB", "--memory_bytes=1537MiB", "the flags want"),
        ("overlays/sidecar", "bytes=768MiB", "bytes=1GiB", "the flags want 2.10Gi"),
        ("overlays/gpu", '"3Gi", "nvidia', '"2Gi", "nvidia', "the flags want"),
        ("overlays/gpu", '"nvidia.com/gpu": "1"', '"amd.com/gpu": "1"', "a GPU and device=cuda"),
        ("base", '"cpu": "2"', '"cpu": "1500m"', "requests are not the limits"),
        ("base", '"runAsNonRoot": true, ', "", "may run as root"),
        ("base", '"runAsUser": 65532', '"runAsUser": 1000', "want user 65532"),
        ("base", '"RuntimeDefault"', '"Unconfined"', "seccomp"),
        ("base", '"automountServiceAccountToken": false', '"x": 1', "token"),
        ("base", '"enableServiceLinks": false', '"enableServiceLinks": true', "ROPE_"),
        ("base", '"allowPrivilegeEscalation": false', '"x": 1', "may escalate"),
        ("base", '"readOnlyRootFilesystem": true', '"x": 1', "writes to its root"),
        ("base", '"drop": ["ALL"]', '"drop": ["NET_RAW"]', "keeps capabilities"),
        ("base", "rope-server:0", "rope-server:9", "want rope-server:"),
    )

    def test_each_rule_notices(self):
        for name, old, new, want in self.BREACHES:
            with self.subTest(f"{name}: {new}"):
                text = json.dumps(render(name))
                self.assertIn(old, text)
                found = self.problems(json.loads(text.replace(old, new, 1)))
                self.assertTrue([line for line in found if want in line], found)


class ExamplesTest(unittest.TestCase):
    def test_service_monitor_finds_the_metrics_ports(self):
        monitor = one_of(example("service_monitor.yaml"), "ServiceMonitor")
        self.assertEqual(monitor["apiVersion"], "monitoring.coreos.com/v1")
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (endpoint,) = monitor["spec"]["endpoints"]
        self.assertEqual(endpoint["path"], "/metrics")
        service = one_of(render("base"), "Service")
        self.assertLessEqual(wanted.items(), service["metadata"]["labels"].items())
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        self.assertEqual(ports[endpoint["port"]], rules.PORTS["metrics"])

    def test_engine_dials_the_socket_that_its_server_listens_on(self):
        objects = render("overlays/sidecar")
        (_, pod, server, flags), *_ = rules.servers(objects)
        (engine,) = pod["containers"]
        (socket,) = flags.sockets()
        self.assertEqual(rules.Flags(engine).get("target"), f"unix:{socket}")
        for container in (server, engine):
            mount = rules.mount_of(container, socket)
            self.assertEqual((mount["name"], mount["mountPath"]), ("socket", "/run/rope"))
        self.assertTrue(mount["readOnly"])

    def test_adapter_makes_the_metric_of_the_autoscaler_from_the_queue_time(self):
        scaler = one_of(render("base"), "HorizontalPodAutoscaler")
        (wanted,) = [m["pods"]["metric"]["name"] for m in scaler["spec"]["metrics"] if "pods" in m]
        (adapter,) = example("prometheus_adapter.yaml")
        made = {rule["name"]["as"]: rule["metricsQuery"] for rule in adapter["rules"]}
        for part in ("sum", "count"):
            series = f'rope_request_stage_seconds_{part}{{stage="queue"'
            self.assertIn(series, made[wanted])
        for name in made:
            self.assertIn(name, page())


class PageTest(unittest.TestCase):
    def test_commands_name_folders_and_files_of_the_tree(self):
        named = re.findall(r"kubectl [^\n`]*?-[kf] (\S+)", page())
        self.assertGreater(len(named), 3)
        for path in named:
            with self.subTest(path):
                self.assertTrue((ROOT / path).exists())
        self.assertGreaterEqual(set(named), {f"deploy/kubernetes/{name}" for name in overlays()})

    def test_own_folder_renders(self):
        (text,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
        own = yaml.safe_load(text)
        self.assertEqual(own.pop("images")[0]["name"], "rope-server")
        with tempfile.TemporaryDirectory() as name:
            paths = [str(ROOT / path.split("ropeserve/", 1)[1]) for path in own["resources"]]
            own["resources"] = paths
            (pathlib.Path(name) / "kustomization.yaml").write_text(yaml.safe_dump(own))
            objects = manifests.render(name)
        self.assertEqual(rules.problems(objects, known_flags(), version()), [])


def write_models(folder, data):
    """The files of a ConfigMap as the kubelet mounts them: names are links into a dated folder."""
    dated = folder / "..2026_01_31_12_00_00.1"
    dated.mkdir(parents=True)
    (folder / "..data").symlink_to(dated.name)
    for name, text in data.items():
        (dated / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")


def arguments_of(flags, folder):
    """The flags on free ports, with files in `folder`, on the processor."""
    text = "\n".join(f"--{name}={value}" if value else f"--{name}" for name, value in flags.all)
    text = text.replace("/etc/rope", str(folder)).replace("/run/rope", str(folder))
    text = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text)
    return text.replace("device=cuda", "device=cpu").splitlines()


class Server:
    """A rope_server; a context manager that stops it."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(
            [BUILD / "bin/rope_server", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.process.stdout.readline().split()[-1:]
        self.metrics = self.process.stdout.readline().split()[-1:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=LIMIT_S)
        self.process.stdout.close()

    def get(self, path):
        """(status, text)."""
        url = self.metrics[0].replace("/metrics", path)
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def stop(self):
        """The exit status; the second signal cuts --drain_lead short."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=LIMIT_S)


class ServerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def start(self, name):
        folder = self.folder / name.replace("/", "_")
        objects = render(name)
        (_, _, _, flags), *_ = rules.servers(objects)
        write_models(folder / "models", one_of(objects, "ConfigMap")["data"])
        server = Server(arguments_of(flags, folder))
        self.assertTrue(server.metrics, f"{name}: the server did not start")
        return server, flags

    def call(self, server, command, *arguments):
        """(exit status, what ropectl says)."""
        done = subprocess.run(
            [BUILD / "bin/ropectl", command, f"--target={server.address[0]}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def test_servers_start_answer_their_probes_and_end(self):
        for name in overlays():
            with self.subTest(name):
                server, flags = self.start(name)
                with server:
                    self.check_serving(server)
                    if flags.has("drain_lead"):
                        self.check_lead(server)
                    self.assertEqual(server.stop(), 0)

    def check_serving(self, server):
        for path in set(rules.PATHS.values()):
            self.assertEqual(server.get(path)[0], 200, path)
        (adapter,) = example("prometheus_adapter.yaml")
        for rule in adapter["rules"]:
            for series in re.findall(r"(?:rope|grpc_server)_\w+", rule["metricsQuery"]):
                self.assertIn(f"\n{series}{{", server.get("/metrics")[1])
        self.assertEqual(self.call(server, "health"), (0, "SERVING\n"))
        self.assertIn("example-8b", self.call(server, "models")[1])

    def check_lead(self, server):
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + LIMIT_S
        while server.get("/readyz")[0] != 503:
            self.assertLess(time.monotonic(), deadline, "still ready after SIGTERM")
        self.assertEqual(server.get("/livez")[0], 200)

    def test_models_have_no_findings(self):
        for path in (FOLDER / "models").glob("*.json"):
            output_of(BUILD / "bin/ropectl", "lint", path, "--fail_on=warning")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
