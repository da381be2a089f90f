#!/usr/bin/env python3
"""deploy/kubernetes: the schemas of Kubernetes, the figures that depend on flags, and the servers
that the manifests start.

Usage: kubernetes_test.py BUILD_FOLDER. Needs a kubectl with kustomize 5, which renders them, and
kubernetes-validate of PyPI: ROPE_KUBERNETES_PYTHON names a Python that has it.
"""

import functools
import importlib.util
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

if importlib.util.find_spec("kubernetes_validate") is None:
    PYTHON = os.environ.pop("ROPE_KUBERNETES_PYTHON", "")
    if PYTHON:
        os.execv(PYTHON, [PYTHON, "-B", *sys.argv])
    print("skipped: kubernetes-validate is not here: set ROPE_KUBERNETES_PYTHON to a Python of it")
    sys.exit(77)

import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from rope_server import LIMIT_S, RopeServer  # noqa: E402

FOLDER = ROOT / "deploy/kubernetes"
EXAMPLES = FOLDER / "examples"
BUILD = pathlib.Path()  # set by main
NEWEST = "1.37"
# The oldest Kubernetes of README.md: sidecars and gRPC probes are there without a feature gate.
OLDEST = "1.29"
# Kinds of projects beside Kubernetes, which have no schema here.
CUSTOM = {"ServiceMonitor"}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "Ki": 1 << 10, "Mi": 1 << 20,
         "Gi": 1 << 30, "ms": 0.001, "s": 1, "m": 60, "h": 3600}
# What a drain takes beside --drain_lead and --drain_timeout (server/README.md, "Drain").
DRAIN_END_S = 2
# What a CUDA context takes beside --memory_bytes (server/README.md, "Devices").
GPU_BYTES = 256 << 20
# What the level `restricted` of Pod Security asks of a pod and of each container, and more.
RESTRICTED_POD = {"runAsNonRoot": True, "runAsUser": 65532,
                  "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
              "readOnlyRootFilesystem": True}


def overlays():
    return ["base", *sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir())]


def page():
    return (FOLDER / "README.md").read_text()


def output_of(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=LIMIT_S, check=True).stdout


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


@functools.cache
def render(name):
    """The objects of a folder."""
    return documents(output_of("kubectl", "kustomize", FOLDER / name))


def example(name):
    return documents((EXAMPLES / name).read_text())


def one_of(objects, kind):
    return next(one for one in objects if one["kind"] == kind)


def number(text):
    """A size in bytes or a duration in seconds."""
    digits, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", text).groups()
    return float(digits) * UNITS[unit]


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def server_of(objects):
    """(pod, container, flags) of the server: its arguments and ROPE_ variables; a switch is ""."""
    pod = one_of(objects, "Deployment")["spec"]["template"]["spec"]
    (server,) = [one for one in containers(pod) if one["image"].startswith("rope-server:")]
    flags = dict(argument[2:].partition("=")[::2] for argument in server["args"])
    for variable in server.get("env", ()):
        flags[variable["name"].removeprefix("ROPE_").lower()] = variable["value"]
    return pod, server, flags


