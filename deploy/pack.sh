#!/usr/bin/env bash
# Packs the built programs and every shared library that they need, including the C library and its
# loader, into one folder for another machine. Copy the folder to any path and start
# FOLDER/bin/NAME. FOLDER/share/rope/rope.protoset is the schema.
# Usage: deploy/pack.sh [--build=DIR] FOLDER      FOLDER must be empty or must not exist
# The other machine needs the same processor architecture, Linux 3.2 or newer and a POSIX /bin/sh;
# its distribution may be another one, older or newer. For a GPU it needs only the driver.
set -euo pipefail

readonly programs=(rope_server ropectl rope_bench) wanted=(rope_server ropectl)

fail() {
  echo "pack: $*" >&2
  exit 2
}

build=$(dirname "${BASH_SOURCE[0]}")/../build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
[[ $# == 1 && $1 != -* ]] || fail "got arguments '$*', want [--build=DIR] FOLDER"
readonly folder=$1
[[ ! -e $folder || (-d $folder && -z $(ls -A "$folder")) ]] || fail "$folder is not empty"
for program in "${wanted[@]}"; do
  [[ -x $build/bin/$program ]] || fail "$build/bin/$program is not built; run deploy/build.sh"
done
[[ -s $build/rope.protoset ]] || fail "$build/rope.protoset is not built; run deploy/build.sh"

# Prints NAME PATH for every library of a program, and for its loader.
libraries() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 } $1 ~ /^\// { print $1, $1 }'
}

# The loader's name in the folder, the same for every architecture.
readonly loader=loader

copy_libraries() {
  local name path
  if ldd "$1" | grep 'not found' >&2; then fail "$1 needs libraries that this machine lacks"; fi
  while read -r name path; do
    if [[ $name == /* ]]; then
      cp -L "$path" "$folder/lib/$loader"
    elif [[ ! -e $folder/lib/$name ]]; then
      cp -L "$path" "$folder/lib/$name"
    fi
  done < <(libraries "$1")
}

# Copies the other libraries of the C library. A driver that is loaded at run time may need them,
# and their version must be that of the packed libc.
copy_c_library() {
  local libc name
  libc=$(libraries "$1" | awk '$1 == "libc.so.6" { print $2 }')
  for name in libdl.so.2 libm.so.6 libpthread.so.0 libresolv.so.2 librt.so.1 libutil.so.1; do
    [[ ! -e $(dirname "$libc")/$name ]] || cp -L "$(dirname "$libc")/$name" "$folder/lib/$name"
  done
}

# The start script runs the packed loader, because a program names its loader by an absolute path.
# LD_LIBRARY_PATH comes after the packed libraries, so that a driver in it is still found.
write_start_script() {
  cat >"$folder/bin/$1" <<SCRIPT
#!/bin/sh
# Starts $1 with the libraries that are packed beside it.
self=\$0
[ ! -L "\$self" ] || self=\$(readlink -f "\$self")
case \$self in */*) ;; *) self=./\$self ;; esac
lib=\${self%/*}/../lib
exec "\$lib/$loader" --argv0 "\$0" \\
  --library-path "\$lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" "\$lib/programs/$1" "\$@"
SCRIPT
  chmod +x "$folder/bin/$1"
}

mkdir -p "$folder/bin" "$folder/lib/programs" "$folder/share/rope"
cp "$build/rope.protoset" "$folder/share/rope/"
packed=()
copy_c_library "$build/bin/${wanted[0]}"
for program in "${programs[@]}"; do
  [[ -x $build/bin/$program ]] || continue
  strip -o "$folder/lib/programs/$program" "$build/bin/$program"
  copy_libraries "$build/bin/$program"
  write_start_script "$program"
  packed+=("$program")
done
chmod -R u+w,a+rX "$folder"
echo "packed ${packed[*]} and $(find "$folder/lib" -maxdepth 1 -type f | wc -l) libraries," \
  "$(du -sh "$folder" | cut -f1), into $folder"
