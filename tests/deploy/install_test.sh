#!/usr/bin/env bash
# An installation is all that C++ programs need, wherever it has been moved to: one that finds the
# client by find_package, one that finds it by pkg-config, both against the installed server, and
# two that rotate in their own process, with the kernels and with the engine. The same for programs
# in C, by find_package and by pkg-config.
# Usage: tests/deploy/install_test.sh BUILD_FOLDER KERNELS_PROGRAM.cc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/deploy/packed_server.sh
source tests/deploy/packed_server.sh
# shellcheck source=tests/deploy/consumer.sh
source tests/deploy/consumer.sh

readonly build=$1 kernels_program=$2
readonly prefix=$folder/installed

become() { exec env -i "$prefix/bin/$1" "${@:2}"; }

# expect_names FOLDER NAME...: it holds these and nothing else.
expect_names() {
  local got
  got=$(cd "$1" && echo *)
  [[ $got == "${*:2}" ]] || fail "$1: got $got, want ${*:2}"
}

# build_by_pkg_config EXAMPLE COMMAND MODULE: compiles it in $folder/MODULE with the line of
# client/README.md that begins with the command, a regular expression.
build_by_pkg_config() {
  local place=$folder/$3 line
  mkdir "$place"
  cp "client/quickstart/$1" "$place/main.${1##*.}"
  line=$(sed -n "s/^ *\($2 .*\)/\1/p" client/README.md)
  [[ $line == *'pkg-config '*" $3"* ]] || fail "client/README.md has no line for pkg-config $3"
  (cd "$place" && PKG_CONFIG_PATH=$pc_folder bash -c "$line") || fail "$line: failed"
}

# Each public header compiles alone, in C++17 and with the warnings of careful projects; those of
# the C API in C11 too.
check_public_headers() {
  local header compiler
  for header in rope dlpack; do
    "$(cache_value CMAKE_C_COMPILER)" -x c -std=c11 -fsyntax-only -Wall -Wextra -Wpedantic \
      -Werror "-I$prefix/include" "$prefix/include/rope/$header.h" ||
      fail "$header.h is no C11 that compiles alone"
  done
  compiler=$(cache_value CMAKE_CXX_COMPILER)
  for header in "$prefix"/include/rope/*.h; do
    "$compiler" -x c++ -std=c++17 -fsyntax-only -Wall -Wextra -Wpedantic -Werror \
      "-I$prefix/include" "$header" || fail "$header is no C++17 that compiles alone"
  done
}

# A program that finds the kernels includes every header that they install.
write_kernels_project() {
  write_project "$1" 'find_package(RopeServe REQUIRED COMPONENTS kernels)' "$kernels_program"
  sed -i 's/RopeServe::client/RopeServe::kernels/' "$1/CMakeLists.txt"
  (cd "$prefix/include/ropeserve" && find . -name '*.h' | sed 's|^\./\(.*\)|#include "\1"|') |
    sort >"$1/headers"
  cat "$1/headers" "$kernels_program" >"$1/main.cc"
}

# expect_refusal TEXT ARGUMENTS...: find_package with these arguments fails and says so.
expect_refusal() {
  echo "find_package(RopeServe ${*:2} REQUIRED)" >"$folder/find.cmake"
  if cmake "-DCMAKE_PREFIX_PATH=$prefix" -P "$folder/find.cmake" >"$folder/find.log" 2>&1; then
    fail "find_package(RopeServe ${*:2}) found something"
  fi
  grep -qF "$1" "$folder/find.log" || fail "got $(cat "$folder/find.log"), want $1"
}

cmake --install "$build" --prefix "$folder/first" >/dev/null
mv "$folder/first" "$prefix"
expect_names "$prefix" bin include lib share
expect_names "$prefix/bin" rope_server ropectl
expect_names "$prefix/include" rope ropeserve
cmp "$build/rope.protoset" "$prefix/share/rope/rope.protoset" || fail "the schema differs"
if grep -rlF -e "$PWD" -e "$build" -e "$folder" "$prefix" --include='*.cmake' --include='*.pc'; then
  fail "these files name a folder of the build"
fi
check_public_headers
start_server

begin=$EPOCHREALTIME
write_project "$folder/cmake" 'find_package(RopeServe REQUIRED COMPONENTS client)'
build_project "$folder/cmake" "-DCMAKE_PREFIX_PATH=$prefix" -DCMAKE_CXX_STANDARD=17
expect_rotated "$folder/cmake/build/mine" "$target"
echo "find_package: $(seconds_since "$begin") s from nothing to a rotated tensor"

begin=$EPOCHREALTIME
pc_folder=$(dirname "$(find "$prefix" -name ropeserve.pc)")
build_by_pkg_config example.cc "g++ main\.cc" ropeserve
expect_rotated "$folder/ropeserve/mine" "$target"
echo "pkg-config: $(seconds_since "$begin") s from nothing to a rotated tensor"

begin=$EPOCHREALTIME
write_c_project "$folder/c_cmake"
build_project "$folder/c_cmake" "-DCMAKE_PREFIX_PATH=$prefix"
expect_rotated "$folder/c_cmake/build/mine" "$target"
expect_rotated "$folder/c_cmake/build/mine"
echo "C, find_package: $(seconds_since "$begin") s from nothing to a rotated tensor"

begin=$EPOCHREALTIME
build_by_pkg_config c_example.c "cc main\.c" rope
libraries=$(dirname "$(find "$prefix" -name librope.so)")
expect_rotated env "LD_LIBRARY_PATH=$libraries" "$folder/rope/mine"
echo "C, pkg-config: $(seconds_since "$begin") s from nothing to a rotated tensor"
drain_server

begin=$EPOCHREALTIME
write_kernels_project "$folder/kernels"
build_project "$folder/kernels" "-DCMAKE_PREFIX_PATH=$prefix"
output=$("$folder/kernels/build/mine")
[[ $output == *': 0.5403023 0.8414710' ]] || fail "got $output, want cos 1 and sin 1"
echo "kernels: $(seconds_since "$begin") s from nothing to a rotated pair, $(wc -l \
  <"$folder/kernels/headers") headers"

begin=$EPOCHREALTIME
write_project "$folder/embedded" 'find_package(RopeServe REQUIRED COMPONENTS embedded)' \
  client/quickstart/embedded_example.cc
sed -i 's/RopeServe::client/RopeServe::embedded/' "$folder/embedded/CMakeLists.txt"
build_project "$folder/embedded" "-DCMAKE_PREFIX_PATH=$prefix" -DCMAKE_CXX_STANDARD=17
expect_rotated "$folder/embedded/build/mine"
echo "embedded: $(seconds_since "$begin") s from nothing to a rotated tensor, without a server"

version=$(cache_value CMAKE_PROJECT_VERSION)
[[ $(become rope_server --version) == "rope_server $version" ]] || fail "rope_server: want $version"
[[ $(become ropectl --version) == "ropectl $version" ]] || fail "ropectl: want $version"
for module in ropeserve rope; do
  [[ $(PKG_CONFIG_PATH=$pc_folder pkg-config --modversion "$module") == "$version" ]] ||
    fail "pkg-config $module: want $version"
done
expect_refusal "The following configuration files were considered but not accepted" 99.0
expect_refusal "version: $version" 99.0
expect_refusal "This installation has no component nothing." COMPONENTS nothing
echo "installed $(du -sm "$prefix" | cut -f1) MB of version $version"
