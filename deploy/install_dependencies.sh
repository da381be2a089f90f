#!/usr/bin/env bash
# Installs the missing distribution packages of the build.
# Usage: deploy/install_dependencies.sh [--tests | --python | --aarch64]
#   --tests: also the packages of the tests; --python: also those of the Python package (python.sh);
#   --aarch64: also those of tests/aarch64.sh
set -euo pipefail

packages=(g++ cmake ninja-build libabsl-dev libgrpc++-dev libprotobuf-dev libssl-dev
  protobuf-compiler protobuf-compiler-grpc libspdlog-dev libhwy-dev nlohmann-json3-dev
  prometheus-cpp-dev libcivetweb-dev libcli11-dev)
python_packages=(python3 python3-dev python3-venv ca-certificates)
test_packages=(clang libgtest-dev libgmock-dev libbenchmark-dev doxygen abigail-tools openssl
  prometheus "${python_packages[@]}")
aarch64_packages=(g++-aarch64-linux-gnu mmdebstrap qemu-user-static)

fail() {
  echo "install_dependencies: $*" >&2
  exit 1
}

case "${1:-}" in
  '') ;;
  --tests) packages+=("${test_packages[@]}") ;;
  --python) packages+=("${python_packages[@]}") ;;
  --aarch64) packages+=("${aarch64_packages[@]}") ;;
  *) fail "got argument '$1', want --tests, --python, --aarch64 or none" ;;
esac

command -v apt-get >/dev/null ||
  fail "this system has no apt; install what Debian 12 calls: ${packages[*]}"

known=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$known" || missing+=("$package")
done
((${#missing[@]})) || exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  command -v sudo >/dev/null ||
    fail "neither root nor sudo; have an administrator install: ${missing[*]}"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null
}
update_and_install() {
  apt_get update && apt_get install -y --no-install-recommends "${missing[@]}"
}

echo "installing packages${as_root[0]:+ with sudo}: ${missing[*]}"
update_and_install || {
  echo "install_dependencies: apt failed, trying once more" >&2
  update_and_install || {
    tail -n 20 "$log" >&2
    fail "apt could not install: ${missing[*]}"
  }
}
echo "installed ${#missing[@]} packages and what they need"
