#!/usr/bin/env bash
# All checks that need a GPU, in at most nine minutes, on a machine without a package index.
#
#   python -m device.prepare        on a machine with an index, without a GPU; makes the folder .device
#   bash tools/device/check.sh      on the machine with the GPU, in the root of the repository
#
# HATCH_LOWER_STAND=cpu tries the steps on a machine without a GPU. $OUT gets results.jsonl and log.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 3
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${CARRIED:=$PWD/.device}" "${LIMIT:=540}" "${HATCH_LOWER_STAND:=cuda}"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
: "${CUDA_HOME:=$(dirname "$(dirname "$(readlink -f "$nvcc")")")}"
[[ -e $CUDA_HOME/include/cuda.h ]] || CUDA_HOME=/usr/local/cuda
mkdir -p "$OUT"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
site=$scratch/site
export OUT HATCH_LOWER_STAND CUDA_HOME PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
export HATCH_LOWER_WEIGHTS=$scratch/weights HATCH_LOWER_CACHE_DIR=$scratch/cache CUDA_CACHE_PATH=$scratch/ptx
export PYTHONPATH=$site:$PWD/tools
: >"$OUT/results.jsonl"

# step NAME SECONDS COMMAND...: run a command with a time limit, and note how the command has ended
step() {
    local name=$1 limit=$2 left=$((LIMIT - SECONDS)) began=$SECONDS status
    shift 2
    ((limit < left)) || limit=$left
    if ((limit < 5)); then
        printf '{"step": "%s", "end": "no time was left"}\n' "$name" >>"$OUT/results.jsonl"
        return 1
    fi
    printf '\n== %s (at %s s, at most %s s)\n' "$name" "$SECONDS" "$limit"
    timeout -k 5 "$limit" "$@"
    status=$?
    printf '{"step": "%s", "end": %s, "seconds": %s}\n' "$name" "$status" "$((SECONDS - began))" >>"$OUT/results.jsonl"
    return $status
}

here() { step "$1" "$2" "$PYTHON" -W ignore -m device.steps "$1"; }

all() {
    step install 60 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" \
        "$CARRIED"/wheels/*.whl "$CARRIED"/models/*.whl || return 3
    here versions 60
    here weights 60
    here compare 120
    # builds use the processors only, and the steps until `wait` have no times that matter
    step rebuild 150 "$PYTHON" -W ignore -m device.rebuild "$CARRIED/models" 140 >"$scratch/rebuild.log" 2>&1 &
    here portable 60
    here check 70
    step errors 90 "$PYTHON" -W ignore -m device.errors
    here onnx 40
    here ptx 40
    step tests 60 env PYTHONPATH="$site" "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider -p no:xdist tests/core/test_gpu.py
    wait
    cat "$scratch/rebuild.log"
    step fallback 70 "$PYTHON" -m device.fallback
    here fixed 30
    here load 40
    here memory 30
    here threads 40
    here speed 90
    # last, because packages of torch 2.11 have crashed and hung
    step native 100 "$PYTHON" -m device.native 95
}

all 2>&1 | tee "$OUT/log"
printf '\n== results that are not right (after %s s)\n' "$SECONDS" | tee -a "$OUT/log"
grep -E '"ok": false|"end": ("|[1-9])' "$OUT/results.jsonl" | cut -c1-500 | tee -a "$OUT/log"
! grep -qE '"ok": false|"end": ("|[1-9])' "$OUT/results.jsonl"
