#!/usr/bin/env bash
# Builds the image from this tree and checks on an engine what deploy/README.md says about it.
# Usage: deploy/docker_test.sh [--image=TAG] [--compose=skip]
#   --image=TAG:     checks an existing image of a running engine instead of building one
#   --compose=skip:  skips deploy/compose.yaml
# Uses the engine that docker reaches. If none answers, root starts a dockerd with all of its data
# in a temporary folder. If no registry answers, mmdebstrap builds the base images from the
# distribution's packages. The build gets http_proxy and the other proxy variables. The script
# prints a line for each check and removes everything that it created, except the build cache of an
# engine that ran before. Exits 0 if all checks passed, 1 if one failed, 77 without an engine, 2 on
# a wrong flag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/docker_engine.sh
source deploy/docker_engine.sh
# shellcheck source=tests/deploy/unit_pair.sh
source tests/deploy/unit_pair.sh
export LC_ALL=C  # a decimal point in EPOCHREALTIME

readonly image_bytes_max=150000000 first_tensor_ms_max=1000 stop_ms_max=2000 wait_ms=60000
readonly label=rope-docker-test-$$

complain() { echo "docker_test: $*" >&2; }

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# until_true COMMAND...: repeats the command until it succeeds; fails after a minute.
until_true() {
  local end
  end=$(($(now_ms) + wait_ms))
  until "$@"; do
    (($(now_ms) < end)) || return 1
    sleep 0.02
  done
}

# want WHAT GOT PATTERN: fails with a message if GOT does not match.
want() {
  # shellcheck disable=SC2053  # a pattern
  [[ $2 == $3 ]] && return
  echo "$1: got '$2', want '$3'" >&2
  return 1
}

passed=0 failed=0 as=()
# check NAME FUNCTION: runs the function and prints its result and `detail`, which it sets.
check() {
  detail=
  if "$2"; then
    passed=$((passed + 1))
    printf 'ok      %-36s %s\n' "$1" "$detail"
  else
    failed=$((failed + 1))
    printf 'FAILED  %-36s %s\n' "$1" "$detail"
  fi
}

