#!/usr/bin/env bash
# Installs packages, builds, starts the server and rotates one real request. Runs until Ctrl-C or
# SIGTERM.
# Usage: deploy/quickstart.sh [--once]      --once: stops the server and exits 0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly preferred_port=50051
readonly server_log=build/quickstart_server.log protoset=build/rope.protoset
readonly start_attempts=300 stop_attempts=300  # Of 0.1 s each.
server_pid=

fail() {
  echo "quickstart: $*" >&2
  if [[ -s $server_log && $server_pid ]]; then
    echo "last lines of $server_log:" >&2
    tail -n 20 "$server_log" >&2
  fi
  exit 1
}

server_runs() { kill -0 "$server_pid" 2>/dev/null; }

# Stops the server with SIGTERM, as an operator does, and sets server_status to its exit status.
stop_server() {
  kill -TERM "$server_pid" 2>/dev/null || true
  for ((i = 0; i < stop_attempts; ++i)); do
    server_runs || break
    sleep 0.1
  done
  if server_runs; then
    kill -KILL "$server_pid" 2>/dev/null || true
  fi
  server_status=0
  wait "$server_pid" || server_status=$?
}

# However the script ends, it stops the server.
on_exit() {
  local status=$?
  trap - EXIT INT TERM
  if [[ $server_pid ]] && server_runs; then
    stop_server
  fi
  exit "$status"
}

# The script checks this, because two servers can share a port (SO_REUSEPORT) unnoticed.
port_is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start_server() {
  local listen=127.0.0.1:$preferred_port
  if port_is_taken "$preferred_port"; then
    echo "port $preferred_port is taken; the server chooses a free one"
    listen=127.0.0.1:0
  fi
  build/bin/rope_server "--listen=$listen" >"$server_log" 2>&1 </dev/null &
  server_pid=$!
}

# The server logs its address when it answers calls.
wait_until_it_listens() {
  for ((i = 0; i < start_attempts; ++i)); do
    [[ ! $signalled ]] || fail "stopped while the server started"
    server_runs || fail "the server ended while it started"
    target=$(grep -oEm1 'listening on 127\.0\.0\.1:[0-9]+' "$server_log" | head -n 1) || true
    target=${target#listening on }
    [[ -z $target ]] || return 0
    sleep 0.1
  done
  fail "the server did not listen after $((start_attempts / 10)) s"
}

print_grpcurl_lines() {
  cat <<END

Turn (1, 0) at position 1 into (cos 1, sin 1) by hand:
  grpcurl -plaintext -d '{
    "rope": {"config": {"head_dim": 2}, "pairing": "PAIRING_HALF"},
    "positions": {"position_ids": {"numbers": [1]}},
    "tensors": [{"role": "ROLE_Q", "layout": "SHD",
                 "array": {"dtype": "DTYPE_FP32", "shape": [1, 1, 2], "numbers": [1, 0]}}]
  }' $target rope.v1.RopeService/Rotate
Read the schema with its comments: grpcurl -protoset $protoset describe rope.v1.Positions

END
}

# Waits for a signal. If the server exits before that, the script fails.
serve_until_signal() {
  echo "The server is up at $target (log: $server_log). Ctrl-C stops it."
  server_status=0
  wait "$server_pid" || server_status=$?
  [[ $signalled ]] || fail "the server ended by itself with status $server_status"
}

case "${1:-}" in
  '') once= ;;
  --once) once=1 ;;
  *) fail "got argument '$1', want --once or none" ;;
esac

deploy/install_dependencies.sh
deploy/build.sh rope_server rope_quickstart rope_protoset

trap on_exit EXIT
signalled=
trap 'signalled=1; [[ $once ]] || echo "stopping the server"' INT TERM
start_server
wait_until_it_listens
timeout 120 build/bin/rope_quickstart "--target=$target" || fail "the request failed"
print_grpcurl_lines
[[ $once || $signalled ]] || serve_until_signal
stop_server
((server_status == 0)) || fail "the server stopped with status $server_status, want 0"
echo "server stopped, status 0"
