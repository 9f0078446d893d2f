#!/bin/bash
# pipeline_bench.sh [MODEL [TEXT]]: quantize a model from 64 x 512 tokens, all of
# it from the first process to the verified checkpoint, by each of EFFORTS (fast,
# which is what GPTQModel does, and default), against GPTQModel's default on the
# same tokens (where PYTHON has it; its imports not counted).
# Ours: wall seconds and the proportional memory of the whole process tree;
# theirs: seconds from load to save and their process's largest resident set.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/bin:$PATH
model=${1:-examples/llama-4m} text=${2:-examples/calib.jsonl}
python=${PYTHON:-.venv/bin/python}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

field() { sed -E "s/.*\"$2\": ?([0-9.]+).*/\1/" "$dir/$1"; }

ours() { # EFFORT: the best of three
    local seconds peak
    for _ in 1 2 3; do
        rm -rf "$dir/out"
        forge-meter -q -o "$dir/cost" -- forge quantize "$model" "$dir/out" \
            --effort "$1" --text "$text" --sequences 64 --quiet
        echo "$(field cost seconds) $(field cost peak_bytes)"
    done | sort -n | head -n 1 >"$dir/$1"
    # Checked before it counts: complete, and close to the source.
    forge-shard -q --from "$model" --sample 1000 --verify "$dir/out"
    read -r seconds peak <"$dir/$1"
    printf '%-28s %8.2f s %8.0f MiB\n' "forge quantize, $1" "$seconds" \
        "$((peak / 1048576))"
}
read -ra efforts <<<"${EFFORTS:-fast default}"
for effort in "${efforts[@]}"; do ours "$effort"; done

if ! "$python" -c 'import gptqmodel' 2>/dev/null; then
    echo "GPTQModel: not there (set PYTHON, or make interop installs it)"
    exit
fi
forge-tokens -q --sequences 64 -o "$dir/tokens" "$model" "$text"
"$python" tests/interop/peers.py gptqmodel "$model" "$dir/tokens" "$dir/peer" 128 \
    >"$dir/theirs" 2>"$dir/log" || { tail -n 3 "$dir/log"; exit 1; }
theirs=$(field theirs seconds) theirs_peak=$(field theirs peak_bytes)
printf '%-28s %8.2f s %8.0f MiB\n' "GPTQModel, default" "$theirs" \
    "$((theirs_peak / 1048576))"
for effort in "${efforts[@]}"; do
    awk -v e="$effort" -v b="$theirs" -v q="$theirs_peak" '{
        printf("%-28s %8.1f x %8.2f of the memory\n", "ratio, " e, b / $1, $2 / q)
    }' "$dir/$effort"
done
