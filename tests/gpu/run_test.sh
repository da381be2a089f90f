#!/usr/bin/env bash
# tests/gpu/run.sh on a machine without a GPU: one line, status 77, and nothing built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
  echo "run_test: $*" >&2
  exit 1
}

if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "skipped: this machine has a GPU; tests/gpu/run.sh is the test"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect STATUS LINE ARGUMENT...: checks the output and the exit status of run.sh.
expect() {
  local want_status=$1 want_line=$2 status=0
  shift 2
  ./run.sh "$@" >"$folder/output" 2>&1 || status=$?
  [[ $status == "$want_status" ]] || fail "got status $status, want $want_status: $*"
  [[ $(wc -l <"$folder/output") == 1 ]] || fail "got $(cat "$folder/output"), want one line"
  grep -qF -e "$want_line" "$folder/output" ||
    fail "got $(cat "$folder/output"), want $want_line"
}

expect 77 'no NVIDIA GPU' "--build=$folder/build" "--out=$folder/out"
expect 2 "got argument '--sideways'" --sideways
expect 2 "got argument '--out='" --out=
[[ ! -e $folder/build && ! -e $folder/out ]] || fail "folders were made without a GPU"
