#!/usr/bin/env bash
# Compares the service with every rotary embedding of Hugging Face's transformers, module by module.
# Usage: tests/peers/run.sh [--configs=N] [--only=REGEX] [--write_golden] [-v]
# The packages of requirements.txt go into build/peers; torch brings 5 GB. Exit status: that of
# sweep.py; 77 if PyPI is not reachable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly venv=build/peers wanted=tests/peers/requirements.txt

mkdir -p build
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  echo "installing $wanted into $venv"
  python3 -m venv "$venv"
  if ! "$venv/bin/pip" install -q --retries 1 -r "$wanted"; then
    echo "skipped: the packages could not be fetched"
    exit 77
  fi
  cp "$wanted" "$venv/requirements.txt"
fi
deploy/build.sh
exec "$venv/bin/python" -B tests/peers/sweep.py "$@"
