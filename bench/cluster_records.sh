#!/bin/bash
# cluster_records.sh DIR: run the steps that bench/cluster.py wants on 8 cores, each alone
# (12 to 15 minutes; 30 GB in DIR), and print its table of DeepSeek-V3: of a layer of its
# sizes with EXPERTS=32, each of which has as many tokens as there, in PARTS=16 parts of
# SEQUENCES=128 x 512 tokens, and in 2, whose shares have the 16 experts of 16 nodes; and of
# one of Llama-7B's; in steps, and in one pipe.
#
# Given again it goes on: runs that have ended, DIR/NAME.seconds, are not run again, and
# want none of DIR but what DIR/records.tar has, which is written anew behind each run.
#
# In the environment: RUNS="v3-two v3-steps v3-pipe 7b-steps 7b-pipe" runs some of them;
# CORES=8, other numbers of cores; SCALE=4 SIZE=1b, smaller layers, to try this.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${BIN:-$PWD/bin}:$PATH
dir=$1 cores=${CORES:-8} text=${TEXT:-examples/calib.jsonl}
all="v3-two v3-pipe v3-steps 7b-steps 7b-pipe"
runs=${RUNS:-$all}

say() { echo "cluster_records: $SECONDS s: $*"; }

watcher=''
trap '[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true' EXIT
watch_steps() { # WORK
    while sleep 15 >/dev/null 2>&1; do say "$(cat "$1"/solve-*/stages.jsonl 2>/dev/null | tail -n 1)"; done
}

make_model() { # NAME
    [ ! -e "$dir/$1/model.safetensors" ] || return 0
    rm -rf "${dir:?}/$1"
    case $1 in
    v3) python3 bench/v3_layer.py "$dir/v3" "${EXPERTS:-32}" ;;
    7b) bench/layer_model.sh "$dir/7b" 1 ;;
    esac
    say "made $1"
}

record() { # NAME PARTS SEQUENCES [VARIABLE=VALUE...]
    local name=$1 model=${1%-*} work=$dir/$1 begun

    [[ " $runs " == *" $name "* && ! -e $work.seconds ]] || return 0
    rm -rf "$work" "$work.out"
    make_model "$model"
    say "runs $name"
    begun=$SECONDS
    watch_steps "$work" &
    watcher=$!
    env "${@:4}" taskset -c "0-$((cores - 1))" forge quantize "$dir/$model" "$work.out" --work "$work" --quiet \
        --threads "$cores" --device cpu --text "$text" --parts "$2" --sequences "$3"
    kill "$watcher" || true
    watcher=
    echo $((SECONDS - begun)) >"$work.seconds"
    say "ran $name"
    rm -rf "$work.out"
    find "$work" -name '*.fts' -delete
    keep
}

keep() { # what the table wants
    (cd "$dir" && find . -name '*.seconds' -o -name config.json -o -name settings.json -o -name stages.jsonl) |
        tar -C "$dir" -cf "$dir/records.tar" -T -
}

mkdir -p "$dir"
[ -d "$dir/whole" ] || python3 bench/v3_layer.py "$dir/whole" --config
steps=(FORGE_RETRIES=0 FORGE_STEP_COST=20) # not one pipe; a cluster's shares
record v3-two 2 "${SEQUENCES:-128}" "${steps[@]}"
record v3-pipe 1 "${SEQUENCES:-128}"
record v3-steps "${PARTS:-16}" "${SEQUENCES:-128}" "${steps[@]}"
record 7b-steps 4 64 "${steps[@]}"
record 7b-pipe 1 64
of=()
for run in $all; do
    [ ! -e "$dir/$run.seconds" ] || of+=("$dir/${run%-*}=$dir/$run")
done
NODES="1 4 8 16 64" STOPS=10 python3 bench/cluster.py "$dir/whole" "${of[@]}"
