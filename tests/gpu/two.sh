#!/bin/bash
# two.sh BIN HELPER: layers of a real size (SIZE=7b, LAYERS=2; bench/layer_model.sh, which takes
# mkmodel of the folder HELPER) in two parts: on two GPUs of this machine, on one of them, and on
# that in one pipe.  The bytes are equal, and both GPUs work.  It prints the seconds of each run,
# and how busy each GPU was by its own counter.  In the environment: MODEL, another model;
# EFFORT, SEQUENCES=64 of SEQLEN=512 tokens.  Exit 77: fewer than two GPUs.
set -euo pipefail
bin=$(realpath "$1") helper=$(realpath "$2") tree=$(realpath "$(dirname "$0")/../..")
export PATH="$bin:$PATH"
# shellcheck source=tests/gpu/device.sh
. "$(dirname "$0")/device.sh"
if ! forge-device --device cuda:1 >/dev/null 2>"$dir/why"; then
    echo "skipped: $(cat "$dir/why")"
    exit 77
fi
model=$dir/model
if [ "${MODEL:-}" ]; then
    model=$(realpath "$MODEL")
else
    HELPER=$helper "$tree/bench/layer_model.sh" "$model" "${LAYERS:-2}"
fi
sampler=
trap 'kill ${sampler:+"$sampler"} 2>/dev/null || :; rm -rf "$dir"' EXIT
cd "$dir"

quantize() { # NAME OPTION...: NAME, the result; work, the work directory; NAME.busy, NAME.cost
    local name=$1
    shift
    rm -rf work
    nvidia-smi --query-gpu=index,utilization.gpu --format=csv,noheader,nounits --loop-ms=100 >"$name.busy" &
    sampler=$!
    forge-meter -q -o "$name.cost" -- forge quantize --quiet --device cuda --parts 2 --effort "${EFFORT:-default}" \
        --text "$tree/examples/calib.jsonl" --sequences "${SEQUENCES:-64}" --seqlen "${SEQLEN:-512}" --work work \
        "$@" "$model" "$name"
    kill "$sampler" 2>/dev/null || :
    sampler=
    awk -F, -v name="$name" -v s="$(sed -E 's/.*"seconds":([0-9.]+).*/\1/' "$name.cost")" '
        NF == 2 { n[$1 + 0]++; sum[$1 + 0] += $2; most[$1 + 0] = $2 > most[$1 + 0] ? $2 : most[$1 + 0] }
        END {
            printf("%-24s %7.2f s", name, s)
            for (i = 0; i in n && i < 2; i++) printf("; GPU %d busy %.0f %%, at most %.0f", i, sum[i] / n[i], most[i])
            print ""
        }' "$name.busy"
}

CUDA_VISIBLE_DEVICES=0 quantize one-pipe # the first one makes the driver's caches
CUDA_VISIBLE_DEVICES=0 quantize one-pipe-again --jobs 1
CUDA_VISIBLE_DEVICES=0 quantize steps-on-one-GPU --jobs 2
quantize steps-on-two-GPUs --jobs 2
for stage in moments share; do
    grep -h "\"$stage\"" work/solve-*/stages.jsonl | sed -E 's/.*"seconds":([0-9.]+).*/\1/' |
        awk -v what="$stage" '{ n++; sum += $1; most = $1 > most ? $1 : most }
            END { printf("  %d steps of %s: mean %.2f s, at most %.2f\n", n, what, sum / n, most) }'
done
for name in one-pipe-again steps-on-one-GPU steps-on-two-GPUs; do
    diff -r one-pipe "$name"
done
awk -F, '$2 > 0 { busy[$1 + 0]++ } END { exit !(busy[0] && busy[1]) }' steps-on-two-GPUs.busy || {
    echo "a GPU had nothing to do"
    exit 1
}
echo "equal bytes, on two GPUs and on one"
