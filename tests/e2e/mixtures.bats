#!/usr/bin/env bats
# forge quantize on mixtures of experts.

load e2e

MOE="$tree/tests/reference/moe.py"

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

@test "every layout of every family is verified, and holds the same model" {
    for family in deepseek_v3:fp8 qwen2_moe:fused-oi qwen3_moe-all:plain mixtral:plain; do
        python3 "$MOE" make "${family%:*}" "${family#*:}" m
        for layout in compressed-tensors awq gptq gptq_v2 original; do
            way=(--layout "$layout")
            [ $layout != original ] || way=(--propagate original)
            forge quantize m $layout "${small[@]}" --group 32 --work work \
                "${way[@]}"
            forge-shard -q --from m --sample 1000 --verify $layout
            forge eval m $layout --json --quiet --text "$text" --sequences 2 \
                --seqlen 64 >$layout.json
            less "$(figure kl_mean $layout.json)" 0.2
        done
        for layout in gptq gptq_v2; do
            [ "$(jq -c '[.ppl, .kl_mean, .top1]' $layout.json)" = \
                "$(jq -c '[.ppl, .kl_mean, .top1]' awq.json)" ]
        done
        rm -r m work compressed-tensors awq gptq gptq_v2 original
    done
}

# transformers puts experts together in the type of their scales: that of the
# model where it is bf16, in the layout that it does this for.
@test "compressed-tensors has scales in the type of the mixture" {
    scales() { # TYPE LAYOUT
        forge quantize m $2 "${nearest[@]}" --group 32 --layout $2
        [ "$(forge-ls $2 | awk '$2 ~ /scales?$/ { print $3 }' | sort -u)" = "$1" ]
        forge-shard -q --from m --verify $2
        rm -r $2
    }
    python3 "$MOE" make deepseek_v3 fp8 m
    scales BF16 compressed-tensors
    scales F16 awq
    scales F16 gptq
    sed -i s/bfloat16/float16/ m/config.json
    scales F16 compressed-tensors
}

@test "experts with few tokens, or none, are counted and said by name" {
    python3 "$MOE" make deepseek_v3 plain m
    few=(--text "$text" --sequences 1 --seqlen 12)
    forge quantize m out "${few[@]}" --propagate original --group 32 >said
    forge-tokens -q "${few[@]:2}" m "$text" | forge-calib -q --hitmap m >hits
    python3 - "$tree/tests/reference" <<'PYTHON'
import re, sys
sys.path.insert(0, sys.argv[1])
import fts
n = {f"{x.name.split('.')[2]}.mlp.experts.{e}": v for x in fts.load("hits").values() for e, v in enumerate(x.array()[:, 0])}
none, some = {k for k in n if n[k] == 0}, {k for k in n if 0 < n[k] < 128}
assert none and some, n
line = [x for x in open("said") if x.startswith("experts ")][0]
m = re.fullmatch(r"experts   (\d+); (\d+) with less than 128 tokens:(.*?); (\d+) with none:(.*)\n", line)
assert m, line
assert [int(m[1]), int(m[2]), int(m[4])] == [len(n), len(some), len(none)], line
for want, said in (some, m[3]), (none, m[5]):
    said = set(said.split()) - {"..."}
    assert said <= want and len(said) == min(8, len(want)), line
PYTHON
}

@test "--keep prunes first, anew for each way to choose, and gc knows it" {
    python3 "$MOE" make deepseek_v3 plain m # 8 experts a layer
    keep() { # OUT OPTION...
        forge quantize m "${small[@]}" --group 32 --effort fast "$@" \
            --work work
    }
    pruned() { find work -maxdepth 1 -name 'pruned-*' | wc -l; }
    keep four --keep 4
    [ "$(jq .n_routed_experts four/config.json)" -eq 4 ]
    forge-ls -q --verify four
    forge-ls four >list
    grep -q 'experts\.3\.' list
    run -1 grep 'experts\.4\.' list
    [ "$(pruned)" -eq 1 ]
    keep again --keep 4
    [ "$(pruned)" -eq 1 ]
    same four again
    keep six --keep 6
    keep mass --keep 4 --by mass
    keep remap --keep 4 --mode remap
    keep shorter --keep 4 --sequences 1
    [ "$(pruned)" -eq 5 ]
    [ "$(jq .n_routed_experts six/config.json)" -eq 6 ]
    forge-ls --head expert_map remap/expert_map.safetensors | grep -q -- -1
    forge eval m remap --text "$text" --sequences 2 --seqlen 64 --quiet
    forge gc --settings --quiet work
    [ "$(pruned)" -eq 1 ]
}

peak() { # MODEL OUT: MiB
    forge-meter -q -o cost -- forge quantize "$1" "$2" --text "$text" \
        --sequences 4 --seqlen 64 --quiet --effort fast --work "$1.work"
    jq '.peak_bytes / 1048576 | floor' cost
}

@test "memory does not grow with the experts, in a run or in its resumption" {
    [ -e "${FAIL_SO:-none}" ] || skip "a sanitizer keeps freed memory"
    for n in 8 192; do # of 192: 113 MB of weights a layer, 28 MB of codes
        python3 "$MOE" many m$n $n
    done
    for i in 1 2 3; do # the peak of a short run lies between two samples at times
        peak m8 out8.$i >>peaks8
        rm -r m8.work
    done
    sort -n peaks8 | tail -1 >peak8
    peak m192 out192 >peak192
    mv out192 whole
    rm m192.work/solve-*/codes-1.fts
    peak m192 out192 >resumed
    same whole out192
    echo "8: $(<peak8), 192: $(<peak192), resumed: $(<resumed) MiB"
    # 5 to 14 in one run or another, and 11 of forge-shard's two pieces of 8, which 8 experts
    # do not fill
    less "$(<peak192)" $(($(<peak8) + 31))
    less "$(<resumed)" $(($(<peak8) + 31))
}
