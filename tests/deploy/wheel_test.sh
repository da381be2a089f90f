#!/usr/bin/env bash
# The wheel of deploy/wheel.sh does in an empty Python environment what the pages promise: it
# lints with the exit statuses of ropectl, starts a server that rotates and drains, and leaves
# nothing behind when it is uninstalled. pre-commit, run by the Python that ROPE_PRE_COMMIT_PYTHON
# names, lints a commit with it.
# Usage: tests/deploy/wheel_test.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/deploy/unit_pair.sh
source tests/deploy/unit_pair.sh
# shellcheck source=tests/deploy/packed_server.sh
source tests/deploy/packed_server.sh

readonly build=$1 bytes_max=$((17 * 1000 * 1000))
readonly config=tests/conformance/configs/llama-3.1-8b.json
readonly venv=$folder/venv

# An installed program, with nothing in its environment, in place of this shell.
become() { exec env -i "$venv/bin/$1" "${@:2}"; }

# expect STATUS PROGRAM ARGUMENT...
expect() {
  local want=$1 status=0
  shift
  (become "$@") >"$folder/output" 2>&1 || status=$?
  [[ $status == "$want" ]] || fail "$*: got status $status, want $want: $(cat "$folder/output")"
}

# Commits a config with the hook of client/cli/README.md; prints what pre-commit says.
commit_with_pre_commit() {
  local models=$folder/models
  git init -q "$models"
  sed -n '/^repos:$/,/^```$/p' client/cli/README.md | sed '$d' >"$models/.pre-commit-config.yaml"
  cp "$1" "$models/config.json"
  git -C "$models" add config.json
  (cd "$models" && PRE_COMMIT_HOME=$folder/pre_commit PIP_FIND_LINKS=$folder/dist \
    timeout 200 "$ROPE_PRE_COMMIT_PYTHON" -m pre_commit run -v 2>&1)
}

wheel=$(deploy/wheel.sh "--build=$build" "$folder/dist")
bytes=$(stat -c %s "$wheel")
((bytes <= bytes_max)) || fail "got $bytes bytes, want at most $bytes_max"
python3 -m venv "$venv"
find "$venv" ! -type d | sort >"$folder/before"
"$venv/bin/pip" install -q --no-index --disable-pip-version-check "$wheel"

expect 0 ropectl --version
grep -qF "ropectl $(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)" \
  "$folder/output" || fail "got $(cat "$folder/output"), want the version of CMakeLists.txt"
[[ $wheel == *"-$(cut -d' ' -f2 "$folder/output")-py3-none-manylinux2014_"* ]] ||
  fail "got the name $wheel, want the version of ropectl in it"
cp "$config" "$folder/a model's config.json"
expect 0 ropectl lint "$folder/a model's config.json"
echo '{"model_type": "llama", "head_dim": 64, "rope_theta": -1}' >"$folder/bad.json"
expect 1 ropectl lint "$folder/bad.json"
expect 2 ropectl lint "$folder/none.json"
ln -s "$venv/bin/ropectl" "$folder/ropectl"
"$folder/ropectl" lint "$config" >/dev/null || fail "ropectl failed by a link, as pipx makes it"

start_server
expect 0 ropectl health "--target=$target" --wait=10s
rotate_unit_pair "$folder"
check_maps "$venv/lib/rope"
drain_server

if [[ -n ${ROPE_PRE_COMMIT_PYTHON:-} ]]; then
  commit_with_pre_commit "$config" >"$folder/output" || fail "pre-commit: $(cat "$folder/output")"
  grep -q 'no findings' "$folder/output" || fail "pre-commit: $(cat "$folder/output")"
  if commit_with_pre_commit "$folder/bad.json" >"$folder/output"; then
    fail "pre-commit let a bad config pass"
  fi
  grep -q 'rope_theta: got -1' "$folder/output" || fail "pre-commit: $(cat "$folder/output")"
else
  echo "skipped: pre-commit, because ROPE_PRE_COMMIT_PYTHON names no Python that has it"
fi

"$venv/bin/pip" uninstall -q -y --disable-pip-version-check ropeserve-tools
find "$venv" ! -type d | sort | diff "$folder/before" - || fail "uninstalling leaves files"
echo "the wheel has $bytes bytes; lint, health, rotate and drain worked"
