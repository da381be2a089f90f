#!/usr/bin/env bash
# The scripts share one build folder. Whichever runs first in a clone, each other one after it
# configures without an error and leaves every command as it is that compiles production, so that
# nothing is compiled twice, and the sources of tests are never joined. Nothing is built here: a
# cmake ahead on PATH configures and ends a script where it would build.
# Usage: tests/deploy/script_order_test.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly build=$1
readonly scripts=("deploy/quickstart.sh --once" tests/run.sh deploy/build.sh "deploy/python.sh dist"
  "deploy/wheel.sh dist" "deploy/pack.sh packed")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "script_order: $*" >&2
  exit 1
}

mkdir "$folder/bin"
cat >"$folder/bin/cmake" <<END
#!/bin/sh
[ "\$1" != --build ] || { echo "would build" >&2; exit 9; }
exec $(command -v cmake) "\$@" -DROPE_CUDA=OFF
END
chmod +x "$folder/bin/cmake"

# The commands that compile production, a line each.
commands() {
  python3 - "$folder/clone" <<'END'
import json, sys
clone = sys.argv[1]
for entry in json.load(open(f"{clone}/build/compile_commands.json")):
    if "/tests/" in entry["file"]:
        assert "/Unity/" not in entry["file"], entry["file"]
    elif "rope_python" not in entry["command"]:
        print(entry["command"])
END
}

run() {
  local status=0 words
  read -ra words <<<"$1"
  (cd "$folder/clone" && PATH=$folder/bin:$PATH bash "${words[@]}") \
    </dev/null >"$folder/log" 2>&1 || status=$?
  grep -q 'would build' "$folder/log" ||
    fail "'$1' did not come to build (status $status): $(tail -n 3 "$folder/log")"
}

for first in "${scripts[@]}"; do
  rm -rf "$folder/clone"
  mkdir -p "$folder/clone/build"
  git ls-files -z | xargs -0 cp --parents -t "$folder/clone"
  [[ ! -d $build/python_venv ]] || ln -s "$(realpath "$build/python_venv")" "$folder/clone/build"
  run "$first"
  commands | sort >"$folder/before"
  [[ -s $folder/before ]] || fail "'$first' configured nothing"
  for second in "${scripts[@]}"; do
    run "$second"
    commands | sort | comm -23 "$folder/before" - >"$folder/changed"
    [[ ! -s $folder/changed ]] ||
      fail "'$second' after '$first' compiles otherwise: $(head -n 1 "$folder/changed")"
  done
done
echo "measured: ${#scripts[@]} scripts after each other, each first in a clone of its own"
