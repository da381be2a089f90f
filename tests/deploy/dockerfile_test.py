#!/usr/bin/env python3
"""Checks the rules of the Dockerfile that need no engine, and that each rule detects a violation.

Needs only Python. deploy/docker_test.sh checks the rest on an engine.
"""
import json
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The labels of an image and the build arguments of their values; None: a text.
LABELS = {"title": None, "description": None, "licenses": None, "version": "VERSION",
          "revision": "REVISION", "created": "CREATED", "source": "SOURCE",
          "base.name": "RUNTIME_IMAGE"}
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
                "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
# Syntax that the builders of 2020 do not support, or only some of them.
NEWER = re.compile(r"<<-?[\"']?[A-Z]|--(mount|link|chmod|network|security|parents|exclude)\b")
LISTENS = ["--listen=0.0.0.0:50051", "--insecure_listen", "--metrics_listen=0.0.0.0:9464"]


def instructions_of(text):
    """[(instruction, rest)], with comments removed and lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.strip().split(None, 1)) for line in joined.splitlines()]


def exec_form(rest):
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    return words if isinstance(words, list) else None


class Stage:
    def __init__(self, image, name):
        self.image = image
        self.name = name
        self.instructions = []

    def last(self, instruction):
        found = [rest for name, rest in self.instructions if name == instruction]
        return found[-1] if found else ""


def stages_of(instructions):
    arguments, stages = {}, []
    for name, rest in instructions:
        if name == "FROM":
            image, _, alias = rest.partition(" AS ")
            image = re.sub(r"\$\{(\w+)\}", lambda found: arguments.get(found[1], ""), image)
            stages.append(Stage(image, alias))
        elif stages:
            stages[-1].instructions.append((name, rest))
        elif name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
    return stages


def text_problems(text):
    if re.search(r"^#\s*(syntax|escape)\s*=", text, re.MULTILINE | re.IGNORECASE):
        yield "a parser directive"
    for name, rest in instructions_of(text):
        if name not in INSTRUCTIONS:
            yield f"{name}: not one of {sorted(INSTRUCTIONS)}"
        if found := NEWER.search(rest):
            yield f"{name}: {found[0]} is newer than 2020"
        command = rest.partition("CMD ")[2] if name == "HEALTHCHECK" else rest
        if name in ("CMD", "ENTRYPOINT", "HEALTHCHECK") and exec_form(command) is None:
            yield f"{name}: not in exec form"
        if name == "FROM" and not rest.startswith("${") and ":" in rest:
            yield f"FROM {rest}: want an argument"


def stage_problems(stages):
    by_name = {stage.name: stage for stage in stages}
    for stage in stages:
        if stage.image not in by_name and not re.fullmatch(r"[\w./-]+:[\w.-]+", stage.image):
            yield f"FROM: got {stage.image}, want NAME:TAG without a digest"
        if stage.image.endswith(":latest"):
            yield "FROM: the tag latest"
    if stages[-1].image != "runtime" or stages[-1].instructions:
        yield "the last stage is not the runtime"
    programs = by_name["programs"]
    yield from label_problems(programs)
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", programs.last("USER")):
        yield f"USER: got {programs.last('USER')}, want numbers that are not root's"
    if programs.last("STOPSIGNAL") != "SIGTERM":
        yield "STOPSIGNAL: want SIGTERM"
    if '["/usr/local/bin/ropectl", "health"' not in programs.last("HEALTHCHECK"):
        yield "HEALTHCHECK: want ropectl health"
    for device, flags in (("cpu", LISTENS), ("cuda", LISTENS + ["--device=cuda"])):
        if exec_form(by_name[device].last("ENTRYPOINT")) != ["/usr/local/bin/rope_server"] + flags:
            yield f"ENTRYPOINT of {device}: want rope_server {flags}"


def label_problems(programs):
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]+)"',
                             programs.last("LABEL")))
    arguments = {rest.partition("=")[0] for name, rest in programs.instructions if name == "ARG"}
    for name in sorted(LABELS.keys() ^ labels.keys()):
        yield f"LABEL {name}: want {sorted(LABELS)}"
    for name, argument in LABELS.items():
        if argument and labels.get(name) != f"${{{argument}}}":
            yield f"LABEL {name}: got {labels.get(name)}, want ${{{argument}}}"
        if argument and argument not in arguments:
            yield f"LABEL {name}: no ARG {argument} in this stage"


def package_problems(text):
    """deploy/sbom.py reads the list of packages, and apt installs those that are linked."""
    for line in ("deploy/list_packages.sh /programs/rope_server /programs/ropectl >packages",
                 "COPY --from=build /source/packages /usr/local/share/rope/"):
        if line not in text:
            yield f"the list of packages: want {line}"
    command = re.search(r"install -y --no-install-recommends \\\n +\$\((.+)\)", text)
    lines = ("program ropectl 0.9.0\nlinked libc6 2.36-9 amd64 glibc debian-12\n"
             "linked libgrpc++1.51 1.51.1-3+b1 amd64 grpc debian-12\n"
             "compiled libabsl-dev 20220623.1-1 amd64 abseil debian-12\n")
    chosen = command[1].replace("/usr/local/share/rope/packages", "-") if command else "true"
    names = subprocess.run(["sh", "-c", chosen], input=lines, capture_output=True, text=True,
                           check=False).stdout.split()
    if names != ["libc6", "libgrpc++1.51"]:
        yield f"apt-get install: of {lines!r} it takes {names}"


def context_problems(stages, ignore):
    admitted = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
    for stage in stages:
        for name, rest in stage.instructions:
            if name != "COPY" or rest.startswith("--from"):
                continue
            for source in rest.split()[:-1]:
                if not (ROOT / source).exists():
                    yield f"COPY {source}: not there"
                if source.split("/")[0] not in admitted:
                    yield f"COPY {source}: .dockerignore keeps it out"


def problems(text, ignore, cmake, compose_gpu):
    """Describes each violation of a rule."""
    stages = stages_of(instructions_of(text))
    found = [*text_problems(text), *stage_problems(stages), *context_problems(stages, ignore),
             *package_problems(text)]
    version = re.search(r"project\(\w+ VERSION ([\d.]+)", cmake)[1]
    if f"ARG VERSION={version}\n" not in text:
        found.append(f"VERSION: want that of CMakeLists.txt, {version}")
    for argument, value in re.findall(r"^ +([A-Z_]+): (\S+)", compose_gpu, re.MULTILINE):
        if f"--build-arg {argument}={value}" not in text:
            found.append(f"{argument}={value} of compose.gpu.yaml: not what Dockerfile says")
    return found


class DockerfileTest(unittest.TestCase):
    def setUp(self):
        self.files = [(ROOT / name).read_text() for name in (
            "Dockerfile", ".dockerignore", "CMakeLists.txt", "deploy/compose.gpu.yaml")]

    def test_breaks_no_rule(self):
        self.assertEqual(problems(*self.files), [])

    def test_each_rule_notices(self):
        for old, new, want in (
                ("# rope_server and", "# syntax=docker/dockerfile:1\n# and", "directive"),
                ("COPY proto proto", "ADD proto proto", "ADD"),
                ("COPY proto proto", "COPY --link proto proto", "newer"),
                ("COPY proto proto", "COPY --chmod=755 proto proto", "newer"),
                ("RUN mkdir", "RUN --mount=type=cache,target=/x mkdir", "newer"),
                ("RUN mkdir", "RUN <<EOF\nmkdir", "newer"),
                ("COPY proto proto", "COPY nothing proto", "not there"),
                ("COPY proto proto", "COPY README.md proto", "keeps it out"),
                ("CMD []", "CMD --help", "CMD: not in exec form"),
                ("ENTRYPOINT [", "ENTRYPOINT exec [", "ENTRYPOINT: not in exec form"),
                ('CMD ["/usr/local/bin/ropectl"', "CMD ropectl health #", "HEALTHCHECK"),
                ("RUNTIME_IMAGE=debian:bookworm-slim", "RUNTIME_IMAGE=debian@sha256:0a", "digest"),
                ("RUNTIME_IMAGE=debian:bookworm-slim", "RUNTIME_IMAGE=debian:latest", "latest"),
                ("FROM ${RUNTIME_IMAGE}", "FROM debian:bookworm", "want an argument"),
                ("USER 65532:65532", "USER root", "USER"),
                ("USER 65532:65532", "USER 0:0", "USER"),
                ("STOPSIGNAL SIGTERM", "STOPSIGNAL SIGKILL", "STOPSIGNAL"),
                (', "--device=cuda"]', "]", "ENTRYPOINT of cuda"),
                ("--listen=0.0.0.0", "--listen=127.0.0.1", "ENTRYPOINT of cpu"),
                ("\nFROM runtime\n", "\n", "the last stage"),
                ("ARG VERSION=", "ARG VERSION=9.", "VERSION"),
                ('created="${CREATED}"', 'created="today"', "LABEL created: got today"),
                ("ARG SOURCE=unknown\n", "", "LABEL source: no ARG SOURCE"),
                ("image.licenses=", "image.license=", "LABEL licenses: want"),
                (">packages", ">/dev/null", "the list of packages"),
                ("/source/packages /usr/local/share/rope/", "/source/packages /tmp/",
                 "/usr/local/share/rope/"),
                ("s/^linked ", "s/^compiled ", "it takes ['libabsl-dev']"),
                ("--build-arg DEVICE=cuda", "--build-arg DEVICE=gpu", "compose.gpu.yaml")):
            with self.subTest(new=new):
                text = self.files[0].replace(old, new, 1)
                self.assertNotEqual(text, self.files[0])
                found = problems(text, *self.files[1:])
                self.assertTrue([line for line in found if want in line], found)


if __name__ == "__main__":
    unittest.main()
