#!/usr/bin/env bash
# Writes the wheel ropeserve-tools: ropectl and rope_server, packed by deploy/pack.sh with the
# libraries and the loader that they need, so that `pip install` is all that another machine does.
# Usage: deploy/wheel.sh [--build=DIR] FOLDER
#   writes FOLDER/ropeserve_tools-VERSION-py3-none-manylinux2014_ARCHITECTURE.whl; prints its path
# The tag promises Linux with a C library of 2014 or newer. The programs bring their own, and need
# Linux 3.2 or newer and /bin/sh.
set -euo pipefail

# shellcheck source=deploy/wheel_arguments.sh
source "$(dirname "${BASH_SOURCE[0]}")/wheel_arguments.sh"

packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
"$here/pack.sh" "--build=$build" "$packed" ropectl rope_server >&2
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
mkdir -p "$folder"
python3 "$here/write_wheel.py" "$packed" "$version" "manylinux2014_$(uname -m)" "$folder"
