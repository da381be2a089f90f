#!/usr/bin/env bash
# Builds kernels, tests and benchmarks for the GPU of this machine, runs them on it and prints one
# table. Needs nvcc, CMake, a C++20 compiler, Abseil, GoogleTest and nlohmann-json. Libraries that
# are not installed come from the prefix ROPE_GPU_DEPS (collect_dependencies.sh creates one), and so
# do the wheels of the Python package.
# Usage: tests/gpu/run.sh [--out=DIR] [--build=DIR] [--seconds=N] [--build-only]
#   --out=DIR:    where run.log, bench.jsonl, torch.jsonl and peers.jsonl go (or ROPE_GPU_OUT;
#                 default: the build folder)
#   --build=DIR:  build folder (default: build/gpu)
#   --seconds=N:  time for everything (default 490). What does not fit is "not finished"
#   --build-only: stop after the build; works without a GPU
# Exits 0 when every test passed, whether or not the bars hold; 1 when something failed; 3 when
# nothing failed, but something was not finished; 77 without a GPU; 2 on a flag that it does not
# know.
set -euo pipefail
shopt -s extglob
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The tests of the cuda backend: the name of their backend ends the name of a test.
readonly backends=(cuda cuda_head_loop)
# What compute-sanitizer runs: every layout and alignment, each kernel, ragged batches.
readonly sanitized=(EveryLayoutAndAlignment RaggedBatchOfDifferentJobs
  ChannelsOutsideThePairsAreCopied NormComesBeforeTheRotationAndTakesTheWholeHead
  EveryDTypeIsStoredAsEveryOther InputAndOutputMayHaveDifferentStrides)

complain() { echo "tests/gpu/run.sh: $*" >&2; }

has_gpu() {
  [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]] || compgen -G '/dev/nvidia[0-9]*' >/dev/null
}

find_nvcc() { command -v "${CUDACXX:-nvcc}" || command -v /usr/local/cuda/bin/nvcc; }

# find_tool NAME: on PATH, or beside nvcc.
find_tool() { command -v "$1" || command -v "$(dirname "$nvcc")/$1"; }

# What nvidia-smi says about the first GPU.
ask_gpu() { nvidia-smi --id=0 "--query-gpu=$1" --format=csv,noheader 2>/dev/null; }

# "90" for compute capability 9.0; empty if neither the driver's tool nor nvcc's reports it.
architecture() {
  local capability
  capability=$(ask_gpu compute_cap) || true
  if [[ $capability =~ ^([0-9]+)\.([0-9])$ ]]; then
    echo "${BASH_REMATCH[1]}${BASH_REMATCH[2]}"
  else
    "$(dirname "$nvcc")/__nvcc_device_query" 2>/dev/null | grep -oE '^[0-9]+' | head -n 1 || true
  fi
}

print_header() {
  echo "RopeServe on a GPU, $(date -u '+%Y-%m-%d %H:%M:%S UTC')"
  echo "machine:  $(uname -n), $(nproc) processors," \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  echo "gpu:      $(ask_gpu name,driver_version,memory.total,memory.used,clocks.sm ||
    echo 'unknown to nvidia-smi')"
  echo "cuda:     $("$nvcc" --version | sed -n 's/.*release \([^,]*\).*/\1/p') ($nvcc)," \
    "architecture ${arch:-the default ones}"
  echo "compiler: $("${CXX:-c++}" --version | head -n 1)"
  echo "source:   $(git describe --always --dirty 2>/dev/null || echo 'not a git checkout')"
}

steps=() failures=0 unfinished=0
# step NAME LIMIT COMMAND...: runs the command, which ends by `deadline`: LIMIT seconds, or what is
# left of --seconds. Prints and records its result and time. Status 77: skipped, and the command
# printed the reason. Status 124 or 137: its time was over.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 result
  shift 2
  echo "== $name"
  deadline=$((budget < SECONDS + limit ? budget : SECONDS + limit))
  if ((deadline > SECONDS)); then "$@" || status=$?; else status=124; fi
  case $status in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result='not finished' unfinished=$((unfinished + 1)) ;;
    *) result="FAILED ($status)" failures=$((failures + 1)) ;;
  esac
  steps+=("$(printf '%-13s %4s s  %s' "$result" "$((SECONDS - begin))" "$name")")
  echo "   ${steps[-1]}"
}

within() {
  ((deadline > SECONDS)) || return 124
  timeout -k 5 "$((deadline - SECONDS))" "$@"
}

