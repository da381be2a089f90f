#!/usr/bin/env bash
# Breaks production code in one place at a time, and expects that a test fails.
# Usage: tests/mutants/run.sh [--build=DIR] [NN...]      for example: tests/mutants/run.sh 07 21
#   DIR: default build/. A folder that is not there yet is made as that of tests/run.sh PROGRAM
#   NN: these mutants alone
# A mutant is a patch of this checkout. Its first line is "# PROGRAM FILTER: what breaks". Each is
# taken back, and at the end the programs are built without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "mutants: $*" >&2
  exit 2
}

build=build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
patches=()
for number in "$@"; do
  patches+=("$(compgen -G "tests/mutants/${number}_*.patch")") || fail "no mutant $number"
done
(($#)) || patches=(tests/mutants/*.patch)

options=(--tests)
[[ -f $build/build.ninja ]] || options+=(-DROPE_UNITY_BUILD=OFF)
mkdir -p "$build"
readonly log=$build/mutants.log

applied=
revert() {
  [[ -z $applied ]] || git apply -R "$applied"
  applied=
}
trap revert EXIT
trap 'exit 130' INT TERM

# Sets `verdict`. Only a test that fails kills: neither a build that fails, nor a filter without
# tests.
judge() {
  local program=$1 filter=$2
  verdict=SURVIVED
  if ! deploy/build.sh "--build=$build" "${options[@]}" "$program" >"$log" 2>&1; then
    verdict="DOES NOT BUILD"
    tail -n 20 "$log"
  elif ! timeout 300 "$build/tests/$program" "--gtest_filter=$filter" >"$log" 2>&1; then
    verdict=killed
  fi
}

status=0 programs=()
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  read -r _ program filter _ <"$patch"
  filter=${filter%:}
  mapfile -t files < <(git apply --numstat "$patch" | cut -f3)
  git diff --quiet HEAD -- "${files[@]}" || fail "changed, so $name is not applied: ${files[*]}"
  git apply "$patch" || fail "$name does not fit the code any more"
  applied=$patch
  judge "$program" "$filter"
  revert
  programs+=("$program")
  if [[ $verdict == killed ]]; then
    echo "killed ${name/_/ } by $program $filter"
  else
    echo "$verdict ${name/_/ }"
    status=1
  fi
done
deploy/build.sh "--build=$build" --tests "${programs[@]}" >"$log" 2>&1 || fail "no build: $log"
exit "$status"