class ManifestTest(unittest.TestCase):
    def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(self):
        rendered = [(name, one) for name in overlays() for one in render(name)]
        rendered += [
            (path.name, one)
            for path in sorted(EXAMPLES.iterdir())
            for one in example(path.name)
            if "kind" in one and one["kind"] not in CUSTOM
        ]
        self.assertGreater(len(rendered), 15)
        self.assertIn(f"Kubernetes {OLDEST}", page())
        for name, one in rendered:
            for release in (OLDEST, NEWEST):
                with self.subTest(f"{name} {one['kind']} {release}"):
                    kubernetes_validate.validate(one, release, strict=True)

    def test_grace_and_limits_have_room_for_what_the_flags_say(self):
        for name in overlays():
            pod, server, flags = server_of(render(name))
            lead = number(flags.get("drain_lead", "0s"))
            limits = server["resources"]["limits"]
            is_cuda = flags.get("device") == "cuda"
            memory = number(flags["memory_bytes"])
            shared = number(flags.get("shared_memory_bytes", "0"))
            want = max(memory * 4 / 3, memory * 1.1 + shared) + (GPU_BYTES if is_cuda else 0)
            with self.subTest(name):
                self.assertGreaterEqual(pod["terminationGracePeriodSeconds"],
                                        lead + 2 * number(flags["drain_timeout"]) + DRAIN_END_S)
                if "grpc" in [port["name"] for port in server["ports"]]:
                    self.assertGreater(lead, 0, "clients hear of the end too late")
                self.assertLessEqual(want, number(limits["memory"]))
                self.assertEqual(is_cuda, "nvidia.com/gpu" in limits)
                # Whole processors, and requests that are the limits.
                self.assertTrue(limits["cpu"].isdigit())
                self.assertLessEqual(server["resources"]["requests"].items(), limits.items())

    def test_pods_are_restricted_and_have_the_image_of_this_version(self):
        version = re.search(r"project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
        for name in overlays():
            pod, server, _ = server_of(render(name))
            with self.subTest(name):
                self.assertEqual(server["image"].partition(":")[2].partition("-")[0], version[1])
                self.assertIs(pod["enableServiceLinks"], False)
                self.assertIs(pod["automountServiceAccountToken"], False)
                self.assertLessEqual(RESTRICTED_POD.items(), pod["securityContext"].items())
                for container in containers(pod):
                    self.assertLessEqual(RESTRICTED.items(), container["securityContext"].items())

    def test_service_monitor_finds_the_metrics_ports(self):
        monitor = one_of(example("service_monitor.yaml"), "ServiceMonitor")
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (endpoint,) = monitor["spec"]["endpoints"]
        self.assertEqual(endpoint["path"], "/metrics")
        service = one_of(render("base"), "Service")
        self.assertLessEqual(wanted.items(), service["metadata"]["labels"].items())
        self.assertIn(endpoint["port"], [port["name"] for port in service["spec"]["ports"]])

    def test_engine_dials_the_socket_that_its_server_listens_on(self):
        pod, server, flags = server_of(render("overlays/sidecar"))
        (engine,) = pod["containers"]
        self.assertIn({"name": "ROPE_TARGET", "value": flags["listen"]}, engine["env"])
        for container in (server, engine):
            (mount,) = [one for one in container["volumeMounts"] if one["name"] == "socket"]
            self.assertEqual(f"unix:{mount['mountPath']}/rope.sock", flags["listen"])
        self.assertTrue(mount["readOnly"])

    def test_adapter_makes_the_metric_of_the_autoscaler_from_the_queue_time(self):
        scaler = one_of(render("base"), "HorizontalPodAutoscaler")
        (wanted,) = [m["pods"]["metric"]["name"] for m in scaler["spec"]["metrics"] if "pods" in m]
        (adapter,) = example("prometheus_adapter.yaml")
        made = {rule["name"]["as"]: rule["metricsQuery"] for rule in adapter["rules"]}
        for part in ("sum", "count"):
            self.assertIn(f'rope_request_stage_seconds_{part}{{stage="queue"', made[wanted])

    def test_commands_of_the_page_name_folders_and_files_of_the_tree(self):
        named = set(re.findall(r"(?:kubectl [^\n`]*?-[kf] |\.\./ropeserve/)(\S+)", page()))
        self.assertGreaterEqual(named, {f"deploy/kubernetes/{name}" for name in overlays()})
        self.assertEqual([path for path in named if not (ROOT / path).exists()], [])


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
    text = "\n".join(f"--{name}={value}" if value else f"--{name}" for name, value in flags.items())
    text = text.replace("/etc/rope", str(folder)).replace("/run/rope", str(folder))
    text = re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", text)
    return text.replace("device=cuda", "device=cpu").splitlines()


class ServerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def start(self, name):
        folder = self.folder / name.replace("/", "_")
        objects = render(name)
        _, _, flags = server_of(objects)
        write_models(folder / "models", one_of(objects, "ConfigMap")["data"])
        return RopeServer(BUILD / "bin/rope_server", *arguments_of(flags, folder)), flags

    def call(self, server, command, *arguments):
        """(exit status, what ropectl says)."""
        done = subprocess.run(
            [BUILD / "bin/ropectl", command, f"--target={server.address}", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
            check=False)
        return done.returncode, done.stdout

    def test_servers_start_answer_their_probes_and_end(self):
        for name in overlays():
            with self.subTest(name):
                server, flags = self.start(name)
                with server:
                    self.check_serving(server)
                    if "drain_lead" in flags:
                        self.check_lead(server)
                    self.assertEqual(server.stop(), 0)  # cuts --drain_lead short

    def check_serving(self, server):
        for path in ("/readyz", "/livez"):
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
    if not shutil.which("kubectl") or "Kustomize Version: v5" not in output_of(
            "kubectl", "version", "--client"):
        print("skipped: kubectl with kustomize 5 is not installed")
        sys.exit(77)
    unittest.main()
