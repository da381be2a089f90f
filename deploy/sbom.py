#!/usr/bin/env python3
"""Prints a bill of materials, SPDX 2.3 in JSON, of an image's root folder or of a pack.

Usage: sbom.py FOLDER >FILE.spdx.json
FOLDER: what `docker export` gives of the image, unpacked, or what deploy/pack.sh wrote. Both hold
the lines of deploy/list_packages.sh (share/rope/packages). Of an image every package of its dpkg
is listed, with the version that is installed; of a pack those whose libraries are packed. Files of
ours have their checksums. SOURCE_DATE_EPOCH is the time of creation; without it, it is now.
Needs only Python.
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import sys
import urllib.parse
import uuid

LICENCE = "Apache-2.0"
OWN = "SPDXRef-RopeServe"
DOCUMENT = "SPDXRef-DOCUMENT"
UNKNOWN = "NOASSERTION"
# How RopeServe relates to what list_packages.sh calls so.
RELATIONS = {"linked": "DYNAMIC_LINK", "compiled": "STATIC_LINK"}


class SbomError(Exception):
    pass


class Package:
    """A package of the distribution."""

    def __init__(self, name, version, architecture, source, distribution):
        self.name, self.version, self.architecture = name, version, architecture
        self.source, self.distribution = source, distribution
        self.id = "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.]", "-", f"{name}-{architecture}")

    def as_spdx(self):
        vendor = self.distribution.partition("-")[0]
        name, version = urllib.parse.quote(self.name), urllib.parse.quote(self.version, ":")
        purl = (f"pkg:deb/{vendor}/{name}@{version}?arch={self.architecture}"
                f"&distro={self.distribution}")
        return {**element(self.name, self.id, self.version, vendor, purl),
                "sourceInfo": f"source package: {self.source}", "filesAnalyzed": False,
                "licenseDeclared": UNKNOWN, "primaryPackagePurpose": "LIBRARY"}


def element(name, identifier, version, supplier, purl):
    return {"name": name, "SPDXID": identifier, "versionInfo": version,
            "supplier": f"Organization: {supplier}", "downloadLocation": UNKNOWN,
            "licenseConcluded": UNKNOWN, "copyrightText": UNKNOWN,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": purl}]}


def read_list(path):
    """[(how, Package)] and the version of the programs."""
    packages, versions = [], set()
    for line in path.read_text().splitlines():
        how, name, *rest = line.split()
        if how == "program":
            versions.add(rest[0])
        else:
            packages.append((how, Package(name, *rest)))
    if len(versions) != 1:
        raise SbomError(f"{path}: got versions {sorted(versions)}, want one")
    return packages, versions.pop()


def installed(root):
    """[Package] of dpkg, of a root folder."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)',
                              (root / "usr/lib/os-release").read_text(), re.MULTILINE))
    distribution = f"{release['ID']}-{release.get('VERSION_ID', '')}"
    packages = []
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): *(.*)", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            source = fields.get("Source", fields["Package"]).split()[0]
            packages.append(Package(fields["Package"], fields["Version"], fields["Architecture"],
                                    source, distribution))
    return packages


def files_of(folder, part):
    """[(is ours, file of SPDX)]: what is below `part`, without links. Of a pack the libraries and
    the licences are others'."""
    found = []
    for path in sorted(part.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        inside = path.relative_to(folder).as_posix()
        theirs = re.fullmatch(r"lib/rope/[^/]+|share/rope/licences/.*", inside)
        found.append((not theirs, {
            "fileName": f"./{inside}", "SPDXID": f"SPDXRef-File-{len(found)}",
            "checksums": [{"algorithm": name.upper(), "checksumValue": digest(name, content)}
                          for name in ("sha1", "sha256")],
            "licenseConcluded": UNKNOWN if theirs else LICENCE, "copyrightText": UNKNOWN}))
    return found


def digest(algorithm, content):
    return hashlib.new(algorithm, content).hexdigest()


def own_package(version, files):
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    return {**element("RopeServe", OWN, version, "RopeServe maintainers",
                      f"pkg:generic/ropeserve@{version}"),
            "licenseDeclared": LICENCE, "licenseConcluded": LICENCE, "filesAnalyzed": True,
            "primaryPackagePurpose": "APPLICATION",
            "packageVerificationCode":
                {"packageVerificationCodeValue": digest("sha1", "".join(sums).encode())}}


def relation(source, kind, target):
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def packages_and_relations(listed, in_root):
    """[Package], and how RopeServe relates to each; of an image the linked ones are its own."""
    known = {package.name: package for package in in_root}
    found, relations = {package.id: package for package in in_root}, []
    for how, package in listed:
        if in_root and how == "linked":
            if package.name not in known:
                raise SbomError(f"{package.name}: is linked, and is not installed in the root")
            package = known[package.name]
        found[package.id] = package
        relations.append(relation(OWN, RELATIONS[how], package.id))
    related = {one["relatedSpdxElement"] for one in relations}
    relations += [relation(DOCUMENT, "DESCRIBES", name) for name in found if name not in related]
    return [found[name] for name in sorted(found)], relations


def sbom(folder):
    folder = pathlib.Path(folder)
    is_image = (folder / "var/lib/dpkg/status").is_file()
    part = folder / "usr/local" if is_image else folder
    listed, version = read_list(part / "share/rope/packages")
    packages, relations = packages_and_relations(listed, installed(folder) if is_image else [])
    files = files_of(folder, part)
    relations += [relation(OWN, "CONTAINS", file["SPDXID"]) if ours
                  else relation(DOCUMENT, "DESCRIBES", file["SPDXID"]) for ours, file in files]
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    time = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch \
        else datetime.datetime.now(datetime.timezone.utc)
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": DOCUMENT,
        "name": f"ropeserve-{version}-{'image' if is_image else 'pack'}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": [f"Tool: RopeServe-sbom.py-{version}"]},
        "packages": [own_package(version, [file for ours, file in files if ours]),
                     *(package.as_spdx() for package in packages)],
        "files": [file for _, file in files],
        "relationships": [relation(DOCUMENT, "DESCRIBES", OWN), *relations]}
    # Equal contents have one name, as SPDX wants it.
    document["documentNamespace"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document)).urn
    return document


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("sbom: want one argument, FOLDER")
    try:
        print(json.dumps(sbom(sys.argv[1]), indent=1))
    except (SbomError, OSError) as error:
        sys.exit(f"sbom: {error}")
