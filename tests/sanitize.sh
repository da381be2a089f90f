#!/usr/bin/env bash
# Builds with sanitizers in build/address or build/thread, and runs tests there.
# Usage: tests/sanitize.sh address|thread [CTEST ARGUMENT...]
#   address: AddressSanitizer, LeakSanitizer and UBSan; every test except those of scripts
#   thread:  ThreadSanitizer; tests without gRPC, because the gRPC packages are not instrumented
# The SIMD kernels are built without UBSan, which takes minutes for each of their files.
# Example: tests/sanitize.sh address -R 'fuzz|server_test'
# ROPE_SANITIZE_TARGETS: the targets to build; default all targets of the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "sanitize: $*" >&2
  exit 2
}

# The test programs that ThreadSanitizer can check: none of their calls runs on gRPC's threads.
thread_targets=(unit_kernels_table_cache unit_kernels_worker_pool unit_kernels_cuda_backend
  unit_proto unit_client_ring server_test ring_fuzz_test property_test)
thread_filter='-Health*:GrpcStatus*:*PollLoop*:UnaryCall*:StreamCall*'
thread_filter+=':ReceivedSlices*:ReflectionTest*'

targets=()
case "${1:-}" in
  address)
    sanitizers=address,undefined
    select=(-LE 'tidy|gpu')
    ;;
  thread)
    sanitizers=thread
    targets=("${thread_targets[@]}")
    select=(-R "^($(IFS='|' && echo "${thread_targets[*]}"))\$")
    export GTEST_FILTER=$thread_filter
    ;;
  *) fail "got '${1:-}', want address or thread" ;;
esac
readonly folder=build/$1
shift
if [[ ${ROPE_SANITIZE_TARGETS:-} ]]; then
  read -ra targets <<<"$ROPE_SANITIZE_TARGETS"
fi

deploy/install_dependencies.sh --tests
[[ -f $folder/build.ninja ]] || cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Sanitized \
  -DCMAKE_CXX_FLAGS_SANITIZED=-O1 -DROPE_SANITIZE=$sanitizers
cmake --build "$folder" --parallel "$(nproc)" ${targets[0]:+--target "${targets[@]}"}

# Little freed memory is kept back, because tests bound what a server holds.
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
ctest --test-dir "$folder" --parallel "$(nproc)" --output-on-failure --no-tests=error \
  "${select[@]}" "$@"
