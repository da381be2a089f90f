#!/usr/bin/env bash
# Configures (where needed) and builds in build/.
# Usage: deploy/build.sh [--tests] [TARGET...]      default target: everything that is configured
#   --tests: tests and benchmarks belong to the build; without it a fresh build folder has none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=
if [[ ${1:-} == --tests ]]; then
  tests=ON
  shift
fi

# A folder that was configured before keeps its generator, its build type and its tests.
if [[ ! -f build/build.ninja && ! -f build/Makefile ]]; then
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release "-DROPE_BUILD_TESTS=${tests:-OFF}"
elif [[ $tests ]] && ! grep -qx 'ROPE_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt; then
  cmake -S . -B build -DROPE_BUILD_TESTS=ON
fi

arguments=()
((!$#)) || arguments=(--target "$@")
exec cmake --build build --parallel "$(nproc)" "${arguments[@]}"
