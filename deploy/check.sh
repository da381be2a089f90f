#!/usr/bin/env bash
# Checks the sources statically: clang-format, clang-tidy, shellcheck, tests/tidy.
# Usage: deploy/check.sh [--changed[=BASE]]
#   --changed: clang-tidy only for files that differ from BASE (default: HEAD) or are new
# A tool that is not installed is skipped, and the output names it. clang-tidy reads
# build/edit/compile_commands.json and the generated headers: run tests/run.sh unit_proto first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Compiled once for each processor target, with namespaces that come from macros.
readonly not_for_clang_tidy='kernels/backend/cpu/cpu_rotate(_avx)?[.]cc'

fail() {
  echo "check: $*" >&2
  exit 2
}

base=
case "${1:-}" in
  '') ;;
  --changed) base=HEAD ;;
  --changed=*) base=${1#--changed=} ;;
  *) fail "got argument '$1', want --changed, --changed=BASE or none" ;;
esac
command -v git >/dev/null || fail "git is not installed"

failed=()
# run NAME TOOL COMMAND...: runs one check. A missing tool is reported and is not a failure.
run() {
  local name=$1 tool=$2
  shift 2
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: $name ($tool is not installed)"
  elif "$@"; then
    echo "ok: $name"
  else
    failed+=("$name")
  fi
}

# Existing files of the tree that match, tracked or new.
ours() { git ls-files -co --exclude-standard --deduplicate -- "$@" | while read -r file; do
  [[ -f $file ]] && echo "$file"
done; }

# Sources for clang-tidy; with --changed only the changed ones.
tidy_sources() {
  ours '*.cc' | grep -vxE "$not_for_clang_tidy" | if [[ $base ]]; then
    grep -xF -f <(git diff --name-only "$base"; git ls-files -o --exclude-standard) || true
  else
    cat
  fi
}

clang_tidy() {
  if [[ ! -f build/edit/compile_commands.json ]]; then
    echo "check: build/edit/compile_commands.json is missing; run tests/run.sh unit_proto" >&2
    return 1
  fi
  tidy_sources | xargs -r -n 1 -P "$(nproc)" clang-tidy -p build/edit --quiet 2>/dev/null
}

mapfile -t formatted < <(ours '*.cc' '*.h')
mapfile -t scripts < <(ours '*.sh' .ci/run)
run clang-format clang-format clang-format --dry-run -Werror "${formatted[@]}"
run shellcheck shellcheck shellcheck "${scripts[@]}"
run tests/tidy python3 python3 -B tests/tidy/tidy.py
run clang-tidy clang-tidy clang_tidy

if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
