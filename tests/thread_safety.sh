#!/usr/bin/env bash
# Checks every lock annotation with clang: who holds which mutex, and in which order.
# Usage: tests/thread_safety.sh [FILE.cc...]
# Default: every source of server, client, kernels and proto, but of ropectl and the Python package,
# which have no lock.
# Those of one folder are compiled as one: it takes less time, and proves that they can be
# (ROPE_UNITY_BUILD).
# Needs build/ with the generated headers: run deploy/build.sh before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly compiler=${CLANG:-clang++}

fail() {
  echo "thread_safety: $*" >&2
  exit 2
}

command -v "$compiler" >/dev/null || fail "$compiler is not installed"
[[ -d build/proto ]] || fail "build/proto is missing; run deploy/build.sh"

sources=("$@")
if ((!${#sources[@]})); then
  # Kernels of the CPU have no locks, and take minutes each.
  mapfile -t sources < <(git ls-files 'server/*.cc' 'client/*.cc' 'kernels/*.cc' 'proto/*.cc' |
    grep -vE '^kernels/backend/cpu/cpu_rotate|^client/(cli|quickstart|python)/')
fi

flags=(-std=c++20 -fsyntax-only -Wno-everything -Wthread-safety -Wthread-safety-beta -Werror
  -DROPE_HAVE_CPU_BACKEND '-DROPE_VERSION_TEXT="unknown"'
  -I. -Iclient/include -isystem build/proto -isystem build/proto/grpc_schema)

readonly joined=build/thread_safety
rm -rf "$joined"
mkdir -p "$joined"
for source in "${sources[@]}"; do
  echo "#include \"$source\"" >>"$joined/${source%%/*}.cc"
done
printf '%s\0' "$joined"/*.cc | xargs -0 -n 1 -P "$(nproc)" "$compiler" "${flags[@]}" || {
  echo "thread_safety: a lock is not held where its annotation says so"
  exit 1
}
echo "thread_safety: ${#sources[@]} sources without a warning"
