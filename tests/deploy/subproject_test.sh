#!/usr/bin/env bash
# A project that adds this tree as a folder builds the client alone, gets a rotated tensor from a
# server of the build, and finds its own variables, cache and folders as it left them.
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

# When the project is configured, it then prints which variables of CMake and of its folder differ
# after add_subdirectory.
watch_variables() {
  cat >"$1/before.cmake" <<'END'
get_cmake_property(names VARIABLES)
foreach(name IN LISTS names)
  set("before_${name}" "${${name}}")
endforeach()
END
  cat >"$1/after.cmake" <<'END'
get_cmake_property(names VARIABLES)
list(FILTER names INCLUDE REGEX "^CMAKE_")
foreach(name IN LISTS names)
  if(NOT "${${name}}" STREQUAL "${before_${name}}")
    message(STATUS "changed: ${name}")
  endif()
endforeach()
foreach(name COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS)
  get_directory_property(value ${name})
  if(value)
    message(STATUS "changed: ${name}")
  endif()
endforeach()
END
  sed -i 's/^add_subdirectory.*/include(before.cmake)\n&\ninclude(after.cmake)/' "$1/CMakeLists.txt"
}

options=()
! command -v ccache >/dev/null || options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
rm -rf "$project"
begin=$EPOCHREALTIME
write_project "$project" "add_subdirectory($PWD ropeserve)"
watch_variables "$project"
build_project "$project" "${options[@]}"
start_server
expect_rotated "$project/build/mine" "$target"
drain_server
echo "add_subdirectory: $(seconds_since "$begin") s from nothing to a rotated tensor"

# FindThreads keeps the answer of its check. CMake gives a project without a version that of the
# first one in it.
own='CMAKE_HAVE_LIBC_PTHREAD|CMAKE_PROJECT_VERSION.*|CMAKE_CURRENT_LIST_FILE'
changed=$(sed -n 's/^-- changed: //p' "$project/configure.log" | grep -vxE "$own" || true)
[[ -z $changed ]] || fail "these variables of the project have changed: $changed"
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
