#!/bin/bash
# gpu_layers.sh [WHAT...]: whole layers on the GPU, from the first process to a checkpoint that
# forge-shard --verify has read: seconds, beside the bar; memory of the host; GPU busy by its own
# counter, from the first to the last of its samples with 10 % or more, and over the run.  WHAT: 7b (two layers of Llama-7B's sizes), long (the same with 128 x
# 2,048 tokens), 70b (one layer), v3 (DeepSeek-V3's of 256 experts, fp8; 12 GB in TMPDIR), v3x2
# (two of these, so that outputs of experts are added up), the last three with 2.1 M tokens; 7b
# and long if not told.  PEER: a Python that has GPTQModel, which
# runs 7b and long, too, twice; V3_PYTHON: one that has NumPy, for v3.
set -euo pipefail
cd "$(dirname "$0")/.."
# BIN, HELPER: tools and mkmodel of another build, say a bundle's
PATH=${BIN:-$PWD/bin}:${HELPER:-$PWD/build/release/tests/helper}:$PATH
dir=$(mktemp -d "${TMPDIR:-/tmp}/layers.XXXXXX")
sampler=
trap 'kill ${sampler:+"$sampler"} 2>/dev/null || :; rm -rf "$dir"' EXIT
field() { sed -E "s/.*\"$1\":([0-9.]+).*/\1/" "$dir/cost"; }

text() { # TOKENS: the example's text, as often as they want; four bytes are a token or more
    local size=0
    : >"$dir/text"
    while [ "$size" -lt $(($1 * 4)) ]; do
        cat "${TEXT:-examples/calib.jsonl}" >>"$dir/text"
        size=$(stat -c %s "$dir/text")
    done
}

row() { # NAME EFFORT SEQUENCES SEQLEN [BAR]
    text $(($3 * $4))
    rm -rf "$dir/out"
    nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits --loop-ms=100 >"$dir/busy" &
    sampler=$!
    forge-meter -q -o "$dir/cost" -- forge quantize --quiet --device cuda --effort "$2" --text "$dir/text" \
        --sequences "$3" --seqlen "$4" --shard-size 1GB "$dir/model" "$dir/out"
    kill "$sampler" 2>/dev/null || : # where there is no nvidia-smi
    sampler=
    forge-shard -q --from "$dir/model" --verify "$dir/out"
    awk -v what="$1, $3 x $4 tokens, $2" -v s="$(field seconds)" -v p="$(field peak_bytes)" -v bar="${5:-}" '
        { busy[NR] = $1; sum += $1 }
        $1 >= 10 { first = first ? first : NR; last = NR }
        END {
            if (bar) of = sprintf(", %4.2f of the bar, %g s", s / bar, bar)
            for (i = first; i <= last && first; i++) layer += busy[i] / (last - first + 1)
            printf("%-46s %7.2f s%s; host %.1f GiB; GPU busy %.0f, %.0f %%\n", what, s, of, p / 2^30,
                   layer, NR ? sum / NR : 0)
        }' "$dir/busy"
}

peer() { # SEQUENCES SEQLEN: the second run's seconds beside ours
    local seconds
    [ "${PEER:-}" ] || return 0
    for _ in 1 2; do
        seconds=$("$PEER" bench/layer_peer.py "$dir/model" "$dir/peer" "$1" "$2" 2>"$dir/log" | tail -n 1) ||
            { tail -n 3 "$dir/log"; return 1; }
    done
    awk -v t="$seconds" -v s="$(field seconds)" 'BEGIN {
        printf("  GPTQModel, its second run: %.2f s; ours is %.1f times as fast\n", t, t / s) }'
}

[ $# -gt 0 ] || set -- 7b long
for what; do
    rm -rf "$dir/model"
    case $what in
    7b | long) SIZE=7b bench/layer_model.sh "$dir/model" 2 ;;
    70b) SIZE=70b bench/layer_model.sh "$dir/model" 1 ;;
    v3) FP8=1 "${V3_PYTHON:-python3}" bench/v3_layer.py "$dir/model" 256 ;;
    v3x2) LAYERS=2 FP8=1 "${V3_PYTHON:-python3}" bench/v3_layer.py "$dir/model" 256 ;;
    *) echo "gpu_layers.sh: $what: 7b, long, 70b, v3 or v3x2" >&2; exit 64 ;;
    esac
    case $what in
    7b)
        row "Llama-7B x 2" best 64 512 10 # the first one makes the driver's caches
        row "Llama-7B x 2" default 64 512 6
        row "Llama-7B x 2" best 64 512 10
        row "Llama-7B x 2" fast 64 512 3.5
        peer 64 512
        ;;
    long)
        row "Llama-7B x 2" fast 128 2048 # the bar is the peer
        peer 128 2048
        ;;
    70b) row "Llama-70B x 1" fast 1024 2048 20 ;;
    v3)
        row "DeepSeek-V3 x 1" fast 1024 2048 25
        row "DeepSeek-V3 x 1" default 1024 2048 60
        row "DeepSeek-V3 x 1" best 1024 2048 90
        ;;
    v3x2)
        row "DeepSeek-V3 x 2" fast 1024 2048
        row "DeepSeek-V3 x 2" default 1024 2048
        ;;
    esac
done
