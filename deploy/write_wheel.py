#!/usr/bin/env python3
"""Writes a folder of deploy/pack.sh as the wheel ropeserve-tools; prints the wheel's path.

Usage: write_wheel.py PACKED VERSION PLATFORM FOLDER

A wheel is a zip file with three files of metadata, so this needs only Python. Packed bin/ becomes
scripts, the rest data: pip puts both below the environment's prefix, where a start script finds its
libraries as in PACKED. A start script is no Python program, so nothing starts before the program.
"""
import base64
import hashlib
import os
import pathlib
import sys
import zipfile

METADATA = """\
Metadata-Version: 2.1
Name: ropeserve-tools
Version: {version}
Summary: ropectl and rope_server: rotary position embeddings, checked and served exactly
License: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.7
Description-Content-Type: text/markdown

`ropectl lint config.json` checks the rotary embedding of a model and names the engines that read
it differently; `rope_server` rotates tensors over gRPC. The programs bring every library they need.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: deploy/wheel.sh
Root-Is-Purelib: false
Tag: {tag}
"""


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = ""

    def add(self, name, content, executable=False):
        info = zipfile.ZipInfo(name)  # of 1980, so that equal contents give equal wheels
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record += f"{name},sha256={digest},{len(content)}\n"

    def close(self, name):
        self.zip.writestr(zipfile.ZipInfo(name), self.record + f"{name},,\n")
        self.zip.close()


def main(packed, version, platform, folder):
    tag = f"py3-none-{platform}"
    name = f"ropeserve_tools-{version}"
    path = pathlib.Path(folder, f"{name}-{tag}.whl")
    wheel = Wheel(path)
    for file in sorted(file for file in pathlib.Path(packed).rglob("*") if file.is_file()):
        inside = file.relative_to(packed)
        is_script = inside.parts[0] == "bin"
        place = pathlib.Path("scripts", *inside.parts[1:]) if is_script else "data" / inside
        wheel.add(f"{name}.data/{place}", file.read_bytes(), os.access(file, os.X_OK))
    licence = pathlib.Path(__file__).resolve().parents[1] / "LICENSE"
    wheel.add(f"{name}.dist-info/LICENSE", licence.read_bytes())
    wheel.add(f"{name}.dist-info/METADATA", METADATA.format(version=version).encode())
    wheel.add(f"{name}.dist-info/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.close(f"{name}.dist-info/RECORD")
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
