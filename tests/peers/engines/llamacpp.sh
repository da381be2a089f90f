#!/usr/bin/env bash
# Makes the folder that record_llamacpp.py runs: llama.cpp as a release of llama-cpp-python has it.
# Usage: tests/peers/engines/llamacpp.sh FOLDER PYTHON RELEASE
#   llama.cpp/      the source, with the converter; PYTHON gets the transformers that it wants
#   build/bin/      libllama and ggml, for CPUs, without optimization: only one node is computed
#   llamacpp_graph  llamacpp_graph.c
#   commit          the commit of llama.cpp
# PYTHON: an interpreter with pip. What is there is not made again.
set -euo pipefail
readonly folder=$1 python=$2 release=$3
readonly source=$folder/llama.cpp build=$folder/build

download() {
  local package=llama-cpp-python sdist
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary "$package" \
    -d "$folder" "$package==$release"
  sdist=$(ls "$folder"/llama_cpp_python-*.tar.gz)
  tar -xzf "$sdist" -C "$folder" --strip-components=2 --wildcards '*/vendor/llama.cpp'
  tar -xzf "$sdist" -O --wildcards '*/CHANGELOG.md' |
    sed -n 's/.*llama\.cpp@\([0-9a-f]\{9\}\).*/\1/p' | head -n 1 >"$folder/commit"
  rm "$sdist"
}

build() {
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 \
    -DCMAKE_CXX_FLAGS=-O0 -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF
  cmake --build "$build" --target llama
}

mkdir -p "$folder"
[[ -s $folder/commit ]] || download
[[ -d $folder/transformers ]] || "$python" -m pip install -q --disable-pip-version-check \
  --target "$folder" "$(grep -h '^transformers==' "$source"/requirements/*.txt | head -n 1)"
[[ -f $build/bin/libllama.so ]] || build
cc -I"$source/include" -I"$source/ggml/include" "$(dirname "$0")/llamacpp_graph.c" \
  -o "$folder/llamacpp_graph" -L"$build/bin" -Wl,-rpath,"\$ORIGIN/build/bin" \
  -lllama -lggml -lggml-cpu -lggml-base
