# Sourced by scripts: a C++ project of a user, and what its program says. The script defines
# `fail MESSAGE`, and $build is the build folder of the tree.
# shellcheck shell=bash disable=SC2154

# cache_value NAME: as the build folder has it.
cache_value() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

# write_project FOLDER FIRST_LINE [FILE.cc]: a project in an empty folder, of the lines that
# client/README.md shows. FIRST_LINE: where it gets the library from. FILE.cc: its program, the
# README's example if there is none.
write_project() {
  local lines
  # shellcheck disable=SC2016  # backquotes of Markdown
  lines=$(sed -n '/^```cmake$/,/^```$/p' client/README.md | sed '1d;$d')
  [[ $(head -n 1 <<<"$lines") == 'find_package(RopeServe '* && $(wc -l <<<"$lines") == 3 ]] ||
    fail "client/README.md: got $lines, want the three lines of a project"
  mkdir -p "$1"
  {
    echo 'cmake_minimum_required(VERSION 3.22)'
    echo 'project(mine LANGUAGES CXX)'
    echo "$2"
    tail -n 2 <<<"$lines"
  } >"$1/CMakeLists.txt"
  cp "${3:-client/quickstart/example.cc}" "$1/main.cc"
}

# write_c_project FOLDER: the same in C, of the README's example in C.
write_c_project() {
  write_project "$1" 'find_package(RopeServe REQUIRED COMPONENTS c)'
  rm "$1/main.cc"
  cp client/quickstart/c_example.c "$1/main.c"
  sed -i 's/main\.cc/main.c/; s/RopeServe::client/RopeServe::c/; s/LANGUAGES CXX/LANGUAGES C/' \
    "$1/CMakeLists.txt"
}

# build_project FOLDER OPTION...: configures and builds FOLDER/build.
build_project() {
  cmake -S "$1" -B "$1/build" -G "$(cache_value CMAKE_GENERATOR)" \
    "-DCMAKE_CXX_COMPILER=$(cache_value CMAKE_CXX_COMPILER)" "${@:2}" >"$1/configure.log" 2>&1 ||
    fail "$(cat "$1/configure.log")"
  cmake --build "$1/build" --parallel "$(nproc)" >"$1/build.log" 2>&1 ||
    fail "$(tail -n 30 "$1/build.log")"
}

# expect_rotated PROGRAM ARGUMENT...: the pages' examples turn a pair of ones by 100000 radians. In
# C++ they also print the device.
expect_rotated() {
  local line first
  read -r line < <("$@") || fail "$1: no answer"
  first=${line#cpu: }
  first=${first%% *}
  awk "BEGIN { off = $first - (cos(100000) - sin(100000)); exit !(off < 3e-7 && off > -3e-7) }" ||
    fail "$1: got $line, want cos 100000 - sin 100000"
}

# seconds_since TIME: TIME is a value of EPOCHREALTIME.
seconds_since() { awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $1 }"; }
