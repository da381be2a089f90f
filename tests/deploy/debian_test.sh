#!/usr/bin/env bash
# The Debian packages of a build: what they contain, that dpkg installs them into an empty root
# where this machine's packages are all there is, that the service's command line serves from there,
# that a C++ project finds the libraries there, and that nothing stays after a purge.
# Usage: tests/deploy/debian_test.sh BUILD_FOLDER
# No systemd runs here: systemd-analyze reads the unit, systemd-sysusers makes the user. That the
# server works inside of the sandbox is not proven. Without dpkg, dpkg-shlibdeps, file or
# systemd-sysusers the test is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/deploy/packed_server.sh
source tests/deploy/packed_server.sh
# shellcheck source=tests/deploy/unit_pair.sh
source tests/deploy/unit_pair.sh
# shellcheck source=tests/deploy/consumer.sh
source tests/deploy/consumer.sh

readonly build=$1 exposure_max=25  # tenths
export PATH=$folder/stubs:$PATH:/usr/sbin:/sbin
for tool in dpkg dpkg-deb dpkg-shlibdeps file systemd-sysusers; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed" && exit 77; }
done
readonly root=$folder/root debs=$folder/debs
# librope's package calls ldconfig, which would write to this machine's /etc.
mkdir "$folder/stubs"
ln -s /bin/true "$folder/stubs/ldconfig"

as_root=()
if [[ $(id -u) != 0 ]]; then
  command -v fakeroot >/dev/null || { echo "skipped: neither root nor fakeroot" && exit 77; }
  as_root=(fakeroot -i "$folder/owners" -s "$folder/owners" --)
  touch "$folder/owners"
fi

# expect_files PACKAGE PATTERN: each of its files matches the extended regular expression.
expect_files() {
  local other
  other=$(dpkg-deb --fsys-tarfile "$debs/$1"_*.deb | tar -t | grep -v '/$' |
    grep -vxE "\./usr/($2|share/doc/$1/copyright)" || true)
  [[ -z $other ]] || fail "$1 has $other"
}

# The names and versions of this machine's packages, so that dpkg checks each dependency, and their
# files, so that it notices a file that another package has.
make_root() {
  mkdir -p "$root"/{etc,var/lib/dpkg/{info,updates}}
  cp /var/lib/dpkg/status "$root/var/lib/dpkg/"
  cp /var/lib/dpkg/info/*.list "$root/var/lib/dpkg/info/"
}

dpkg_in_root() {
  "${as_root[@]}" dpkg "--root=$root" "--log=$folder/dpkg.log" --force-script-chrootless "$@" \
    >"$folder/dpkg.out" 2>&1 || fail "dpkg $*: $(tail -n 20 "$folder/dpkg.out")"
}

# Except those of dpkg and of the user.
files_in_root() {
  find "$root" \( -path "$root/var" -o -path "$root/etc" \) -prune -o ! -type d -print
}

# The command line of the unit, in the root, with a free port and with FLAGS of an operator.
unit_command() {
  local command
  command=$(sed -n 's/^ExecStart=//p' "$unit")
  [[ $command == "/usr/bin/rope_server "*" \$FLAGS" ]] || fail "ExecStart: got $command"
  command=${command/#\/usr/$root/usr}
  command=${command//50051/0}
  command=${command//\/run\/ropeserve/$folder/run}
  echo "${command/\$FLAGS/--metrics_listen=127.0.0.1:0}"
}

become() {
  local words=("$root/usr/bin/$1" "${@:2}")
  [[ $1 != rope_server ]] || read -ra words < <(unit_command)
  exec env -i "${words[@]}"
}

check_unit() {
  local stop_s drain_s help
  systemd-analyze security --offline=true "--threshold=$exposure_max" "$unit" \
    >"$folder/exposure" 2>&1 || fail "$(tail -n 1 "$folder/exposure")"
  tail -n 1 "$folder/exposure"
  if grep -q '^PrivateUsers=' "$unit"; then fail "PrivateUsers: peers would have no user"; fi
  stop_s=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)s$/\1/p' "$unit")
  help=$("$root/usr/bin/rope_server" --help | tr -s ' \n' ' ')
  drain_s=$(sed -n 's/.*--drain_timeout D[^.]*(default \([0-9]*\)s).*/\1/p' <<<"$help")
  ((stop_s >= 2 * drain_s + 2)) ||
    fail "TimeoutStopSec: got $stop_s s, want two drains of $drain_s s and two seconds"
}

cpack --config "$build/CPackConfig.cmake" -B "$debs" >"$folder/cpack.log" 2>&1 ||
  fail "$(tail -n 20 "$folder/cpack.log")"
version=$(cache_value CMAKE_PROJECT_VERSION)
architecture=$(dpkg --print-architecture)
got=$(cd "$debs" && echo *.deb)
c_library=librope0
want=$(printf "%s_${version}_$architecture.deb " "$c_library" libropeserve-dev ropectl ropeserve)
[[ $got == "${want% }" ]] || fail "got $got, want $want"
expect_files ropectl 'bin/ropectl'
expect_files ropeserve \
  'bin/rope_server|lib/systemd/system/ropeserve.service|lib/sysusers.d/ropeserve.conf'
expect_files libropeserve-dev \
  'include/rope(serve)?/.*|lib/(.*/)?(cmake/RopeServe|pkgconfig)/.*|lib/.*\.(a|so)|share/rope/.*'
expect_files "$c_library" 'lib/(.*/)?librope\.so\.[0-9.]*'

make_root
dpkg_in_root -i "$debs"/*.deb
readonly unit=$root/usr/lib/systemd/system/ropeserve.service
grep -q '^ropeserve:.*:/usr/sbin/nologin$' "$root/etc/passwd" || fail "there is no user ropeserve"
if command -v systemd-analyze >/dev/null; then
  check_unit
else
  echo "skipped: the unit, because systemd-analyze is not installed"
fi

mkdir "$folder/run"
start_server
socket=$folder/run/rope.sock
[[ $(stat -c %a "$socket") == 660 ]] || fail "socket: got mode $(stat -c %a "$socket"), want 660"
(become ropectl health "--target=unix:$socket" --wait=10s) || fail "the server is not healthy"
target=unix:$socket
rotate_unit_pair "$folder"
write_project "$folder/project" 'find_package(RopeServe REQUIRED COMPONENTS client)'
build_project "$folder/project" "-DCMAKE_PREFIX_PATH=$root/usr"
expect_rotated "$folder/project/build/mine" "$target"
write_c_project "$folder/c_project"
build_project "$folder/c_project" "-DCMAKE_PREFIX_PATH=$root/usr"
expect_rotated "$folder/c_project/build/mine" "$target"
drain_server

dpkg_in_root -P ropeserve ropectl libropeserve-dev "$c_library"
[[ -z $(files_in_root) ]] || fail "a purge leaves $(files_in_root)"
kibibytes=$(du -ck "$debs"/*.deb | tail -n 1 | cut -f1)
echo "packages of $kibibytes KiB; install, serve, link and purge worked"
