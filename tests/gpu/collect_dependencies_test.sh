#!/usr/bin/env bash
# A program that needs Abseil, GoogleTest and nlohmann-json builds and runs with the collected
# folder alone, after the folder moved, where CMake sees nothing that is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly kilobytes_max=$((30 * 1024))

fail() {
  echo "collect_dependencies_test: $*" >&2
  exit 1
}

if ! command -v dpkg >/dev/null; then
  echo "skipped: this system has no dpkg"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

./collect_dependencies.sh "$folder/collected" >/dev/null
kilobytes=$(du -sk "$folder/collected" | cut -f1)
((kilobytes <= kilobytes_max)) || fail "got $kilobytes KiB, want at most $kilobytes_max"
if ./collect_dependencies.sh "$folder/collected" 2>"$folder/refusal"; then
  fail "a folder with files in it was filled again"
fi
grep -q 'is not empty' "$folder/refusal" || fail "got $(cat "$folder/refusal")"
mkdir "$folder/else where" "$folder/source"
mv "$folder/collected" "$folder/else where/prefix"

cat >"$folder/source/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(Probe LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
find_package(absl REQUIRED)
find_package(GTest REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(probe probe.cc)
target_link_libraries(probe absl::statusor absl::synchronization absl::flat_hash_map
                      nlohmann_json::nlohmann_json GTest::gmock GTest::gtest_main)
CMAKE
cat >"$folder/source/probe.cc" <<'CODE'
#include <gmock/gmock.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

TEST(Probe, Works) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  const absl::StatusOr<int> one = nlohmann::json::parse("[1]")[0].get<int>();
  const absl::flat_hash_map<int, int> map = {{1, *one}};
  EXPECT_THAT(map, testing::ElementsAre(testing::Pair(1, 1)));
}
CODE
{
  cmake -G Ninja -S "$folder/source" -B "$folder/build" \
    "-DCMAKE_PREFIX_PATH=$folder/else where/prefix" &&
    cmake --build "$folder/build"
} >"$folder/log" 2>&1 || { cat "$folder/log" && fail "the probe did not build"; }
"$folder/build/probe" >"$folder/log" || { cat "$folder/log" && fail "the probe did not run"; }
if ldd "$folder/build/probe" | grep -E 'absl|gtest|gmock'; then
  fail "the probe needs shared libraries of this machine"
fi
echo "collected $kilobytes KiB"
