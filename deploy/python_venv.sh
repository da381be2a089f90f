#!/usr/bin/env bash
# Makes the virtual environment that builds and tests the Python package, with the packages of PyPI
# that build_python.txt names, unless it is there; prints its Python.
# Usage: deploy/python_venv.sh BUILD_FOLDER
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly wanted=$here/build_python.txt venv=$1/python_venv

if ! cmp -s "$wanted" "$venv/build_python.txt"; then
  python3 -m venv --clear "$venv" >&2
  PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 timeout 240 \
    "$venv/bin/pip" install -q --retries 1 -r "$wanted" >&2 </dev/null
  cp "$wanted" "$venv"
fi
echo "$venv/bin/python"
