#!/usr/bin/env bash
# Packs the built programs and every shared library that they need, including the C library and its
# loader, into one folder for another machine. Copy the folder to any path and start
# FOLDER/bin/NAME. FOLDER/share/rope has the schema, and the names and licences of the packages that
# are packed.
# Usage: deploy/pack.sh [--build=DIR] FOLDER [PROGRAM...]
#   FOLDER must be empty or must not exist
#   PROGRAM: default rope_server, ropectl, and rope_bench if it is built. What is missing is built.
# The other machine needs the same processor architecture, Linux 3.2 or newer and a POSIX /bin/sh;
# its distribution may be another one, older or newer. For a GPU it needs only the driver.
set -euo pipefail

fail() {
  echo "pack: $*" >&2
  exit 2
}

here=$(dirname "${BASH_SOURCE[0]}")
build=$here/../build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
[[ $# -ge 1 && $1 != -* ]] || fail "got arguments '$*', want [--build=DIR] FOLDER [PROGRAM...]"
readonly folder=$1
shift
programs=("$@")
if ((!$#)); then
  programs=(rope_server ropectl)
  [[ ! -x $build/bin/rope_bench ]] || programs+=(rope_bench)
fi
readonly lib=$folder/lib/rope
build=$(mkdir -p "$build" && cd "$build" && pwd)
[[ ! -e $folder || (-d $folder && -z $(ls -A "$folder")) ]] || fail "$folder is not empty"
for file in "${programs[@]/#/bin/}" rope.protoset; do
  if [[ ! -s $build/$file ]]; then
    "$here/install_dependencies.sh"
    "$here/build.sh" "--build=$build" "${programs[@]}" rope_protoset
    break
  fi
done

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
      cp -L "$path" "$lib/$loader"
    elif [[ ! -e $lib/$name ]]; then
      cp -L "$path" "$lib/$name"
    fi
  done < <(libraries "$1")
}

# Copies the other libraries of the C library. A driver that is loaded at run time may need them,
# and their version must be that of the packed libc.
copy_c_library() {
  local libc name
  libc=$(libraries "$1" | awk '$1 == "libc.so.6" { print $2 }')
  for name in libdl.so.2 libm.so.6 libpthread.so.0 libresolv.so.2 librt.so.1 libutil.so.1; do
    [[ ! -e $(dirname "$libc")/$name ]] || cp -L "$(dirname "$libc")/$name" "$lib/$name"
  done
}

# Lists the packages of the libraries and those that are compiled into programs, and copies the
# licence of each.
copy_licences() {
  local package
  "$here/list_packages.sh" "${programs[@]/#/$build/bin/}" >"$folder/share/rope/packages"
  mkdir "$folder/share/rope/licences"
  awk '$1 != "program" { print $2 }' "$folder/share/rope/packages" | while read -r package; do
    [[ ! -s /usr/share/doc/$package/copyright ]] ||
      cp -L "/usr/share/doc/$package/copyright" "$folder/share/rope/licences/$package"
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
lib=\${self%/*}/../lib/rope
exec "\$lib/$loader" --argv0 "\$0" \\
  --library-path "\$lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" "\$lib/programs/$1" "\$@"
SCRIPT
  chmod +x "$folder/bin/$1"
}

mkdir -p "$folder/bin" "$lib/programs" "$folder/share/rope"
cp "$build/rope.protoset" "$folder/share/rope/"
copy_c_library "$build/bin/${programs[0]}"
for program in "${programs[@]}"; do
  strip -o "$lib/programs/$program" "$build/bin/$program"
  copy_libraries "$build/bin/$program"
  write_start_script "$program"
done
copy_licences
chmod -R u+w,a+rX "$folder"
echo "packed ${programs[*]} and $(find "$lib" -maxdepth 1 -type f | wc -l) libraries," \
  "$(du -sh "$folder" | cut -f1), into $folder"
