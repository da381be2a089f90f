#!/usr/bin/env bash
# rope_bench_cuda without a device: one line, status 77, and no file.
# Usage: tests/gpu/bench_test.sh PATH_OF_rope_bench_cuda
set -euo pipefail

fail() {
  echo "bench_test: $*" >&2
  exit 1
}

if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "skipped: this machine has a GPU; tests/gpu/run.sh measures it"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

status=0
"$1" "--json_file=$folder/bench.json" >"$folder/output" 2>&1 || status=$?
[[ $status == 77 ]] || fail "got status $status, want 77"
[[ $(wc -l <"$folder/output") == 1 ]] || fail "got $(cat "$folder/output"), want one line"
grep -q '^rope_bench_cuda: no device (' "$folder/output" || fail "got $(cat "$folder/output")"
[[ ! -e $folder/bench.json ]] || fail "got a file of results, want none"

status=0
"$1" --sideways >"$folder/output" 2>&1 || status=$?
[[ $status == 2 ]] || fail "a flag that it does not know: got status $status, want 2"
grep -q '^usage: ' "$folder/output" || fail "got $(cat "$folder/output"), want the usage"
