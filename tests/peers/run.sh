#!/usr/bin/env bash
# Compares the service with every rotary embedding class of Hugging Face's transformers (sweep.py),
# then with every model that can be built small (model_sweep.py). With --speed it measures how fast
# PyTorch and ONNX Runtime do the same (../bench/peers.py).
# Usage: tests/peers/run.sh [--classes | --models] [--configs=N] [--only=REGEX] [-v]
#        tests/peers/run.sh --classes --write_golden [...]
#        tests/peers/run.sh --speed [--threads=N] [--tokens=1,64,4096] [--json_file=FILE] [--chunk]
# The packages of requirements.txt go into build/peers; torch brings 5 GB. Exit status: 0 if nothing
# is different; 77 if PyPI is not reachable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly venv=build/peers wanted=tests/peers/requirements.txt

mkdir -p build
if ! deploy/python_venv.sh "$venv" "$wanted" >/dev/null; then
  echo "skipped: the packages could not be fetched"
  exit 77
fi
if [[ ${1-} == --speed ]]; then
  # The wheel and librope.so need different copies of Protobuf; only the wheel brings one.
  deploy/python.sh build/dist
  "$venv/bin/pip" install -q --force-reinstall --no-deps build/dist/ropeserve-*.whl
  deploy/build.sh rope_c
  exec "$venv/bin/python" -B tests/bench/peers.py build "${@:2}"
fi
deploy/build.sh
case "${1-}" in
  --classes) sweeps=(sweep.py) && shift ;;
  --models) sweeps=(model_sweep.py) && shift ;;
  *) sweeps=(sweep.py model_sweep.py) ;;
esac
status=0
for sweep in "${sweeps[@]}"; do
  "$venv/bin/python" -B "tests/peers/$sweep" "$@" || status=1
done
exit "$status"
