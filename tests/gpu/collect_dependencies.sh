#!/usr/bin/env bash
# Fills a folder with the libraries that tests/gpu/run.sh builds against, from this machine's
# distribution packages: Abseil, GoogleTest and nlohmann-json. The folder is a prefix that works on
# any x86-64 Linux under any path: ROPE_GPU_DEPS=FOLDER tests/gpu/run.sh
# Usage: tests/gpu/collect_dependencies.sh FOLDER      FOLDER must be empty or must not exist
set -euo pipefail

readonly packages=(libabsl-dev libgtest-dev libgmock-dev nlohmann-json3-dev)

fail() {
  echo "collect_dependencies: $*" >&2
  exit 2
}

[[ $# == 1 && $1 != -* ]] || fail "got arguments '$*', want one folder"
readonly folder=$1
[[ ! -e $folder || (-d $folder && -z $(ls -A "$folder")) ]] || fail "$folder is not empty"
command -v dpkg >/dev/null || fail "this system has no dpkg"
listing=$(dpkg -L "${packages[@]}" 2>/dev/null) ||
  fail "packages are missing, want installed: ${packages[*]}"

# Headers, archives, CMake files and licences, in the distribution's own layout under the prefix.
copy_packages() {
  mkdir -p "$folder"
  grep -E '^/usr/(include|lib|share/cmake)/|^/usr/share/doc/[^/]+/copyright$' <<<"$listing" |
    grep -vE '\.pc$' | while read -r file; do
      # Folders are made by the files in them; links become what they point to.
      [[ -f $file ]] && echo "${file#/usr/}"
    done | tar -C /usr -chf - --files-from=- | tar -C "$folder" -xf -
}

# The packaged CMake files name shared libraries, which need this machine's C library. The archives
# in the same folder need only a linker.
name_archives() {
  sed -i -E 's/ SHARED IMPORTED\)/ STATIC IMPORTED)/; /IMPORTED_SONAME_/d; s/\.so\.[0-9.]+"/.a"/' \
    "$1"/abslTargets*.cmake
}

# CMake looks into lib/ARCHITECTURE only where the target's distribution has such folders, and into
# lib/cmake everywhere.
add_signpost() {
  local config=$1
  local package
  package=$(basename "$(dirname "$config")")
  mkdir -p "$folder/lib/cmake/$package"
  printf 'include("%s")\n' \
    "\${CMAKE_CURRENT_LIST_DIR}/../../../${config#"$folder"/}" \
    >"$folder/lib/cmake/$package/$(basename "$config")"
}

copy_packages
configs=("$folder"/lib/*/cmake/*/*Config.cmake)
[[ -f ${configs[0]} ]] || fail "the packages hold no CMake files"
for config in "${configs[@]}"; do
  add_signpost "$config"
done
name_archives "$(dirname "${configs[0]}")/../absl"
archives=$(find "$folder" -name '*.a' | wc -l)
echo "collected $archives archives, $(du -sh "$folder" | cut -f1), into $folder"
