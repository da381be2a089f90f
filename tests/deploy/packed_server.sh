# Sourced by scripts: an empty folder, $folder, and an installed or packed rope_server as their
# child. Both go when the script ends. The script defines `become PROGRAM ARGUMENT...`, which
# replaces the shell by that program.
# shellcheck shell=bash disable=SC2154

folder=$(mktemp -d)
server=
target=  # where the server listens
readonly start_seconds=30

# fail MESSAGE: also prints what the server has written.
fail() {
  echo "$(basename "$0" .sh): $*" >&2
  [[ ! -s $folder/server.log ]] || cat "$folder/server.log" >&2
  exit 1
}

kill_server() {
  [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
}

clean_up() {
  kill_server
  rm -rf "$folder"
}
trap clean_up EXIT

start_server() {
  mkfifo "$folder/server.fifo"
  become rope_server --listen=127.0.0.1:0 >"$folder/server.fifo" 2>"$folder/server.log" &
  server=$!
  exec 3<"$folder/server.fifo"
  local line
  while read -r -t "$start_seconds" line <&3; do
    echo "$line" >>"$folder/server.log"
    if [[ $line == 'listening on '* ]]; then
      target=${line#listening on }
      return
    fi
  done
  fail "the server did not say where it listens"
}

# rotate_unit_pair FOLDER [INSIDE]: has packed ropectl rotate (1, 0) there. INSIDE: what ropectl
# calls the folder.
rotate_unit_pair() {
  local inside=${2:-$1}
  write_unit_pair "$1"
  (become ropectl rotate "--target=$target" "--config=$inside/config.json" \
    "${unit_pair_flags[@]}" "--q=$inside/q.npy" "--output_q=$inside/rotated.npy") ||
    fail "rotate failed"
  is_rotated_unit_pair "$1/rotated.npy" || fail "rotate wrote wrong numbers"
}

# check_maps LIBRARIES: every file that the server maps is in that folder.
check_maps() {
  local outside
  outside=$(awk '$6 ~ /^\// { print $6 }' "/proc/$server/maps" | grep -v "$1/" || true)
  [[ -z $outside ]] || fail "the server maps $outside"
  grep -q "$1/libc.so.6" "/proc/$server/maps" || fail "the server maps no packed libc"
}

# The server drains, and its status is 0.
drain_server() {
  local status=0
  kill -TERM "$server"
  wait "$server" || status=$?
  server=
  [[ $status == 0 ]] || fail "the server stopped with status $status, want 0"
}
