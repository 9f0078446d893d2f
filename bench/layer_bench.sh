#!/bin/bash
# layer_bench.sh [LAYERS [EFFORT...]]: quantize random layers of a real size from
# 64 x 512 tokens (SEQUENCES=128; SIZE=7b: Llama-7B's, 8b, 70b; VOCABULARY=128256: Llama
# 3's, not the example model's), all of it from the first process to the verified
# checkpoint: seconds, memory, CPU seconds of each tool,
# and how many cores each kept busy in every twelfth of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
# BIN, HELPER: tools and mkmodel of another build, say a bundle's
PATH=${BIN:-$PWD/bin}:${HELPER:-$PWD/build/release/tests/helper}:$PATH
text=${TEXT:-examples/calib.jsonl}
layers=${1:-2}
shift || true
dir=$(mktemp -d "${TMPDIR:-/tmp}/layer.XXXXXX")
sampler=
trap 'kill ${sampler:+"$sampler"} 2>/dev/null || :; rm -rf "$dir"' EXIT
bench/layer_model.sh "$dir/model" "$layers"

# TIME TOOL TICKS for every tool that runs, four times a second.
sample() {
    while sleep 0.25; do
        cat /proc/[0-9]*/stat 2>/dev/null | awk -v t="$EPOCHREALTIME" '
            $2 ~ /^\(forge-/ { print t, $1, substr($2, 8, length($2) - 8), $14 + $15 }'  || true
    done
}

# From these: CPU seconds of each tool, and cores busy in each twelfth.
cores() { # SECONDS
    awk -v hz="$(getconf CLK_TCK)" -v wall="$1" '
        !begin { begin = $1 }
        { used = ($4 - last[$2]) / hz; last[$2] = $4; total[$3] += used
          p = int(($1 - begin) / wall * 12); if (p > 11) p = 11
          busy[p, $3] += used; sum[p] += used }
        END {
            for (tool in total) if (total[tool] > .05)
                printf("  %-10s %8.1f CPU seconds\n", tool, total[tool])
            for (p = 0; p < 12; p++) {
                line = ""
                for (tool in total) if (busy[p, tool] > wall / 12 * .1)
                    line = line sprintf("  %s %.1f", tool, busy[p, tool] / (wall / 12))
                printf("  %5.1f s  %5.1f cores:%s\n", p * wall / 12,
                       sum[p] / (wall / 12), line)
            }
        }' "$dir/samples"
}

for effort in "${@:-fast}"; do
    rm -rf "$dir/out"
    sample >"$dir/samples" &
    sampler=$!
    forge-meter -q -o "$dir/cost" -- forge quantize "$dir/model" "$dir/out" \
        --effort "$effort" --text "$text" --sequences "${SEQUENCES:-64}" --quiet
    kill "$sampler"
    sampler=
    forge-shard -q --from "$dir/model" --verify "$dir/out"
    seconds=$(sed -E 's/.*"seconds":([0-9.]+).*/\1/' "$dir/cost")
    peak=$(sed -E 's/.*"peak_bytes":([0-9]+).*/\1/' "$dir/cost")
    busy=$(awk -v hz="$(getconf CLK_TCK)" \
        '{ sum += $4 - last[$2]; last[$2] = $4 } END { print sum / hz }' "$dir/samples")
    awk -v s="$seconds" -v p="$peak" -v b="$busy" -v n="$(nproc)" -v e="$effort" \
        -v z="${SIZE:-7b}" -v l="$layers" -v c="$(forge-ls --version | sed 's/.*cpu //')" 'BEGIN {
            printf("%s x %d layers, %s, %d cores, %s: %.1f s, %d MiB, %.0f %% of the cores busy\n",
                   z, l, e, n, c, s, p / 1048576, 100 * b / s / n) }'
    cores "$seconds"
done
