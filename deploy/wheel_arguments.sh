# shellcheck shell=bash disable=SC2034
# Sourced by wheel.sh and python.sh: reads their arguments, [--build=DIR] FOLDER. Sets `here`, this
# folder, `build` and `folder`.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../build
if [[ ${1:-} == --build=?* ]]; then
  build=${1#--build=}
  shift
fi
if [[ $# != 1 || $1 == -* ]]; then
  echo "$(basename "$0" .sh): got arguments '$*', want [--build=DIR] FOLDER" >&2
  exit 2
fi
readonly folder=$1
