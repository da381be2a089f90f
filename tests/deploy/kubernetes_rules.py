"""The rules of deploy/kubernetes, as functions of rendered objects. Each yields what is wrong."""

import re

GIB = 1 << 30
SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": GIB}
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
PORTS = {"grpc": 50051, "metrics": 9464}
# What a drain takes beside --drain_lead and --drain_timeout (server/README.md, "Drain").
DRAIN_END_S = 2
# What a CUDA context takes beside --memory_bytes (server/README.md, "Devices").
GPU_BYTES = 256 << 20
USER = 65532
PATHS = {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}


def size(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]iB?)?", str(text)).groups()
    return int(number) * SIZES[unit or ""]


def seconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(ms|s|m|h)", text).groups()
    return float(number) * SECONDS[unit]


def of_kind(objects, *kinds):
    return [one for one in objects if one["kind"] in kinds]


def templates(objects):
    """The pods that the objects make: [(object, labels, spec)]."""
    return [
        (one, one["spec"]["template"]["metadata"]["labels"], one["spec"]["template"]["spec"])
        for one in of_kind(objects, "Deployment")
    ]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def is_server(container):
    return container.get("command") == ["/usr/local/bin/rope_server"]


class Flags:
    """The flags of a server's container, from its arguments and its ROPE_ variables."""

    def __init__(self, container):
        self.all = []  # [(name, value)]; a switch has the value ""
        self.bad = []
        for argument in container.get("args", ()):
            if found := re.fullmatch(r"--(\w+)(?:=(.+))?", argument):
                self.all.append((found[1], found[2] or ""))
            else:
                self.bad.append(argument)
        for variable in container.get("env", ()):
            if variable["name"].startswith("ROPE_"):
                self.all.append((variable["name"][5:].lower(), variable["value"]))

    def get(self, name, default=None):
        return next((value for flag, value in self.all if flag == name), default)

    def has(self, name):
        return self.get(name) is not None

    def tcp(self):
        listens = [value for flag, value in self.all if flag == "listen"]
        return [value for value in listens if not value.startswith("unix:")]

    def sockets(self):
        listens = [value for flag, value in self.all if flag == "listen"]
        return [value[5:] for value in listens if value.startswith("unix:")]


def servers(objects):
    """[(object, pod spec, container, flags)] of every server."""
    return [
        (one, spec, container, Flags(container))
        for one, _, spec in templates(objects)
        for container in containers(spec)
        if is_server(container)
    ]


def name_of(one):
    return f"{one['kind']} {one['metadata']['name']}"


def flag_problems(objects, known):
    """`known`: the flags of rope_server --help."""
    for one, _, _, flags in servers(objects):
        for argument in flags.bad:
            yield f"{name_of(one)}: {argument}: want --NAME or --NAME=VALUE"
        for name, _ in flags.all:
            if name not in known:
                yield f"{name_of(one)}: --{name}: rope_server does not know it"
        is_wide = any(not address.startswith("127.") for address in flags.tcp())
        if is_wide and not flags.has("insecure_listen"):
            yield f"{name_of(one)}: want --insecure_listen"
    if not servers(objects):
        yield "no container runs rope_server"


def mount_of(container, path):
    mounts = container.get("volumeMounts", ())
    return next((m for m in mounts if f"{path}/".startswith(m["mountPath"] + "/")), None)








def drain_problems(objects):
    for one, spec, _, flags in servers(objects):
        lead = seconds(flags.get("drain_lead", "0s"))
        timeout = seconds(flags.get("drain_timeout", "10s"))
        want = lead + 2 * timeout + DRAIN_END_S
        got = spec.get("terminationGracePeriodSeconds", 30)
        if got < want:
            yield f"{name_of(one)}: {got} s of grace, a drain takes up to {want:g}"
        if "grpc" in [p["name"] for c in containers(spec) for p in c.get("ports", ())] and not lead:
            yield f"{name_of(one)}: no --drain_lead: clients hear of the end too late"


def resource_problems(objects):
    for one, _, container, flags in servers(objects):
        where, resources = name_of(one), container["resources"]
        limits, requests = resources["limits"], resources["requests"]
        if any(requests[name] != limits[name] for name in ("cpu", "memory")):
            yield f"{where}: requests are not the limits"
        if not limits["cpu"].isdigit():
            yield f"{where}: cpu: got {limits['cpu']}, want whole processors"
        memory = size(flags.get("memory_bytes", "0"))
        is_cuda = flags.get("device") == "cuda"
        if is_cuda != ("nvidia.com/gpu" in limits):
            yield f"{where}: a GPU and device=cuda, or neither"
        shared = size(flags.get("shared_memory_bytes", "0"))
        want = max(memory * 4 // 3, memory * 11 // 10 + shared) + (GPU_BYTES if is_cuda else 0)
        if not 0 < want <= size(limits["memory"]):
            yield f"{where}: {limits['memory']} of memory, the flags want {want / GIB:.2f}Gi"


def security_problems(objects):
    for one, _, spec in templates(objects):
        where, pod = name_of(one), spec.get("securityContext", {})
        if not pod.get("runAsNonRoot") or not pod.get("runAsUser") or not pod.get("runAsGroup"):
            yield f"{where}: the pod may run as root"
        if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{where}: seccomp is not RuntimeDefault"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{where}: a token of the cluster is mounted"
        if spec.get("enableServiceLinks") is not False:
            yield f"{where}: Services set variables that begin with ROPE_"
        for container in containers(spec):
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False:
                yield f"{where}: {container['name']}: may escalate privileges"
            if not own.get("readOnlyRootFilesystem"):
                yield f"{where}: {container['name']}: writes to its root"
            if own.get("capabilities", {}).get("drop") != ["ALL"]:
                yield f"{where}: {container['name']}: keeps capabilities"
            if is_server(container) and ("runAsUser" in own or pod.get("runAsUser") != USER):
                yield f"{where}: {container['name']}: want user {USER}"
    for one in of_kind(objects, "ServiceAccount"):
        if one.get("automountServiceAccountToken") is not False:
            yield f"{name_of(one)}: mounts a token"




def image_problems(objects, version):
    for one, _, spec in templates(objects):
        for container in containers(spec):
            name, _, tag = container["image"].rpartition(":")
            if name == "rope-server" and tag.split("-")[0] != version or not name:
                yield f"{name_of(one)}: {container['image']}: want rope-server:{version}"


def problems(objects, known, version):
    return [
        *flag_problems(objects, known),
        *drain_problems(objects),
        *resource_problems(objects),
        *security_problems(objects),
        *image_problems(objects, version),
    ]
