#!/usr/bin/env bash
# deploy/docker_test.sh without a container engine: one line and status 77. Wrong flags: status 2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "docker_skip_test: $*" >&2
  exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect STATUS LINE ARGUMENT...: checks the output and the exit status of docker_test.sh.
expect() {
  local want_status=$1 want_line=$2 status=0
  shift 2
  deploy/docker_test.sh "$@" >"$folder/output" 2>&1 </dev/null || status=$?
  [[ $status == "$want_status" ]] || fail "got status $status, want $want_status: $*"
  [[ $(wc -l <"$folder/output") == 1 ]] || fail "got $(cat "$folder/output"), want one line"
  grep -qF -e "$want_line" "$folder/output" ||
    fail "got $(cat "$folder/output"), want $want_line"
}

# An engine named by DOCKER_HOST that does not answer counts as none, even if dockerd could start.
export DOCKER_HOST=unix://$folder/none.sock
expect 77 'no container engine'
expect 77 'no container engine' --image=rope-server
expect 2 "got argument '--sideways'" --sideways
expect 2 "got argument '--image='" --image=
