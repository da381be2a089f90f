#!/usr/bin/env bash
# A project that adds this tree as a folder builds the client alone, gets a rotated tensor from a
# server of the build, looks for nothing that the client does not need, and installs nothing of it.
# Usage: tests/deploy/subproject_test.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/deploy/packed_server.sh
source tests/deploy/packed_server.sh
# shellcheck source=tests/deploy/consumer.sh
source tests/deploy/consumer.sh

readonly build=$1
# The same folder in every run, so that ccache knows the sources.
readonly project=$build/tests/subproject

become() { exec env -i "$build/bin/$1" "${@:2}"; }

options=()
! command -v ccache >/dev/null || options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
rm -rf "$project"
begin=$EPOCHREALTIME
write_project "$project" "add_subdirectory($PWD ropeserve)"
build_project "$project" "${options[@]}"
start_server
expect_rotated "$project/build/mine" "$target"
drain_server
echo "add_subdirectory: $(seconds_since "$begin") s from nothing to a rotated tensor"

made_by_cmake='CMakeCache.txt|CMakeFiles|cmake_install.cmake|build.ninja|\.ninja_.*|Makefile'
got=$(find "$project/build" -mindepth 1 -maxdepth 1 -printf '%f\n' | grep -vxE "$made_by_cmake" |
  sort | xargs)
[[ $got == 'mine ropeserve' ]] || fail "the build folder holds $got, want mine ropeserve"
foreign='CMAKE_CUDA|ROPE_NVCC|CUDAToolkit|CLI11|spdlog|civetweb|prometheus|hwy|nlohmann|GTest'
if grep -E "^($foreign)[^=]*=" "$project/build/CMakeCache.txt"; then
  fail "the client looked for what it does not need"
fi
cmake --install "$project/build" --prefix "$folder/installed" >/dev/null
[[ ! -e $folder/installed ]] || fail "the project installs $(find "$folder/installed")"
