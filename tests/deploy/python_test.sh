#!/usr/bin/env bash
# From an empty Python environment to what client/python/README.md shows: the wheels of
# deploy/python.sh are installed there, every block of the page runs, and uninstalling leaves
# nothing. The packages that they need come from PyPI; exits 77 where it is not reachable.
# Usage: tests/deploy/python_test.sh BUILD_FOLDER [PYTHON...]     by default python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly build=$1 bytes_max=$((14 * 1000 * 1000)) kernel_bytes_max=$((300 * 1000))
readonly packages=(numpy "nanobind-backend<2" ml_dtypes matplotlib)
pythons=("${@:2}")
((${#pythons[@]})) || pythons=(python3)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "python_test: $*" >&2
  exit 1
}

deploy/python.sh "--build=$build" "$folder/dist" >"$folder/wheels"
wheel=$(head -n 1 "$folder/wheels")
[[ $wheel == *-cp310-abi3-manylinux_2_35_*.whl ]] || fail "got the wheel $wheel"
bytes=$(stat -c %s "$wheel")
((bytes <= bytes_max)) || fail "got $bytes bytes, want at most $bytes_max"
kernels="without CUDA kernels" ptx=$build/kernels/cuda_ptx.ptx
if [[ -f $ptx ]]; then
  kernel_bytes=$(gzip -c "$ptx" | wc -c)
  ((kernel_bytes <= kernel_bytes_max)) || fail "got $kernel_bytes bytes of CUDA kernels"
  kernels="$kernel_bytes of them CUDA kernels"
fi

for python in "${pythons[@]}"; do
  venv=$folder/$(basename "$python")
  "$python" -m venv "$venv"
  find "$venv" ! -type d | sort >"$folder/before"
  timeout 150 "$venv/bin/pip" download -q --disable-pip-version-check --retries 1 --timeout 20 \
    -d "$folder/dist" "${packages[@]}" 2>"$folder/errors" || {
    echo "skipped: ${packages[*]}, which could not be fetched: $(tail -n 1 "$folder/errors")"
    exit 77
  }
  pip=("$venv/bin/pip" install -q --disable-pip-version-check --no-compile
    --no-index --find-links "$folder/dist")
  begin=$EPOCHREALTIME
  "${pip[@]}" ropeserve ml_dtypes
  "$venv/bin/python" -B tests/python/run_page.py client/python/README.md first
  echo "$("$venv/bin/python" --version): installed and rotated in" \
    "$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms"
  "${pip[@]}" "ropeserve[plot]"
  "$venv/bin/python" -B tests/python/run_page.py client/python/README.md
  "$venv/bin/python" -B tests/python/run_page.py client/python/DIAGNOSE.md first
  "$venv/bin/ropeserve" plot llama-3.1-8b "--output=$folder/plot.svg"
  "$venv/bin/pip" list --disable-pip-version-check --format=freeze | cut -d= -f1 |
    grep -vx -e pip -e setuptools |
    xargs "$venv/bin/pip" uninstall -q -y --disable-pip-version-check
  find "$venv" ! -type d | sort | diff "$folder/before" - || fail "uninstalling leaves files"
done
echo "the wheel has $bytes bytes, $kernels"