# Runs the image's ropectl with the image's libraries as a process of this machine, with the command
# prefix in the array `as`, which sets the user.
ropectl() {
  local loader=("$root"/usr/lib/*-linux-gnu/ld-linux-*.so.*)
  "${as[@]}" "${loader[0]}" --library-path "$(dirname "${loader[0]}")" \
    "$root/usr/local/bin/ropectl" "$@"
}

# rotates TARGET: succeeds if the server rotates (1, 0) at position 1 to (cos 1, sin 1).
rotates() {
  ropectl rotate "--target=$1" --timeout=2s "--config=$folder/config.json" "${unit_pair_flags[@]}" \
    "--q=$folder/q.npy" "--output_q=$folder/rotated.npy" >/dev/null 2>&1 &&
    is_rotated_unit_pair "$folder/rotated.npy"
}

# start NAME [FLAG OF DOCKER RUN...] [-- FLAG OF THE SERVER...]: starts a container. Sets target,
# unless the container has no network.
start() {
  local name=$1 flags=(--publish=127.0.0.1::50051 --publish=127.0.0.1::9464)
  shift
  while (($#)) && [[ $1 != -- ]]; do
    [[ $1 != --network=none ]] || flags=()
    flags+=("$1")
    shift
  done
  docker run --detach --name="$label-$name" --label="$label" "${flags[@]}" "$image" "${@:2}" \
    >/dev/null 2>"$folder/run.log" || { cat "$folder/run.log" >&2 && return 1; }
  target=$(docker port "$label-$name" 50051 2>/dev/null) || target=
}

inspect() { docker inspect "$label-$1" --format "$2"; }

is_healthy() { [[ $(inspect "$1" '{{.State.Health.Status}}') == healthy ]]; }

# stop NAME: runs docker stop, which sends SIGTERM; the server must drain and exit with 0.
stop() {
  docker stop --time=10 "$label-$1" >/dev/null &&
    want "exit status" "$(inspect "$1" '{{.State.ExitCode}}')" 0 &&
    want "last line of the log" "$(docker logs "$label-$1" 2>&1 | tail -n 1)" '* drained'
}

check_size() {
  local bytes
  bytes=$(docker image inspect "$image" --format '{{.Size}}')
  detail="$((bytes / 1000000)) MB, at most $((image_bytes_max / 1000000))"
  ((bytes <= image_bytes_max))
}

check_settings() {
  local config='{{.Config.User}} {{.Config.StopSignal}} {{json .Config.Cmd}}'
  config+=' {{index .Config.Labels "org.opencontainers.image.version"}}'
  detail=$(docker image inspect "$image" --format "$config")
  want "user, stop signal, command and version" "$detail" \
    "65532:65532 SIGTERM @(null|\[\]) $(ropectl_version)"
}

# deploy/sbom.py reads the image's own list of packages and its dpkg.
check_sbom() {
  python3 -B deploy/sbom.py "$root" >"$folder/sbom.spdx.json" &&
    detail="$(grep -c '"primaryPackagePurpose"' "$folder/sbom.spdx.json") packages" &&
    grep -q '"fileName": "./usr/local/bin/rope_server"' "$folder/sbom.spdx.json"
}

check_labels() {
  local name
  for name in title description licenses version revision created source base.name; do
    [[ $(docker image inspect "$image" \
      --format "{{index .Config.Labels \"org.opencontainers.image.$name\"}}") ]] ||
      { echo "the image has no label $name" >&2 && return 1; }
  done
}

ropectl_version() { ropectl info "--target=$target" | awk '$1 == "version" { print $2 }'; }

check_no_build_tools() {
  local tool
  for tool in gcc g++ c++ cc ld make cmake ninja git python3 nvcc protoc curl; do
    [[ ! -e $root/usr/bin/$tool && ! -e $root/usr/local/bin/$tool ]] ||
      { echo "the image holds $tool" >&2 && return 1; }
  done
}

check_first_tensor() {
  local begin ms
  begin=$(now_ms)
  start plain && until_true rotates "$target" || return 1
  ms=$(($(now_ms) - begin))
  detail="$ms ms, at most $first_tensor_ms_max"
  ((ms <= first_tensor_ms_max))
}

check_health() {
  local begin
  begin=$(now_ms)
  until_true is_healthy plain || return 1
  detail="after $(($(now_ms) - begin)) ms"
}

check_golden() {
  local files=(tests/conformance/golden/*.json)
  ropectl verify "--target=$target" "${files[@]}" >"$folder/verify" 2>&1 ||
    { tail -n 5 "$folder/verify" >&2 && return 1; }
  detail="${#files[@]} files"
}

check_metrics() {
  local address
  address=$(docker port "$label-plain" 9464)
  curl -sSf "http://$address/metrics" >"$folder/metrics" || return 1
  detail=$(grep '^rope_build_info' "$folder/metrics")
  grep -q '^grpc_server_call_started_total{.*} [1-9]' "$folder/metrics"
}

# Calls ListServices with curl: a gRPC frame whose message has "*" in field 7.
check_reflection() {
  printf '\x00\x00\x00\x00\x03\x3a\x01*' |
    curl -sSf --http2-prior-knowledge --data-binary @- -H 'te: trailers' \
      -H 'content-type: application/grpc' --output "$folder/reflection" \
      "http://$target/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" &&
    detail=$(grep -aoE '(rope|grpc)\.[a-z0-9.]+\.[A-Z][A-Za-z]+' "$folder/reflection" | xargs) &&
    want services "$detail" '*rope.v1.RopeService*'
}

threads() { ropectl info "--target=$target" | awk '$1 == "device" { print $(NF - 1) }'; }

check_threads() {
  detail="$(threads) on $(nproc) processors"
  want threads "$(threads)" "$(nproc)"
}

check_stop() {
  local begin ms
  begin=$(now_ms)
  stop plain || return 1
  ms=$(($(now_ms) - begin))
  detail="$ms ms, at most $stop_ms_max"
  ((ms <= stop_ms_max))
}

readonly hardened=(--read-only --user=65532:65532 --cap-drop=ALL
  --security-opt=no-new-privileges --memory=512m --cpus=1 --pids-limit=64)

# The container has neither a shell nor tools: empty folders hide /usr/bin and /usr/sbin.
check_hardened() {
  local status
  start hardened "${hardened[@]}" --health-interval=1s --volume="$folder/empty:/usr/bin:ro" \
    --volume="$folder/empty:/usr/sbin:ro" || return 1
  until_true rotates "$target" && check_golden && until_true is_healthy hardened || return 1
  status=$(awk '/^(Uid|CapBnd|NoNewPrivs|Seccomp):/ { print $1 $2 }' \
    "/proc/$(inspect hardened '{{.State.Pid}}')/status" | xargs)
  detail="golden files, healthy, $status"
  want "process status" "$status" 'Uid:65532 CapBnd:0000000000000000 NoNewPrivs:1 Seccomp:2'
}

check_quota() {
  detail="$(threads) with --cpus=1"
  want threads "$(threads)" 1
}

check_model() {
  local file=/models/mine.json
  start model --volume="$folder/config.json:$file:ro" -- "--model=mine=$file" &&
    until_true rotates "$target" &&
    ropectl describe "--target=$target" --model=mine >"$folder/describe" &&
    detail=$(awk '$1 == "head_dim"' "$folder/describe" | xargs) &&
    want description "$detail" 'head_dim 2' && stop model
}

check_bad_model() {
  start bad_model -- --model=mine=/models/none.json || return 1
  docker wait "$label-bad_model" >/dev/null
  detail=$(docker logs "$label-bad_model" 2>&1 | tail -n 1)
  want "exit status" "$(inspect bad_model '{{.State.ExitCode}}')" 2 &&
    want log "$detail" '*/models/none.json*'
}

# A flag that is not repeatable takes its last value: here the address of the metrics.
check_repeated() {
  start repeated --publish=127.0.0.1::9465 -- --listen=0.0.0.0:50051 --device=cpu \
    --metrics_listen=0.0.0.0:9464 --metrics_listen=0.0.0.0:9465 || return 1
  until_true rotates "$target" &&
    curl -sSf "http://$(docker port "$label-repeated" 9465)/metrics" >"$folder/metrics" &&
    stop repeated && detail='--listen twice, --metrics_listen three times'
}

# A container without a network; the socket's folder and file belong to the server's user.
check_unix_socket() {
  start socket --network=none "--user=$(id -u):$(id -g)" --cap-drop=ALL \
    --volume="$folder/socket:/run/rope" -- --listen=unix:/run/rope/rope.sock || return 1
  until_true rotates "unix:$folder/socket/rope.sock" && stop socket &&
    detail='rotated with --network=none'
}

# loads TRANSPORT: runs a load over that transport. Every request must be answered, and the client
# must not fall back to another transport.
loads() {
  ropectl load "--target=unix:$folder/shared/rope.sock" "--transport=$1" --concurrency=2 \
    --duration=2s >"$folder/load" 2>&1 || { tail -n 5 "$folder/load" >&2 && return 1; }
  want "the load's first lines" "$(head -n 2 "$folder/load" | xargs)" \
    "$1, 2 in flight,*requests [1-9]*, 0 failed,*" || return 1
  detail=$(awk '$1 == "requests" { print $2, "answered," } $1 == "latency" { print $3, $4, "us" }' \
    "$folder/load" | xargs)
}

# The server runs as the image's user, the client as another. The socket's mode lets the client
# connect, and a memfd that comes with the connection needs no name, owner or common folder.
check_memfd() {
  local as=()
  [[ $(id -u) != 0 ]] || as=(setpriv --reuid=1000 --regid=1000 --clear-groups)
  start memfd "${hardened[@]}" --network=none --volume="$folder/shared:/run/rope" -- \
    --enable_shared_memory --listen=unix:/run/rope/rope.sock --socket_mode=666 || return 1
  until_true answers && loads memfd && loads ring || return 1
  detail+=", a client of uid $("${as[@]}" id -u)"
  stop memfd
}

answers() { ropectl health "--target=unix:$folder/shared/rope.sock" --timeout=2s >/dev/null 2>&1; }

find_compose() {
  if docker compose version >/dev/null 2>&1; then
    compose_tool=(docker compose)
  elif command -v docker-compose >/dev/null; then
    compose_tool=(docker-compose)
  else
    return 1
  fi
}

compose() {
  ROPE_IMAGE=$image ROPE_PORT=127.0.0.1:0 PROMETHEUS_PORT=127.0.0.1:0 \
    "${compose_tool[@]}" -p "$label" -f deploy/compose.yaml "$@"
}

# prometheus_says QUERY VALUE
prometheus_says() {
  [[ $(curl -sSG "http://$prometheus/api/v1/query" --data-urlencode "query=$1" 2>/dev/null) == \
    *"\"value\":["*",\"$2\"]"* ]]
}

check_compose() {
  local prometheus tag
  tag=$(sed -n 's/^ *image: \(prom.*\)/\1/p' deploy/compose.yaml)
  provide_image "$tag" make_prometheus >"$folder/prometheus.log" 2>&1 ||
    { tail -n 20 "$folder/prometheus.log" >&2 && return 1; }
  compose up --detach --no-build >"$folder/compose.log" 2>&1 ||
    { tail -n 20 "$folder/compose.log" >&2 && return 1; }
  prometheus=$(compose port prometheus 9090) && target=$(compose port rope 50051) || return 1
  until_true rotates "$target" && until_true prometheus_says 'up{job="rope"}' 1 &&
    until_true prometheus_says 'sum(grpc_server_call_started_total) > bool 0' 1 || return 1
  [[ $(curl -sS "http://$prometheus/api/v1/rules") == *RopeServerDown* ]] || return 1
  detail="${compose_tool[*]}: up{job=\"rope\"} is 1"
  compose down --volumes >"$folder/compose.log" 2>&1
}

check_compose_gpu() {
  compose -f deploy/compose.gpu.yaml config >"$folder/compose.log" 2>&1 &&
    grep -q 'driver: nvidia' "$folder/compose.log"
}

# However the script ends, it removes everything that it created.
clean_up() {
  local status=$? containers tag
  trap - EXIT INT TERM
  if [[ ${compose_tool[*]} ]]; then compose down --volumes >/dev/null 2>&1 || true; fi
  containers=$(docker ps --all --quiet --filter="label=$label" 2>/dev/null) || true
  # shellcheck disable=SC2086  # a list
  [[ ! $containers ]] || docker rm --force --volumes $containers >/dev/null || true
  if [[ ! $engine_folder ]]; then
    for tag in "${images_made[@]}"; do docker image rm "$tag" >/dev/null 2>&1 || true; done
  fi
  stop_engine
  rm -rf "$folder"
  exit "$status"
}

base_tag() { sed -n 's/^ARG RUNTIME_IMAGE=//p' Dockerfile; }

build_image() {
  local begin=$SECONDS variable
  image=$label
  provide_image "$(base_tag)" make_debian || return 1
  images_made+=("$image")
  for variable in {http,https,no,HTTP,HTTPS,NO}_{proxy,PROXY}; do
    [[ ! ${!variable:-} ]] || build_flags+=("--build-arg=$variable")
  done
  echo "building the image: $(base_tag) and what it lacks"
  docker build "${build_flags[@]}" --target=runtime -t "$image" . >"$folder/build.log" 2>&1 ||
    { tail -n 40 "$folder/build.log" >&2 && return 1; }
  echo "built in $((SECONDS - begin)) s"
}

unpack_image() {
  local container
  mkdir "$root"
  container=$(docker create --label="$label" "$image" 2>"$folder/run.log") &&
    docker export "$container" | tar -C "$root" --no-same-owner --exclude='dev/*' -x
}

run_checks() {
  check "docker run to first rotated tensor" check_first_tensor
  check "image size" check_size
  check "user, signal, command, version" check_settings
  check "labels" check_labels
  check "bill of materials" check_sbom
  check "no build tools in the image" check_no_build_tools
  check "golden files from the host" check_golden
  check "health" check_health
  check "metrics" check_metrics
  check "reflection" check_reflection
  check "threads: all processors" check_threads
  check "SIGTERM: drained, status 0" check_stop
  check "hardened, no shell, no tools" check_hardened
  check "threads: the container's quota" check_quota
  check "config.json mounted as a file" check_model
  check "config.json that is not there" check_bad_model
  check "Unix socket in a mounted folder" check_unix_socket
  check "memfd, ring over a Unix socket" check_memfd
  check "flags of the entry point, repeated" check_repeated
  if [[ $skip_compose ]] || ! find_compose; then
    echo "skipped compose: ${skip_compose:-neither docker compose nor docker-compose is installed}"
  else
    check "compose: Prometheus scrapes" check_compose
    check "compose: variant for a GPU" check_compose_gpu
  fi
}

image='' skip_compose='' compose_tool=()
for argument in "$@"; do
  case $argument in
    --image=?*) image=${argument#--image=} ;;
    --compose=skip) skip_compose='as asked' ;;
    *) complain "got argument '$argument', want --image=TAG or --compose=skip" && exit 2 ;;
  esac
done

folder=$(mktemp -d /var/tmp/rope-docker-test.XXXXXX)
readonly folder root=$folder/root
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
find_engine "$folder/engine" || exit 77
command -v curl >/dev/null || { complain "curl is not installed" && exit 1; }
docker info --format 'engine: {{.ServerVersion}}, {{.Driver}}, cgroup v{{.CgroupVersion}}'
[[ ! $engine_folder ]] || echo "the engine was started for this, and ends with it"
chmod 755 "$folder"
mkdir "$folder/empty" "$folder/socket" "$folder/shared"
chmod 777 "$folder/shared"  # for the image's user
write_unit_pair "$folder"
[[ $image ]] || build_image
unpack_image
run_checks
echo "$passed passed, $failed failed"
((failed == 0))
