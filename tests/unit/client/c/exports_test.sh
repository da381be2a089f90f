#!/usr/bin/env bash
# librope.so exports the names of client/c/exports.txt and no others; the headers declare them all.
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

want=$(cat client/c/exports.txt)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
[[ $exported == *rope_connect* ]] || fail "nm finds no rope_connect in $library"
other=$(differences "$want" "$exported")
[[ -z $other ]] || fail "exports.txt (left) and $library (right) differ: $other"
declared=$(sed 's|//.*||' client/include/rope/rope.h |
  grep -oE '\brope_[a-z0-9_]+\(' | tr -d '(')
other=$(differences "$want" "$declared")
[[ -z $other ]] || fail "exports.txt (left) and the headers (right) differ: $other"
[[ $(readelf -d "$library") =~ soname:\ \[librope\.so\.0\] ]] ||
  fail "want the soname librope.so.0, which is frozen with the ABI"
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
objcopy --strip-unneeded "$library" "$stripped"
bytes=$(stat -c %s "$stripped")
echo "$(wc -l <<<"$want") names, $((bytes / 1024)) KiB stripped"
