#!/bin/bash
# parts_bench.sh [P]: what parts cost on one machine: user and kernel seconds of forge
# quantize with --parts 1, with P parts in one pipe, and with P parts in steps
# (--jobs P), of the example model and of one random layer of a real size
# (layer_model.sh, 64 x 512 tokens).  The bytes of pipe and steps are compared.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${BIN:-$PWD/bin}:$PATH
parts=${1:-4} text=${TEXT:-examples/calib.jsonl}
dir=$(mktemp -d "${TMPDIR:-/tmp}/parts.XXXXXX")
trap 'rm -rf "$dir"' EXIT
bench/layer_model.sh "$dir/layer" 1
TIMEFORMAT='%U %S'

cpu() { # NAME MODEL OPTION...
    local name=$1 model=$2
    shift 2
    rm -rf "${dir:?}/$name"
    { time forge quantize "$model" "$dir/$name" --text "$text" --device cpu --quiet "$@" >&3 2>&4; } 3>&1 4>&2 2>"$dir/cpu"
    awk '{ print $1 + $2 }' "$dir/cpu"
}

bench() { # WHAT MODEL OPTION...
    local what=$1 one pipe steps
    shift
    one=$(cpu one "$@")
    pipe=$(cpu pipe "$@" --parts "$parts")
    steps=$(cpu steps "$@" --parts "$parts" --jobs "$parts")
    diff -r "$dir/pipe" "$dir/steps"
    awk -v w="$what" -v p="$parts" -v a="$one" -v b="$pipe" -v c="$steps" 'BEGIN {
        printf("%s: %.1f CPU seconds; %d parts in one pipe %.1f (%+.0f %%), in steps %.1f (%+.0f %%)\n",
               w, a, p, b, 100 * (b / a - 1), c, 100 * (c / a - 1)) }'
}

bench "the example model" examples/llama-4m
bench "a layer of ${SIZE:-7b}" "$dir/layer" --sequences "${SEQUENCES:-64}"