# Builds the two programs that a run needs, and no others. Warnings of a compiler that this project
# was not built with are no errors here.
build() {
  local options=(-DROPE_BUILD_SERVER=OFF -DROPE_BUILD_CLIENT=OFF -DROPE_BUILD_TOOLS=OFF
    -DCMAKE_BUILD_TYPE=Release -DROPE_CUDA=ON -DROPE_WERROR=OFF
    "-DCMAKE_PREFIX_PATH=${ROPE_GPU_DEPS:-}")
  [[ -z $arch ]] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$arch")
  [[ -f $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || options+=(-G Ninja)
  logged configure cmake -S . -B "$build" "${options[@]}" || return
  logged build cmake --build "$build" --parallel "$(nproc)" \
    --target rope_bench_cuda conformance
}

# logged NAME COMMAND...: the end of its output is printed if it fails or runs out of time.
logged() {
  local log=$build/$1.log status=0
  shift
  within "$@" >"$log" 2>&1 || status=$?
  ((!status)) || tail -n 60 "$log"
  return "$status"
}

# The backend runs each kernel and checks the results when it is created.
smoke() { within "$build/bin/rope_bench_cuda" --smoke; }

# Registers and local memory of each kernel.
kernel_resources() {
  local tool
  tool=$(find_tool ptxas) || { echo "ptxas is not installed" && return 77; }
  within "$tool" -v "-arch=sm_${arch:-80}" -o /dev/null "$build/kernels/cuda_ptx.ptx" 2>&1 |
    sed -nE "/entry function/{s/.*'([A-Za-z0-9]+)'.*/\1/;h}
      /Used/{s/.*(Used [0-9]+ registers).*/\1/;G;s/\n/  /p}; /[1-9][0-9]* bytes (stack|spill)/p"
}

# bench REGEX: the rows whose names match. A CUDA error ends the program, so each group of rows is a
# process of its own.
bench() { within "$build/bin/rope_bench_cuda" "--filter=$1" "--json_file=$out/bench.jsonl"; }

# filter NAME...: the tests of these names over each backend of the device.
filter() {
  local name backend
  for name in "$@"; do
    for backend in "${backends[@]}"; do printf '%s' "*$name/$backend:"; done
  done
}

# Runs the conformance tests on the device. A filter that matches no test is a failure.
run_on_device() {
  local program=$build/tests/conformance wanted listed
  wanted=$(filter '')
  listed=$(within "$program" --gtest_list_tests "--gtest_filter=$wanted") || return
  [[ $listed == *$'\n  '* ]] || { echo "conformance has no tests called $wanted" && return 1; }
  within "$program" --gtest_brief=1 "--gtest_filter=$wanted"
}

# compute-sanitizer over part of the contract suite.
memcheck() {
  local tool log=$build/memcheck.log status=0
  tool=$(find_tool compute-sanitizer) || { echo "compute-sanitizer is not installed" && return 77; }
  within "$tool" --tool=memcheck --error-exitcode=86 "$build/tests/conformance" \
    "--gtest_filter=$(filter "${sanitized[@]}")" >"$log" 2>&1 || status=$?
  if grep -q 'Device not supported' "$log"; then
    echo "compute-sanitizer does not support this device or machine" && return 77
  fi
  grep -E 'ERROR SUMMARY|^\[  (PASSED|FAILED)' "$log" || tail -n 20 "$log"
  return "$status"
}

has_torch() {
  local status=0
  within python3 -c 'import torch' 2>/dev/null || status=$?
  ((status < 124)) || return "$status"
  ((!status)) || { echo "python3 has no torch" && return 77; }
}

# The Python package on tensors of torch. A wheel is a zip file: pip is not needed.
in_torch() {
  local wheel wheels=("${ROPE_GPU_DEPS:-.}"/*.whl)
  [[ -f ${wheels[0]} ]] || { echo "ROPE_GPU_DEPS holds no wheel" && return 77; }
  has_torch || return
  for wheel in "${wheels[@]}"; do
    within python3 -m zipfile -e "$wheel" "$build/python" || return
  done
  PYTHONPATH=$build/python within python3 -B tests/gpu/torch_calls.py "--json_file=$out/torch.jsonl"
}

# Other implementations on the same shapes.
peers() {
  has_torch || return
  within python3 -B tests/gpu/peers.py "--json_file=$out/peers.jsonl"
}

check_and_measure() {
  print_header
  step "build" 120 build
  if ((!failures && !unfinished)) && [[ ! $build_only ]]; then
    step "smoke: each kernel once" 20 smoke
    step "registers" 10 kernel_resources
    step "conformance" 80 run_on_device
    rm -f "$out/bench.jsonl"
    step "benchmarks: kernels, new and old in turns" 80 bench '^(kernel|ragged)/'
    step "benchmarks: calls" 20 bench '^(call|host)/'
    step "torch" 50 in_torch
    step "memcheck: part of conformance" 50 memcheck
    step "peers" 60 peers
  fi
  echo "== summary, ${SECONDS} of ${budget} s"
  printf '%s\n' "${steps[@]}"
  ((!failures)) || return 1
  ((!unfinished)) || return 3
}

build=build/gpu out=${ROPE_GPU_OUT:-} build_only='' budget=490
for argument in "$@"; do
  case $argument in
    --out=?*) out=${argument#--out=} ;;
    --build=?*) build=${argument#--build=} ;;
    --seconds=[1-9]*([0-9])) budget=${argument#--seconds=} ;;
    --build-only) build_only=1 ;;
    *)
      complain "got argument '$argument', want --out=DIR, --build=DIR, --seconds=N or --build-only"
      exit 2
      ;;
  esac
done

if [[ ! $build_only ]] && ! has_gpu; then
  complain "this machine has no NVIDIA GPU (nvidia-smi lists none and /dev has none)"
  exit 77
fi
nvcc=$(find_nvcc) ||
  { complain "found no nvcc (on PATH, in CUDACXX, in /usr/local/cuda)" && exit 1; }
arch=$(architecture)
mkdir -p "$build" "${out:=$build}"
out=$(cd "$out" && pwd)

check_and_measure 2>&1 | tee "$out/run.log"
