#!/usr/bin/env bash
# Prints the distribution's packages whose code is in programs of ours: what sbom.py, pack.sh and
# the Dockerfile read.
# Usage: deploy/list_packages.sh PROGRAM...
#   program NAME VERSION                                   each program that says its version
#   linked NAME VERSION ARCHITECTURE SOURCE DISTRIBUTION   a package of a shared library of theirs
#   compiled NAME VERSION ...                              one whose code is compiled into them
# A library that belongs to no package is named on stderr.
set -euo pipefail

readonly compiled=(libabsl-dev libcli11-dev libspdlog-dev nlohmann-json3-dev)

if ((!$#)); then
  echo "list_packages: got no argument, want PROGRAM..." >&2
  exit 2
fi
distribution=$(awk -F= '{ gsub(/"/, "", $2); value[$1] = $2 }
  END { print value["ID"] "-" value["VERSION_ID"] }' /etc/os-release)
readonly distribution

# lines HOW PACKAGE...
lines() {
  # shellcheck disable=SC2016  # fields of dpkg-query
  local fields='${Package} ${Version} ${Architecture} ${source:Package}'
  dpkg-query -W -f "$1 $fields $distribution\n" "${@:2}" 2>/dev/null || true
}

for program in "$@"; do
  ! version=$("$program" --version 2>/dev/null) || echo "program $version"
done
libraries=$(ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sed 's|^/usr||' | sort -u)
# dpkg knows a file by the path of its package: with /usr in front or without.
mapfile -t paths < <(sed 'p; s|^|/usr|' <<<"$libraries")
owned=$(dpkg -S "${paths[@]}" 2>/dev/null | grep -v '^diversion ' || true)
while read -r library; do
  [[ $owned == *"$library"* ]] || echo "list_packages: $library belongs to no package" >&2
done <<<"$libraries"
mapfile -t linked < <(sed 's/: .*//; s/, /\n/g' <<<"$owned" | sort -u)
lines linked "${linked[@]}"
lines compiled "${compiled[@]}"
