#!/usr/bin/env bash
# tests/gpu/run.sh without a GPU: one line, status 77, and nothing built. And with stubs in place of
# the GPU's tools and of the built programs: every step runs, in its order, and what fails or runs
# out of time is named and leaves the other steps alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
  echo "run_test: $*" >&2
  exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect STATUS LINE ARGUMENT...: checks the output and the exit status of run.sh.
expect() {
  local want_status=$1 want_line=$2 status=0
  shift 2
  ./run.sh "$@" >"$folder/output" 2>&1 || status=$?
  [[ $status == "$want_status" ]] || fail "got status $status, want $want_status: $*"
  [[ $(wc -l <"$folder/output") == 1 ]] || fail "got $(cat "$folder/output"), want one line"
  grep -qF -e "$want_line" "$folder/output" ||
    fail "got $(cat "$folder/output"), want $want_line"
}

if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "a GPU is here: the answer without one is not tested"
else
  expect 77 'no NVIDIA GPU' "--build=$folder/build" "--out=$folder/out"
fi
expect 2 "got argument '--sideways'" --sideways
expect 2 "got argument '--out='" --out=
expect 2 "got argument '--seconds=soon'" --seconds=soon
[[ ! -e $folder/build && ! -e $folder/out ]] || fail "folders were made without a GPU"

# --- stubs: each notes its call, and ends with the status that STUB_name has ---

mkdir "$folder/bin"
cat >"$folder/bin/stub" <<'STUB'
#!/usr/bin/env bash
name=$(basename "$0")
echo "$name $*" >>"$STUB_CALLS"
case "$name $*" in
  "nvidia-smi -L") echo "GPU 0: a stub" ;;
  nvidia-smi*compute_cap*) echo "9.0" ;;
  "nvcc --version") echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
  *--gtest_list_tests*) printf 'All/SomeTest.\n  Something/cuda\n' ;;
  ptxas*)
    echo "ptxas info    : Compiling entry function 'RotateVector' for 'sm_90'" >&2
    echo "ptxas info    : Used 80 registers, used 0 barriers, 352 bytes cmem[0]" >&2
    ;;
  "cmake --build"*)
    for program in bin/rope_bench_cuda tests/conformance; do
      mkdir -p "$2/$(dirname $program)" && ln -sf "$STUB_FOLDER/stub" "$2/$program"
    done
    ;;
esac
status=STUB_${name//-/_}
[[ $* != *--gtest_list_tests* ]] || status=STUB_list
exit "${!status:-0}"
STUB
chmod +x "$folder/bin/stub"
for name in nvidia-smi nvcc cmake ptxas compute-sanitizer python3; do
  ln -s stub "$folder/bin/$name"
done

# run STATUS [NAME=VALUE...]: runs run.sh over the stubs, with a wheel.
mkdir "$folder/deps" && touch "$folder/deps/ropeserve-1.whl"
run() {
  local want_status=$1 status=0
  shift
  rm -rf "$folder/build" "$folder/calls"
  env "PATH=$folder/bin:$PATH" "STUB_CALLS=$folder/calls" "STUB_FOLDER=$folder/bin" \
    "ROPE_GPU_DEPS=$folder/deps" "$@" ./run.sh "--build=$folder/build" >"$folder/output" 2>&1 ||
    status=$?
  [[ $status == "$want_status" ]] || fail "got status $status, want $want_status: $*:
$(cat "$folder/output")"
}
has() { grep -qE -e "$1" "$folder/output" || fail "got $(cat "$folder/output"), want $1"; }

run 0
for step in build smoke registers conformance benchmarks.*turns benchmarks torch memcheck peers; do
  has "^passed .* s  $step"
done
has '^Used 80 registers  RotateVector$'
[[ -s $folder/build/run.log ]] || fail "want run.log in the build folder"
for group in kernel call; do
  grep -qE -- "--filter=\^\(?[a-z|_]*$group" "$folder/calls" || fail "want the rows of $group"
done
order=$(grep -oE 'smoke|gtest_brief|bench.json|zipfile|torch.json|memcheck|peers.json' \
  "$folder/calls" | uniq | tr '\n' ' ')
want='smoke gtest_brief bench.json zipfile torch.json memcheck peers.json '
[[ $order == "$want" ]] || fail "got the order $order, want $want"
grep -q 'CMAKE_CUDA_ARCHITECTURES=90' "$folder/calls" || fail "want the device's architecture"
grep -q 'target rope_bench_cuda conformance' "$folder/calls" || fail "want few targets"
grep -qE 'gtest_filter=\*/cuda:\*/cuda_head_loop:' "$folder/calls" ||
  fail "want the device's backends"

run 1 STUB_conformance=1
has '^FAILED \(1\) .* conformance'
has '^passed .* memcheck'
run 3 STUB_conformance=124
has '^not finished .* conformance'
has '^passed .* peers'
run 1 STUB_cmake=1
has '^FAILED \(1\) .* build'
grep -q rope_bench_cuda "$folder/output" && fail "want no step after a build that failed"
run 3 STUB_cmake=124
has '^not finished .* build'
run 3 STUB_list=124
has '^not finished .* conformance'
has '^passed .* peers'
run 0 STUB_python3=1
has '^skipped .* torch'
has '^skipped .* peers'
run 0 "ROPE_GPU_DEPS=$folder/none"
has 'ROPE_GPU_DEPS holds no wheel'
has '^skipped .* torch'
has '^passed .* peers'
limits=$(sed -nE 's/^ *step "[^"]+" ([0-9]+) .*/\1/p' run.sh | paste -sd+)
((limits > 0 && limits <= 490)) || fail "got limits of $limits s, want 490 s together or less"
echo "run.sh: 9 runs over stubs passed"
