#!/usr/bin/env bash
# Builds kernels, tests and benchmarks for the GPU of this machine, runs them on it and prints one
# table. Needs nvcc, CMake, a C++20 compiler, Abseil, GoogleTest and nlohmann-json. Libraries that
# are not installed come from the prefix ROPE_GPU_DEPS (collect_dependencies.sh creates one).
# Usage: tests/gpu/run.sh [--out=DIR] [--build=DIR] [--build-only]
#   --out=DIR:    where run.log and bench.json go (or ROPE_GPU_OUT; default: the build folder)
#   --build=DIR:  build folder (default: build/gpu)
#   --build-only: stop after the build; works without a GPU
# Exits 0 when every test passed, whether or not the bars hold; 1 when something failed; 77 without
# a GPU; 2 on a flag that it does not know.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Names of tests that are instantiated over backends end with the backend's name.
readonly device_tests='*/cuda'
readonly test_seconds=100 memcheck_seconds=90 bench_seconds=150

complain() { echo "tests/gpu/run.sh: $*" >&2; }

has_gpu() {
  [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]] || compgen -G '/dev/nvidia[0-9]*' >/dev/null
}

find_nvcc() { command -v "${CUDACXX:-nvcc}" || command -v /usr/local/cuda/bin/nvcc; }

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
  echo "gpu:      $(ask_gpu name,driver_version,memory.total || echo 'unknown to nvidia-smi')"
  echo "cuda:     $("$nvcc" --version | sed -n 's/.*release \([^,]*\).*/\1/p') ($nvcc)," \
    "architecture ${arch:-the default ones}"
  echo "compiler: $("${CXX:-c++}" --version | head -n 1)"
  echo "source:   $(git describe --always --dirty 2>/dev/null || echo 'not a git checkout')"
}

build() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DROPE_KERNELS_ONLY=ON -DROPE_CUDA=ON
    "-DCMAKE_PREFIX_PATH=${ROPE_GPU_DEPS:-}")
  [[ -z $arch ]] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$arch")
  [[ -f $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || options+=(-G Ninja)
  cmake -S . -B "$build" "${options[@]}" >"$build/configure.log" 2>&1 ||
    { tail -n 30 "$build/configure.log" && return 1; }
  cmake --build "$build" --parallel "$(nproc)" >"$build/build.log" 2>&1 ||
    { tail -n 60 "$build/build.log" && return 1; }
}

steps=() failures=0
# step NAME COMMAND...: runs the command, and prints and records its result and time. Status 77
# means skipped; the command printed the reason.
step() {
  local name=$1 begin=$SECONDS status=0
  shift
  echo "== $name"
  "$@" || status=$?
  case $status in
    0) steps+=("passed   $((SECONDS - begin)) s  $name") ;;
    77) steps+=("skipped  $((SECONDS - begin)) s  $name") ;;
    *)
      steps+=("FAILED   $((SECONDS - begin)) s  $name (status $status)")
      failures=$((failures + 1))
      ;;
  esac
}

# Runs one test program on the device. A filter that matches no test is a failure.
run_on_device() {
  local program=$build/tests/$1
  "$program" --gtest_list_tests "--gtest_filter=$device_tests" | grep -q '^  ' ||
    { echo "$1 has no test called $device_tests" && return 1; }
  timeout "$test_seconds" "$program" --gtest_brief=1 "--gtest_filter=$device_tests"
}

memcheck() {
  local tool log=$build/memcheck.log status=0
  tool=$(command -v compute-sanitizer || command -v "$(dirname "$nvcc")/compute-sanitizer") ||
    { echo "compute-sanitizer is not installed" && return 77; }
  timeout "$memcheck_seconds" "$tool" --tool=memcheck --error-exitcode=86 \
    "$build/tests/backend_contract_test" "--gtest_filter=$device_tests" >"$log" 2>&1 || status=$?
  if grep -q 'Device not supported' "$log"; then
    echo "compute-sanitizer does not support this device or machine" && return 77
  fi
  grep -E 'ERROR SUMMARY|^\[  (PASSED|FAILED)' "$log" || tail -n 20 "$log"
  return "$status"
}

# Registers and local memory of each kernel in the build.
kernel_resources() {
  local tool
  tool=$(command -v cuobjdump || command -v "$(dirname "$nvcc")/cuobjdump") ||
    { echo "cuobjdump is not installed" && return 77; }
  "$tool" --dump-resource-usage "$build/bin/rope_bench_cuda" 2>/dev/null |
    sed -nE '/Function .*Rotate/ { s/.*(Rotate(Vector|Scalar)).*/\1/p; n; s/ CONST.*//p }'
}

bench() {
  timeout "$bench_seconds" "$build/bin/rope_bench_cuda" "--json_file=$out/bench.json"
}

check_and_measure() {
  print_header
  step "build" build
  if ((!failures)) && [[ ! $build_only ]]; then
    for program in backend_contract_test golden_test property_test; do
      step "$program" run_on_device "$program"
    done
    step "memcheck: backend_contract_test" memcheck
    step "registers" kernel_resources
    step "benchmarks" bench
  fi
  echo "== summary, ${SECONDS} s"
  printf '%s\n' "${steps[@]}"
  ((!failures)) || return 1
}

build=build/gpu out=${ROPE_GPU_OUT:-} build_only=
for argument in "$@"; do
  case $argument in
    --out=?*) out=${argument#--out=} ;;
    --build=?*) build=${argument#--build=} ;;
    --build-only) build_only=1 ;;
    *) complain "got argument '$argument', want --out=DIR, --build=DIR or --build-only" && exit 2 ;;
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
