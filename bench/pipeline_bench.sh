#!/bin/bash
# [EFFORT=fast] pipeline_bench.sh [MODEL [TEXT]]: quantize a model from 64 x 512 tokens, all
# of it from the first process to the verified checkpoint, against GPTQModel's
# default on the same tokens (where PYTHON has it; its imports not counted).
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

for _ in 1 2 3; do
    rm -rf "$dir/out"
    forge-meter -q -o "$dir/cost" -- forge quantize "$model" "$dir/out" \
        --effort "${EFFORT:-default}" \
        --text "$text" --sequences 64 --quiet
    echo "$(field cost seconds) $(field cost peak_bytes)"
done | sort -n | head -n 1 >"$dir/ours"
# Checked before it counts: complete, and close to the source.
forge-shard -q --from "$model" --sample 1000 --verify "$dir/out"
read -r seconds peak <"$dir/ours"
printf '%-28s %8.2f s %8.0f MiB\n' "forge quantize" "$seconds" \
    "$((peak / 1048576))"

if ! "$python" -c 'import gptqmodel' 2>/dev/null; then
    echo "GPTQModel: not there (set PYTHON, or make interop installs it)"
    exit
fi
forge-tokens -q --sequences 64 -o "$dir/tokens" "$model" "$text"
"$python" tests/interop/peers.py gptqmodel "$model" "$dir/tokens" "$dir/peer" \
    >"$dir/theirs" 2>"$dir/log" || { tail -n 3 "$dir/log"; exit 1; }
theirs=$(field theirs seconds) theirs_peak=$(field theirs peak_bytes)
printf '%-28s %8.2f s %8.0f MiB\n' "GPTQModel, default" "$theirs" \
    "$((theirs_peak / 1048576))"
awk -v a="$seconds" -v b="$theirs" -v p="$peak" -v q="$theirs_peak" 'BEGIN {
    printf("%-28s %8.1f x %8.2f of the memory\n", "ratio", b / a, p / q) }'
