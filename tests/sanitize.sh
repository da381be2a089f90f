#!/usr/bin/env bash
# Builds with sanitizers in build/address or build/thread, and runs tests there.
# Usage: tests/sanitize.sh address|thread [PROGRAM[:FILTER]...]
#   address: AddressSanitizer, LeakSanitizer and UBSan; every test except those of scripts
#   thread:  ThreadSanitizer; tests without threads of gRPC and spdlog, whose packages are not
#            instrumented
#   PROGRAM: these test programs alone, each with the tests that match FILTER
# The SIMD kernels are built without UBSan, which takes minutes for each of their files.
# Example: tests/sanitize.sh address 'unit_server:Batcher*' fuzz_proto
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "sanitize: $*" >&2
  exit 2
}

# What ThreadSanitizer can check: nothing here runs on threads of packaged libraries.
on_their_threads='Health*:GrpcStatus*:*PollLoop*:UnaryCall*:ReceivedSlices*:LogOutput*'
thread_programs=(unit_kernels_threads unit_kernels_cuda unit_proto
  unit_client_ring "unit_server:-$on_their_threads" 'fuzz:Ring*' 'conformance:*PropertyTest*')

case "${1:-}" in
  address) sanitizers=address,undefined ;;
  thread) sanitizers=thread ;;
  *) fail "got '${1:-}', want address or thread" ;;
esac
readonly folder=build/$1
programs=("${@:2}")
[[ $1 == address || ${programs[*]} ]] || programs=("${thread_programs[@]}")

# Without precompiled headers a missing include is an error.
deploy/install_dependencies.sh --tests
[[ -f $folder/build.ninja ]] || cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Sanitized \
  -DCMAKE_CXX_FLAGS_SANITIZED=-O1 -DROPE_SANITIZE=$sanitizers \
  -DROPE_WERROR=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
targets=("${programs[@]%%:*}")
[[ ${programs[*]} ]] || targets=(all tests/all benchmarks)
cmake --build "$folder" --parallel "$(nproc)" --target "${targets[@]}"

# Little freed memory is kept back, because tests bound what a server holds.
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
if [[ ! ${programs[*]} ]]; then
  exec ctest --test-dir "$folder" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    -LE 'tidy|gpu'
fi
for program in "${programs[@]}"; do
  filter=${program#"${program%%:*}"}
  filter=${filter#:}
  "$folder/tests/${program%%:*}" --gtest_brief=1 "--gtest_filter=${filter:-*}"
done
