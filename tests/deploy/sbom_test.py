#!/usr/bin/env python3
"""deploy/sbom.py: the bill of materials of a pack, and of a root folder as an image has it, made of
this machine's dpkg and the built programs.

Usage: sbom_test.py BUILD_FOLDER. Needs dpkg. Where ROPE_SPDX_PYTHON names a Python with the package
spdx-tools, that package validates both.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path()  # set by main
PROGRAMS = ("rope_server", "ropectl")
EPOCH = "1700000000"
STATUS = pathlib.Path("/var/lib/dpkg/status")
VALIDATE = """
import sys
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
for problem in validate_full_spdx_document(parse_file(sys.argv[1])):
    print(problem.validation_message, problem.context)
"""


def sbom(folder, epoch=EPOCH):
    return subprocess.run([sys.executable, "-B", ROOT / "deploy/sbom.py", folder], text=True,
                          env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, capture_output=True,
                          check=False)


def needed_packages():
    """{name: version} of the packages that own what ldd says, by dpkg's lists of files."""
    listing = subprocess.run(["ldd", *(BUILD / "bin" / name for name in PROGRAMS)],
                             capture_output=True, text=True, check=True).stdout
    libraries = {re.sub("^/usr/", "/", path) for path in re.findall(r"=> (/\S+)", listing)}
    found = set()
    for path in pathlib.Path("/var/lib/dpkg/info").glob("*.list"):
        if libraries & {re.sub("^/usr/", "/", line) for line in path.read_text().splitlines()}:
            found.add(path.stem.partition(":")[0])
    versions = re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)$", STATUS.read_text(),
                          re.MULTILINE)
    return {name: version for name, version in versions if name in found}


class SbomTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.pack = pathlib.Path(temporary.name, "pack")
        subprocess.run([ROOT / "deploy/pack.sh", f"--build={BUILD}", cls.pack, *PROGRAMS],
                       stdout=subprocess.DEVNULL, check=True)
        cls.image = pathlib.Path(temporary.name, "image")
        for part in ("var/lib/dpkg", "usr/lib", "usr/local/bin", "usr/local/share/rope"):
            (cls.image / part).mkdir(parents=True)
        shutil.copy(STATUS, cls.image / "var/lib/dpkg")
        shutil.copy("/usr/lib/os-release", cls.image / "usr/lib")
        shutil.copy(cls.pack / "share/rope/packages", cls.image / "usr/local/share/rope")
        for name in PROGRAMS:
            shutil.copy(BUILD / "bin" / name, cls.image / "usr/local/bin")

    def documents(self):
        for folder in (self.pack, self.image):
            made = sbom(folder)
            self.assertEqual(made.stderr, "")
            yield folder, json.loads(made.stdout)

    def related(self, document, kind):
        return {one["relatedSpdxElement"] for one in document["relationships"]
                if (one["spdxElementId"], one["relationshipType"]) == ("SPDXRef-RopeServe", kind)}

    def versions(self, document, kind):
        """{name: version} of the packages that RopeServe relates to so."""
        related = self.related(document, kind)
        return {package["name"]: package["versionInfo"] for package in document["packages"]
                if package["SPDXID"] in related}

    def test_every_package_that_ldd_needs_is_in_it_with_its_version(self):
        needed = needed_packages()
        self.assertIn("libc6", needed)
        for folder, document in self.documents():
            with self.subTest(folder.name):
                self.assertEqual(self.versions(document, "DYNAMIC_LINK"), needed)

    def test_code_that_is_compiled_in_is_named(self):
        for folder, document in self.documents():
            with self.subTest(folder.name):
                self.assertEqual(
                    set(self.versions(document, "STATIC_LINK")),
                    {"libabsl-dev", "libcli11-dev", "libspdlog-dev", "nlohmann-json3-dev"})

    def test_an_image_has_every_installed_package(self):
        known = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"],
                               capture_output=True, text=True, check=True).stdout
        document = json.loads(sbom(self.image).stdout)
        got = {package["name"] for package in document["packages"]} - {"RopeServe"}
        self.assertEqual(got, set(re.findall(r"^installed (\S+)$", known, re.MULTILINE)))

    def test_version_and_files_are_those_of_the_programs(self):
        version = subprocess.run([BUILD / "bin/ropectl", "--version"], capture_output=True,
                                 text=True, check=True).stdout.split()[1]
        for folder, document in self.documents():
            with self.subTest(folder.name):
                own = document["packages"][0]
                self.assertEqual((own["name"], own["versionInfo"], own["licenseDeclared"]),
                                 ("RopeServe", version, "Apache-2.0"))
                self.check_files(folder, document, own)

    def check_files(self, folder, document, own):
        ours, sums = self.related(document, "CONTAINS"), []
        for file in document["files"]:
            content = (folder / file["fileName"]).read_bytes()
            got = {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
            self.assertEqual(got, {"SHA1": hashlib.sha1(content).hexdigest(),
                                   "SHA256": hashlib.sha256(content).hexdigest()})
            if file["SPDXID"] in ours:
                self.assertEqual(file["licenseConcluded"], "Apache-2.0")
                self.assertNotRegex(file["fileName"], r"\.so|loader|licences")
                sums.append(got["SHA1"])
        names = {pathlib.Path(file["fileName"]).name for file in document["files"]}
        self.assertLessEqual({*PROGRAMS, "packages"}, names)
        self.assertEqual(own["packageVerificationCode"]["packageVerificationCodeValue"],
                         hashlib.sha1("".join(sorted(sums)).encode()).hexdigest())

    def test_equal_contents_and_time_give_equal_bytes(self):
        first, again = sbom(self.image).stdout, sbom(self.image).stdout
        self.assertEqual(first, again)
        self.assertEqual(json.loads(first)["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        later = json.loads(sbom(self.image, "1700000001").stdout)
        self.assertNotEqual(later["documentNamespace"], json.loads(first)["documentNamespace"])

    def test_a_linked_package_that_the_image_lacks_is_an_error(self):
        status = self.image / "var/lib/dpkg/status"
        text = status.read_text()
        self.addCleanup(status.write_text, text)
        status.write_text(text.replace("Package: libc6\n", "Package: libc5\n"))
        made = sbom(self.image)
        self.assertEqual((made.returncode, made.stdout), (1, ""))
        self.assertIn("libc6: is linked, and is not installed", made.stderr)

    def test_a_folder_without_the_list_is_an_error(self):
        made = sbom(ROOT / "deploy")
        self.assertEqual(made.returncode, 1)
        self.assertIn("share/rope/packages", made.stderr)

    def test_spdx_tools_finds_nothing(self):
        python = os.environ.get("ROPE_SPDX_PYTHON")
        if not python:
            self.skipTest("ROPE_SPDX_PYTHON names no Python with spdx-tools")
        for folder, document in self.documents():
            with self.subTest(folder.name), tempfile.TemporaryDirectory() as temporary:
                path = pathlib.Path(temporary, "made.spdx.json")
                path.write_text(json.dumps(document))
                done = subprocess.run([python, "-c", VALIDATE, path], capture_output=True,
                                      text=True, check=False)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if not STATUS.is_file():
        print("skipped: dpkg is not here")
        sys.exit(77)
    unittest.main()
