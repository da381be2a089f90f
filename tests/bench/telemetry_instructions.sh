#!/usr/bin/env bash
# Prints how many instructions the server takes for a decode call, and how many of them are its log
# and metrics. valgrind's callgrind counts them: a busy machine changes nothing.
# Usage: tests/bench/telemetry_instructions.sh [SERVER_FLAG...]
# Exits 77 without valgrind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for tool in valgrind callgrind_control callgrind_annotate; do
  command -v "$tool" >/dev/null || {
    echo "telemetry_instructions: no $tool (Debian: valgrind)" >&2
    exit 77
  }
done

readonly seconds=20
# What runs for telemetry alone; each with all that it calls.
readonly telemetry='RopeService::Record|Metrics::Count(?:Rotation|Batch)'
folder=$(mktemp -d)
server=
finish() {
  [[ ! $server ]] || kill "$server" 2>/dev/null || true
  wait
  rm -rf "$folder"
}
trap finish EXIT

# Without polling every instruction belongs to a call.
valgrind --quiet --tool=callgrind --instr-atstart=no --callgrind-out-file="$folder/profile" \
  build/bin/rope_server --listen="unix:$folder/socket" --poll_spin_us=0 --threads=2 "$@" \
  >"$folder/log" 2>&1 &
server=$!
until build/bin/ropectl health --target="unix:$folder/socket" >/dev/null 2>&1; do
  kill -0 "$server" || { cat "$folder/log" >&2 && exit 1; }
done

load() { build/bin/ropectl load --target="unix:$folder/socket" --tokens=1 --duration="$1" --json; }
load 2s >"$folder/warm.json"
callgrind_control --instr=on "$server" >/dev/null
load "${seconds}s" >"$folder/load.json"
callgrind_control --instr=off "$server" >/dev/null
kill "$server" && wait "$server" || true
server=

callgrind_annotate --inclusive=yes --threshold=100 "$folder/profile" |
  python3 -c '
import json, re, sys
calls = json.load(open(sys.argv[1]))["answered"]
total, parts = 0, {}
for line in sys.stdin:
    found = re.match(r"\s*([\d,]+) \(\s*[\d.]+%\)\s+(.*)", line)
    if not found:
        continue
    count = int(found[1].replace(",", ""))
    if "PROGRAM TOTALS" in found[2]:
        total = count
    name = re.search(sys.argv[2] + r"(?=\()", found[2])
    if name:
        parts[name[0]] = max(parts.get(name[0], 0), count)
print(f"{calls} calls, {total / calls:,.0f} instructions each")
for name, count in parts.items():
    print(f"{name}: {count / calls:,.0f}")
sum_ = sum(parts.values())
print(f"log and metrics: {sum_ / calls:,.0f}, {sum_ / (total - sum_):.2%} of the rest")
' "$folder/load.json" "$telemetry"
