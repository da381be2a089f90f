#!/usr/bin/env python3
"""What of the Dockerfile can break without an engine to notice. Needs only Python;
deploy/docker_test.sh checks the image: user, labels, signals, health, flags.
"""
import json
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
                "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
# Syntax that the builders of 2020 do not support, or only some of them.
NEWER = re.compile(r"<<-?[\"']?[A-Z]|--(mount|link|chmod|network|security|parents|exclude)\b")
SERVER = ["/usr/local/bin/rope_server", "--listen=0.0.0.0:50051", "--insecure_listen",
          "--metrics_listen=0.0.0.0:9464"]


def read(name):
    return (ROOT / name).read_text()


class DockerfileTest(unittest.TestCase):
    def setUp(self):
        self.text = read("Dockerfile")
        lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
        joined = re.sub(r"\\\n", " ", "\n".join(lines))
        self.instructions = [line.split(None, 1) for line in joined.splitlines()]

    def rests(self, *names):
        return [rest for name, rest in self.instructions if name in names]

    def test_builders_of_2020_read_it(self):
        self.assertNotRegex(self.text, r"(?im)^#\s*(syntax|escape)\s*=")
        for name, rest in self.instructions:
            with self.subTest(f"{name} {rest}"):
                self.assertIn(name, INSTRUCTIONS)
                self.assertNotRegex(rest, NEWER)

    def test_programs_start_without_a_shell_and_where_ports_reach_them(self):
        entries = [json.loads(rest) for rest in self.rests("ENTRYPOINT")]
        self.assertEqual(entries, [SERVER, [*SERVER, "--device=cuda"]])
        for rest in self.rests("CMD", "HEALTHCHECK"):
            json.loads(rest.rpartition("CMD ")[2])

    def test_images_are_arguments_and_the_default_is_the_runtime(self):
        for rest in self.rests("FROM"):
            self.assertNotIn(":", re.sub(r"\$\{\w+\}", "", rest))
        self.assertEqual(self.instructions[-1], ["FROM", "runtime"])

    def test_labels_take_their_values_from_arguments_of_their_stage(self):
        stage = self.text.partition(" AS programs\n")[2].partition("\nFROM ")[0]
        for name, argument in re.findall(r'\.([\w.]+)="\$\{(\w+)\}"', stage):
            self.assertRegex(stage, rf"(?m)^ARG {argument}\b", name)

    def test_copied_files_are_in_the_tree_and_not_kept_out(self):
        admitted = re.findall(r"^!(.+)", read(".dockerignore"), re.MULTILINE)
        for rest in self.rests("COPY"):
            for source in [] if rest.startswith("--from") else rest.split()[:-1]:
                self.assertTrue((ROOT / source).exists(), source)
                self.assertIn(source.split("/")[0], admitted)

    def test_linked_packages_of_the_list_are_installed(self):
        command = re.search(r"install -y --no-install-recommends \\\n +\$\((.+)\)", self.text)[1]
        lines = ("program ropectl 0.9.0\nlinked libc6 2.36-9 amd64 glibc debian-12\n"
                 "linked libgrpc++1.51 1.51.1-3+b1 amd64 grpc debian-12\n"
                 "compiled libabsl-dev 20220623.1-1 amd64 abseil debian-12\n")
        names = subprocess.run(
            ["sh", "-c", command.replace("/usr/local/share/rope/packages", "-")], input=lines,
            capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(names, ["libc6", "libgrpc++1.51"])

    def test_version_is_that_of_cmake_and_compose_builds_what_the_file_says(self):
        version = re.search(r"project\(\w+ VERSION ([\d.]+)", read("CMakeLists.txt"))[1]
        self.assertIn(f"\nARG VERSION={version}\n", self.text)
        for argument, value in re.findall(r"^ +([A-Z_]+): (\S+)", read("deploy/compose.gpu.yaml"),
                                          re.MULTILINE):
            self.assertIn(f"--build-arg {argument}={value}", self.text)


if __name__ == "__main__":
    unittest.main()
