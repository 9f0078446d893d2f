#!/bin/bash
# e2e.sh BIN MODEL CALIBRATION-TEXT EVALUATION-TEXT: the four stages that a GPU
# can do, on it and on the CPU, the rest on the CPU, with the fast effort, with
# the default one, and with each and the best one in the loop (targets corrected);
# the two checkpoints' KL divergences differ by 2 % at most.  In the
# loop a tie changes what all later layers and routers see, as another text would:
# there the mean over SETS (3) parts of the text is compared.
# EFFORTS="fast default fast-loop loop best": which of them.  Exit 77: no device.
set -euo pipefail
bin=$1 model=$2 text=$3 eval=$4
export PATH="$bin:$PATH"
# shellcheck source=tests/gpu/device.sh
. "$(dirname "$0")/device.sh"
layout=${LAYOUT:-awq} sets=${SETS:-3}

echo "== $(basename "$model"), $layout"
forge-tokens -q --sequences "${SEQUENCES:-64}" --seqlen 256 "$model" "$text" >"$dir/tokens"
forge-calib -q "$model" "$dir/tokens" >"$dir/inputs"
forge-tokens -q --sequences 32 --seqlen 512 "$model" "$eval" >"$dir/eval"

stages() { # DEVICE EFFORT: to $dir/DEVICE.model
    local d=(-q --device "$1") out=$dir/$1
    forge-hessian "${d[@]}" "$dir/inputs" >"$out.h"
    forge-weights -q "$model" |
        forge-grid "${d[@]}" --hessian "$out.h" >"$out.grids"
    forge-solve "${d[@]}" --effort "$2" --hessian "$out.h" \
        --report "$out.report" "$out.grids" >"$out.codes"
    forge-pack "${d[@]}" --layout "$layout" "$out.codes" |
        forge-shard -q --from "$model" "$out.model"
}
loop() { # DEVICE EFFORT PART
    awk -v part="$3" -v sets="$sets" 'NR % sets == part' "$text" >"$dir/part"
    forge quantize --quiet --device "$1" --effort "$2" --tune 0 --layout "$layout" --text "$dir/part" \
        --sequences "${SEQUENCES:-64}" --seqlen 256 --work "$dir/work" \
        "$model" "$dir/$1.model"
    rm -rf "$dir/work"
}
field() { sed -E "s/\"by_position\".*//; s/.*\"$1\": ?([^,}]*).*/\1/" "$2"; }
compare() { # EFFORT [PART]
    for device in cpu cuda; do
        local start out=$dir/$device
        start=$(date +%s.%N)
        rm -rf "$out.model"
        case $1 in
        loop) loop "$device" default "$2" ;;
        fast-loop) loop "$device" fast "$2" ;;
        best) loop "$device" best "$2" ;;
        *) stages "$device" "$1" ;;
        esac
        forge-eval -q --json "$model" "$out.model" <"$dir/eval" >"$out.json"
        echo "$1, $device: KL $(field kl_mean "$out.json"), perplexity" \
            "$(field ppl "$out.json"), $(echo "$(date +%s.%N) $start" |
                awk '{ printf "%.1f s", $1 - $2 }')"
    done
    echo "$(field kl_mean "$dir/cpu.json") $(field kl_mean "$dir/cuda.json")" \
        >>"$dir/$1.kl"
}
near() { # EFFORT: the mean of the ratios, within 2 %
    awk -v what="$1" '{ sum += log($2 / $1) } END {
        r = exp(sum / NR) - 1
        printf("%s: KL on the GPU: %+.2f %% of the CPU'"'"'s\n", what, 100 * r)
        exit !(r < 0.02 && r > -0.02)
    }' "$dir/$1.kl"
}

same() { # FILE FILE WHAT
    cmp "$1" "$2" || exit 1
    echo "$3: equal bytes"
}
# Of the stages one by one: grids on one Hessian are the CPU's to the bit, and so
# are packed words; a second run, in little memory, gives equal bytes.
again() { # EFFORT
    rm -rf "$dir/twice"
    forge-weights -q "$model" |
        forge-grid -q --device cpu --hessian "$dir/cuda.h" >"$dir/again"
    same "$dir/again" "$dir/cuda.grids" grids
    forge-pack -q --device cpu --layout "$layout" "$dir/cuda.codes" >"$dir/packed"
    forge-pack -q --device cuda --layout "$layout" "$dir/cuda.codes" >"$dir/again"
    same "$dir/again" "$dir/packed" "packed words"
    # Streams of two runs differ in the seconds that they note.
    forge-solve -q --device cuda --effort "$1" --gpu-memory 64M --hessian "$dir/cuda.h" \
        "$dir/cuda.grids" | forge-pack -q --layout "$layout" |
        forge-shard -q --from "$model" "$dir/twice"
    for f in "$dir"/twice/*.safetensors; do
        same "$f" "$dir/cuda.model/$(basename "$f")" \
            "the second run, --gpu-memory 64M"
    done
}
# Products of few rows with 4-bit weights in bf16: the next token of prompts of 1 to 64 words.
# Where two are as probable but for rounding, the devices may differ: at 2 prompts of 16.
speak() {
    tr -s '[:space:]' ' ' <"$eval" | cut -d ' ' -f 1-600 | awk '{
        for (i = 0; i < 16; i++) {
            n = int(exp(i / 15 * log(64)))
            for (j = 1; j <= n; j++) printf "%s%s", $(at + j), j < n ? " " : "\n"
            at += n
        } }' >"$dir/prompts"
    for device in cpu cuda; do
        forge-generate -q --greedy --raw --lines --json --tokens 1 --device "$device" "$dir/cuda.model" \
            <"$dir/prompts" >"$dir/$device.said"
    done
    paste -d '\t' "$dir/cpu.said" "$dir/cuda.said" | awk -F '\t' '{ other += $1 != $2 } END {
        printf("what the 4-bit model says next: %d of %d prompts differ\n", other, NR)
        exit !(NR == 16 && other <= 2) }'
}
for effort in ${EFFORTS:-fast default fast-loop loop best}; do
    case $effort in
    fast-loop | loop | best)
        for ((part = 0; part < sets; part++)); do compare "$effort" "$part"; done
        ;;
    *)
        compare "$effort"
        again "$effort"
        ;;
    esac
    near "$effort"
    speak
done

rc=0
forge-grid -q --device cuda:99 "$dir/cuda.grids" >/dev/null 2>"$dir/why" || rc=$?
if [ "$rc" -ne 69 ] || [ "$(wc -l <"$dir/why")" -ne 1 ]; then exit 1; fi
echo "no device 99: $(cat "$dir/why")"
