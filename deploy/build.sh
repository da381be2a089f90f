#!/usr/bin/env bash
# Configures build/ if needed, and builds there.
# Usage: deploy/build.sh [--tests] [-DNAME=VALUE...] [TARGET...]
#   --tests: also builds tests and benchmarks. Without it a new build folder has none, and compiles
#            several sources as one (ROPE_UNITY_BUILD)
#   -DNAME=VALUE: a CMake option
#   TARGET: default all configured targets
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=
if [[ ${1:-} == --tests ]]; then
  tests=ON
  shift
fi

options=()
while [[ ${1:-} == -D?* ]]; do
  options+=("$1")
  shift
done

# A configured folder keeps its generator, its build type and its tests.
if [[ ! -f build/build.ninja && ! -f build/Makefile ]]; then
  unity=ON
  [[ ! $tests ]] || unity=OFF
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release "-DROPE_BUILD_TESTS=${tests:-OFF}" \
    "-DROPE_UNITY_BUILD=$unity" "${options[@]}"
elif [[ $tests ]] && ! grep -qx 'ROPE_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt; then
  cmake -S . -B build -DROPE_BUILD_TESTS=ON "${options[@]}"
elif ((${#options[@]})); then
  cmake -S . -B build "${options[@]}"
fi

arguments=()
((!$#)) || arguments=(--target "$@")
exec cmake --build build --parallel "$(nproc)" "${arguments[@]}"
