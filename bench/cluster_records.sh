#!/bin/bash
# cluster_records.sh DIR: run the steps that bench/cluster.py wants on 8 cores, each alone
# (8 to 10 minutes; 30 GB in DIR), and print its table of DeepSeek-V3: of a layer of its
# sizes with EXPERTS=32, each of which has as many tokens as there, in PARTS=16 parts of
# SEQUENCES=128 x 512 tokens, and of one of Llama-7B's; in steps, and in one pipe.  CORES=8:
# other numbers of cores.  WORK directories, without which cluster.py prints nothing, stay:
# DIR/*-*.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${BIN:-$PWD/bin}:$PATH
dir=$1 cores=${CORES:-8} text=${TEXT:-examples/calib.jsonl}

record() { # NAME MODEL PARTS SEQUENCES [VARIABLE=VALUE...]
    local work=$dir/$1
    env "${@:5}" taskset -c "0-$((cores - 1))" forge quantize "$dir/$2" "$work.out" --work "$work" --quiet \
        --threads "$cores" --device cpu --text "$text" --parts "$3" --sequences "$4"
    rm -rf "$work.out"
    runs+=("$dir/$2=$work")
}

mkdir -p "$dir"
[ -d "$dir/v3" ] || python3 bench/v3_layer.py "$dir/v3" "${EXPERTS:-32}"
[ -d "$dir/7b" ] || bench/layer_model.sh "$dir/7b" 1
[ -d "$dir/whole" ] || python3 bench/v3_layer.py "$dir/whole" --config
steps=(FORGE_RETRIES=0 FORGE_STEP_COST=20) # not one pipe; a cluster's shares
record 7b-steps 7b 4 64 "${steps[@]}"
record 7b-pipe 7b 1 64
record v3-pipe v3 1 "${SEQUENCES:-128}"
record v3-steps v3 "${PARTS:-16}" "${SEQUENCES:-128}" "${steps[@]}"
NODES="1 4 8 16 64" STOPS=10 python3 bench/cluster.py "$dir/whole" "${runs[@]}"
