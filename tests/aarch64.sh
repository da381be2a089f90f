#!/usr/bin/env bash
# Builds for aarch64 with the distribution's cross compiler, and runs there, in an emulator: the
# golden files, the contract suite with the identities of configs, and one request to a server.
# Usage: tests/aarch64.sh
# build/aarch64/root gets the distribution's libraries for aarch64, and this machine none of them.
# Exit status 77: what could not be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly folder=build/aarch64
readonly root=$PWD/$folder/root
readonly emulator=(qemu-aarch64-static -L "$root")

skip() {
  echo "aarch64: skipped: $*"
  exit 77
}

# The libraries of the build, unpacked and not installed. Programs that run during the build are
# those of this machine, and of the same version.
make_root() {
  local packages suite settings sources=/etc/apt/sources.list.d/debian.sources
  packages=$(grep -oE '[a-z][a-z0-9+-]*-dev\b' deploy/install_dependencies.sh | grep -v python)
  suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mapfile -t settings < <(apt-config dump |
    grep -E '^Acquire::(Check-Valid-Until|Check-Date|https?::Proxy) ')
  [[ -s $sources ]] || sources=/etc/apt/sources.list
  rm -rf "$root"
  mkdir -p "$folder"
  mmdebstrap --quiet --variant=extract --architectures=arm64 "${settings[@]/#/--aptopt=}" \
    "--include=${packages//$'\n'/,}" "$suite" "$root" "$sources" >"$folder/root.log" 2>&1 || return
  # Absolute links would lead to this machine's files.
  find "$root/usr" -lname '/*' -printf '%p %l\n' | while read -r link target; do
    ln -sfnr "$root$target" "$link"
  done
  ln -sf /usr/bin/grpc_*_plugin "$root/usr/bin/"
  touch "$root/complete"
}

deploy/install_dependencies.sh --aarch64 || skip "the packages of the cross build"
[[ -f $root/complete ]] || make_root ||
  skip "the packages for aarch64: $(tail -n 1 "$folder/root.log")"

# Warnings are no errors here: which of them are false depends on what a compiler inlines.
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DROPE_UNITY_BUILD=ON -DROPE_CUDA=OFF \
  -DROPE_WERROR=OFF "-DCMAKE_SYSROOT=$root" \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_FIND_ROOT_PATH_MODE_{LIBRARY,INCLUDE,PACKAGE}=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER
cmake --build "$folder" --target rope_server ropectl rope_quickstart conformance

"${emulator[@]}" "$folder/bin/ropectl" verify tests/conformance/golden/*.json
"${emulator[@]}" "$folder/tests/conformance" --gtest_brief=1

exec 3< <(exec "${emulator[@]}" "$folder/bin/rope_server" --listen=127.0.0.1:0 2>&1)
readonly pid=$!
trap 'kill -KILL $pid 2>/dev/null || true' EXIT
until [[ ${line:-} =~ 'listening on '(127\.0\.0\.1:[0-9]+) ]]; do
  read -rt 60 line <&3 || { echo "aarch64: the server did not listen" && exit 1; }
done
timeout 60 "${emulator[@]}" "$folder/bin/rope_quickstart" "--target=${BASH_REMATCH[1]}"
kill -TERM "$pid"
wait "$pid"
echo "aarch64: passed"
