#!/usr/bin/env bash
# A pack of deploy/pack.sh works in a root folder that holds only the pack, a shell and that shell's
# C library. There a packed server starts, becomes healthy, rotates for a packed ropectl, agrees
# with a golden file, and drains; and a packed benchmark, if it is built, starts its own processes.
# Usage: tests/deploy/pack_test.sh BUILD_FOLDER
# If the test may not enter a root folder, it runs on the whole system with an empty environment. In
# both cases no program may map a file from outside of the pack.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/deploy/unit_pair.sh
source tests/deploy/unit_pair.sh
# shellcheck source=tests/deploy/packed_server.sh
source tests/deploy/packed_server.sh

readonly build=$1 kilobytes_max=$((64 * 1024))
readonly golden=tests/conformance/golden/default_half_d64.json
readonly root=$folder/root

make_root() {
  local library
  mkdir -p "$root"/{bin,opt,tmp}
  cp -L /bin/sh "$root/bin/sh"
  ldd /bin/sh | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
}

# The command that enters the root folder: in a new user namespace, or as root. Empty: not
# permitted.
enter=()
choose_entrance() {
  local chroot unshare
  chroot=$(PATH=$PATH:/usr/sbin command -v chroot) || return 0
  unshare=$(command -v unshare) || unshare=false
  if "$unshare" --map-root-user "$chroot" "$root" /bin/sh -c : 2>/dev/null; then
    enter=("$unshare" --map-root-user "$chroot" "$root")
  elif "$chroot" "$root" /bin/sh -c : 2>/dev/null; then
    enter=("$chroot" "$root")
  fi
}

# A packed program, with nothing in its environment, in place of this shell or as its child.
become() { exec env -i "${enter[@]}" "$at/opt/rope/bin/$1" "${@:2}"; }
packed() { (become "$@"); }

make_root
deploy/pack.sh "--build=$build" "$root/opt/rope"
if deploy/pack.sh "--build=$build" "$root/opt/rope" 2>"$folder/refusal"; then
  fail "a folder with files in it was packed again"
fi
grep -q 'is not empty' "$folder/refusal" || fail "got $(cat "$folder/refusal")"
cmp "$build/rope.protoset" "$root/opt/rope/share/rope/rope.protoset" || fail "the schema differs"
kilobytes=$(du -sk "$root/opt/rope" | cut -f1)
((kilobytes <= kilobytes_max)) || fail "got $kilobytes KiB, want at most $kilobytes_max"

choose_entrance
at=  # what the packed programs call $root
if ((${#enter[@]})); then
  echo "in a root folder of its own"
else
  at=$root
  echo "skipped: the root folder, which cannot be entered here"
fi
cp "$golden" "$root/tmp/golden.json"
start_server
packed ropectl health "--target=$target" --wait=10s || fail "the server is not healthy"
rotate_unit_pair "$root/tmp" "$at/tmp"
packed ropectl verify "--target=$target" "$at/tmp/golden.json" || fail "the golden file differs"
check_maps /opt/rope/lib/rope
drain_server
if [[ -x $build/bin/rope_bench ]]; then
  row=$(packed rope_bench '--filter=^shipped/decode_token_1$') || fail "rope_bench: got $row"
  [[ $row == *'untuned echo '* ]] || fail "got $row, want a row against an echo"
fi
echo "packed $kilobytes KiB; health, rotate, verify and drain worked"
