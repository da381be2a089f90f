#!/usr/bin/env bash
# Writes two wheels: ropeserve, the Python package of client/python with every library that it needs
# but the C and C++ libraries, and ropeserve-tools (wheel.sh), which it depends on.
# Usage: deploy/python.sh [--build=DIR] FOLDER
#   writes FOLDER/ropeserve-VERSION-cp310-abi3-manylinux_2_35_ARCHITECTURE.whl and that of wheel.sh;
#   prints their paths. DIR: a build folder, by default build/; what is missing there is built.
# Missing packages of the distribution are installed, and those of PyPI in DIR/python_venv.
set -euo pipefail

# shellcheck source=deploy/wheel_arguments.sh
source "$(dirname "${BASH_SOURCE[0]}")/wheel_arguments.sh"
build=$(mkdir -p "$build" && cd "$build" && pwd)
"$here/install_dependencies.sh" --python >&2
python=$("$here/python_venv.sh" "$build/python_venv" "$here/build_python.txt")
readonly build python

"$here/build.sh" "--build=$build" -DROPE_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$python" \
  rope_python rope_server ropectl rope_protoset >&2

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
  "-Ccmake.define.ROPE_PYTHON_MODULE=$build/python/ropeserve/_core.abi3.so" \
  -w "$made" "$here/../client/python" >&2
mkdir -p "$folder"
PATH=${python%/*}:$PATH "$python" -m auditwheel repair --plat "manylinux_2_35_$(uname -m)" \
  -w "$made/repaired" "$made"/ropeserve-*.whl >&2
"$python" -B "$here/own_symbols.py" "$made"/repaired/*.whl "$folder"
"$here/wheel.sh" "--build=$build" "$folder"
