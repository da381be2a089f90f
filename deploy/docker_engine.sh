# Sourced by docker_test.sh: finds or starts a container engine, and provides base images.
# shellcheck shell=bash

# Networks of an engine that this script starts: a range reserved for benchmarks (RFC 2544), which
# the machine does not use.
readonly engine_bridge=198.18.0.1/24 engine_pool=base=198.18.16.0/20,size=24
readonly engine_seconds=30 pull_seconds=120

engine_folder=    # of the engine that start_engine started; empty: none was started
images_made=()    # tags that did not exist before
build_flags=(--network=host)  # for docker build: our engine's containers have no other network

# find_engine FOLDER: finds an engine that answers. Without one, and without DOCKER_HOST, root
# starts an engine with all of its data in FOLDER. Otherwise prints the reason and fails.
find_engine() {
  if ! command -v docker >/dev/null; then
    echo "no container engine: docker is not installed"
  elif docker info >/dev/null 2>&1; then
    return 0
  elif [[ ${DOCKER_HOST:-} ]]; then
    echo "no container engine: none answers at $DOCKER_HOST"
  elif [[ $(id -u) != 0 ]] || ! command -v dockerd >/dev/null; then
    echo "no container engine: none answers, and starting one takes root and dockerd"
  elif [[ -e /sys/class/net/docker0 ]]; then
    echo "no container engine: none answers, but the bridge docker0 belongs to one"
  else
    start_engine "$1"
    return
  fi
  return 1
}

# The engine changes no packet filters and no forwarding of the machine. Published ports work
# nevertheless; builds need --network=host.
start_engine() {
  engine_folder=$1
  export DOCKER_HOST=unix://$engine_folder/docker.sock
  mkdir -p "$engine_folder"
  setsid dockerd --data-root="$engine_folder/data" --exec-root="$engine_folder/exec" \
    --pidfile="$engine_folder/dockerd.pid" --host="$DOCKER_HOST" \
    --iptables=false --ip6tables=false --ip-forward=false \
    --bip="$engine_bridge" --default-address-pool="$engine_pool" \
    >"$engine_folder/dockerd.log" 2>&1 </dev/null &
  local dockerd=$! i
  for ((i = 0; i < engine_seconds * 10; ++i)); do
    ! docker info >/dev/null 2>&1 || return 0
    kill -0 "$dockerd" 2>/dev/null || break
    sleep 0.1
  done
  echo "no container engine: dockerd does not start here: $(tail -n 1 "$engine_folder/dockerd.log")"
  return 1
}

# Stops the engine that start_engine started, and removes its folder, bridge, mount and cgroups.
stop_engine() {
  [[ $engine_folder ]] || return 0
  local pid i cgroup
  pid=$(cat "$engine_folder/dockerd.pid" 2>/dev/null) || true
  if [[ $pid ]]; then
    kill "$pid" 2>/dev/null || true
    for ((i = 0; i < engine_seconds * 10; ++i)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    ip link delete docker0 2>/dev/null || true
  fi
  umount "$engine_folder/exec/netns/default" 2>/dev/null || true
  for cgroup in /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker; do
    [[ ! -d $cgroup ]] || find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
  rm -rf "$engine_folder"
  engine_folder=
}

# provide_image TAG MAKER: uses an existing image, or pulls it, or builds it with `MAKER TAG`.
provide_image() {
  ! docker image inspect "$1" >/dev/null 2>&1 || return 0
  images_made+=("$1")
  ! timeout "$pull_seconds" docker pull -q "$1" >/dev/null 2>&1 || return 0
  echo "$1 could not be pulled; making it from the distribution's packages"
  "$2" "$1"
}

# Builds a minimal Debian 12 with the package sources of this machine.
make_debian() {
  command -v mmdebstrap >/dev/null || { echo "mmdebstrap is not installed" >&2 && return 1; }
  local made sources=/etc/apt/sources.list.d/debian.sources option
  local options=(--quiet --format=tar --variant=minbase --include=usr-is-merged
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
  [[ -s $sources ]] || sources=/etc/apt/sources.list
  while read -r option; do
    options+=("--aptopt=$option")
  done < <(apt-config dump | grep -E '^Acquire::(Check-Valid-Until|Check-Date|https?::Proxy) ')
  made=$(mktemp -d)
  {
    # shellcheck disable=SC2016  # mmdebstrap's own shell expands $1
    mmdebstrap "${options[@]}" --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
      bookworm "$made/base.tar" "$sources" >"$made/log" 2>&1 &&
      write_apt_settings "$made" &&
      tar -C "$made" --owner=0 --group=0 -rf "$made/base.tar" ./etc/apt/apt.conf.d/docker-clean &&
      docker import --change 'CMD ["bash"]' "$made/base.tar" "$1" >>"$made/log" 2>&1
  } || { tail -n 20 "$made/log" >&2 && rm -rf "$made" && return 1; }
  rm -rf "$made"
}

# As in Debian's image, layers must not keep package files and apt's caches. The settings are added
# to the finished tar, because mmdebstrap's apt reads the new root's settings and runs on this
# machine.
write_apt_settings() {
  local clean='rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb || true'
  mkdir -p "$1/etc/apt/apt.conf.d"
  cat >"$1/etc/apt/apt.conf.d/docker-clean" <<END
DPkg::Post-Invoke { "$clean"; };
APT::Update::Post-Invoke { "$clean"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::Languages "none";
END
}

# Builds a replacement for the Prometheus image from the distribution's package, under its tag.
make_prometheus() {
  docker build "${build_flags[@]}" -t "$1" - <<END
FROM $(base_tag)
RUN apt-get update && apt-get install -y --no-install-recommends prometheus \\
 && install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
END
}
