#!/usr/bin/env bash
# Configures a build folder if needed, and builds there.
# Usage: deploy/build.sh [--build=DIR] [--tests] [-DNAME=VALUE...] [TARGET...]
#   DIR: default build/, which all scripts share. Several sources of a library are compiled as one
#        there, in less than half the time. Who edits builds elsewhere: tests/run.sh PROGRAM
#   --tests: also builds tests and benchmarks
#   -DNAME=VALUE: a CMake option
#   TARGET: default the server, the client library and the tools
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
options=() all=(all)
if [[ ${1:-} == --tests ]]; then
  options+=(-DROPE_BUILD_TESTS=ON)
  all+=(tests/all benchmarks)
  shift
fi
while [[ ${1:-} == -D?* ]]; do
  options+=("$1")
  shift
done

# A configured folder keeps what it was told. It is configured again for an option that it lacks.
told() {
  local option
  for option in "${options[@]#-D}"; do
    sed -n 's/^\([A-Za-z_]*\):[A-Z]*=/\1=/p' "$build/CMakeCache.txt" |
      grep -xF "${option/:*=/=}" >/dev/null || return 1
  done
}
if [[ ! -f $build/build.ninja ]]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DROPE_BUILD_TESTS=OFF "${options[@]}"
elif ! told; then
  cmake -S . -B "$build" "${options[@]}"
fi

(($#)) || set -- "${all[@]}"
exec cmake --build "$build" --parallel "$(nproc)" --target "$@"
