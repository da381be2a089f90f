#!/usr/bin/env bash
# Writes the wheel ropeserve-tools: ropectl and rope_server, packed by deploy/pack.sh with the
# libraries and the loader that they need, so that `pip install` is all that another machine does.
# Usage: deploy/wheel.sh [--build=DIR] FOLDER
#   writes FOLDER/ropeserve_tools-VERSION-py3-none-manylinux2014_ARCHITECTURE.whl; prints its path
# The tag promises Linux with a C library of 2014 or newer. The programs bring their own, and need
# Linux 3.2 or newer and /bin/sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
if [[ $# != 1 || $1 == -* ]]; then
  echo "wheel: got arguments '$*', want [--build=DIR] FOLDER" >&2
  exit 2
fi
readonly folder=$1

packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
"$here/pack.sh" "--build=$build" "$packed" ropectl rope_server >&2
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
mkdir -p "$folder"
python3 "$here/write_wheel.py" "$packed" "$version" "manylinux2014_$(uname -m)" "$folder"
