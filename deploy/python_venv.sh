#!/usr/bin/env bash
# Makes a virtual environment with the packages of PyPI that a file of requirements names, unless it
# is there; prints its Python.
# Usage: deploy/python_venv.sh FOLDER REQUIREMENTS
set -euo pipefail

readonly venv=$1 wanted=$2

if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv" >&2
  PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$venv/bin/pip" install -q --retries 1 -r "$wanted" >&2 </dev/null
  cp "$wanted" "$venv/requirements.txt"
fi
echo "$venv/bin/python"
