#!/usr/bin/env bash
# Builds what a release consists of, from a clean tree, into dist/: Debian packages, wheels, a pack
# with its bill of materials, and SHA256SUMS of all. It neither tags nor publishes.
# Usage: deploy/release.sh [--dry_run] VERSION
#   VERSION: that of project() in CMakeLists.txt, with a dated section in .github/CHANGELOG.md;
#     .github/STABILITY.md has the commands that freeze the ABI and record the wire messages
#   --dry_run: makes the checks and prints the steps
# It needs nvcc, so that every file of a release has the CUDA kernels.
# Times in what is made are those of the last commit (SOURCE_DATE_EPOCH). Exits 2 if a check fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

refuse() {
  echo "release: $*" >&2
  exit 2
}

dry_run=
if [[ ${1:-} == --dry_run ]]; then
  dry_run=1
  shift
fi
[[ $# == 1 && $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
  refuse "got arguments '$*', want [--dry_run] VERSION, such as 1.2.3"
readonly version=$1 dist=dist minor=${1%.*}.0
readonly abi=tests/unit/client/c/librope-$minor.abi wire=tests/e2e/wire/$minor

check() {
  local changes built
  changes=$(git status --porcelain)
  [[ -z $changes ]] || refuse "the tree has changes: $changes"
  built=$(sed -n 's/^project(RopeServe VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
  [[ $built == "$version" ]] || refuse "got $version, want $built of CMakeLists.txt"
  grep -qE "^## ${version//./\\.} \(20[0-9]{2}-[0-9]{2}-[0-9]{2}\)$" .github/CHANGELOG.md ||
    refuse ".github/CHANGELOG.md has no section '## $version (YYYY-MM-DD)'"
  [[ -f $abi ]] || refuse "$abi is missing: the ABI of this minor version is not frozen"
  [[ -d $wire ]] || refuse "$wire is missing: the wire messages of this minor version"
  [[ ! -d $dist || -z $(ls -A "$dist") ]] || refuse "$dist is not empty"
}

# step WHAT COMMAND...: prints both, and runs the command unless this is a dry run.
step() {
  echo "$1: ${*:2}"
  if [[ ! $dry_run ]]; then "${@:2}" >&2; fi
}

# cpack leaves a folder of its own beside the packages.
pack_debian() {
  cpack --config build/CPackConfig.cmake -B "$made/debian"
  cp "$made"/debian/*.deb "$dist/"
}

# Equal contents give equal archives.
archive_pack() {
  deploy/pack.sh "$made/$pack" rope_server ropectl
  tar -C "$made" --sort=name --owner=0 --group=0 --numeric-owner "--mtime=@$SOURCE_DATE_EPOCH" \
    -czf "$dist/$pack.tar.gz" "$pack"
}

write_sbom() { python3 -B deploy/sbom.py "$made/$pack" >"$dist/$pack.spdx.json"; }

write_sums() {
  (cd "$dist" && sha256sum -- *) >"$made/sums"
  mv "$made/sums" "$dist/SHA256SUMS"
}

check
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
pack=ropeserve-$version-linux-$(uname -m)
readonly made pack
export SOURCE_DATE_EPOCH
step "folder" mkdir -p "$dist"
step "programs and libraries" deploy/build.sh -DROPE_CUDA=ON
step "packages of Debian" pack_debian
step "wheels of the package and the tools" deploy/python.sh "$dist"
step "pack for other Linux" archive_pack
step "bill of materials of the pack" write_sbom
step "checksums" write_sums
