#!/usr/bin/env bash
# librope.so exports the functions that client/include/rope/rope.h declares, and nothing else.
# Usage: tests/unit/client/c/exports_test.sh LIBROPE.so
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."

readonly library=$1

fail() {
  echo "exports_test: $*" >&2
  exit 1
}

# differences A B: lines of one that the other lacks.
differences() { comm -3 <(sort -u <<<"$1") <(sort -u <<<"$2"); }

declared=$(sed 's|//.*||' client/include/rope/rope.h |
  grep -oE '\brope_[a-z0-9_]+\(' | tr -d '(')
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
[[ $exported == *rope_connect* ]] || fail "nm finds no rope_connect in $library"
other=$(differences "$declared" "$exported")
[[ -z $other ]] || fail "rope.h (left) and $library (right) differ: $other"
[[ $(readelf -d "$library") =~ soname:\ \[librope\.so\.0\] ]] ||
  fail "want the soname librope.so.0, which is frozen with the ABI"
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
objcopy --strip-unneeded "$library" "$stripped"
bytes=$(stat -c %s "$stripped")
echo "$(wc -l <<<"$declared") names, $((bytes / 1024)) KiB stripped"
