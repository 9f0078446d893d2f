#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge quantize --bits: grids within a budget.

load e2e

check() { python3 "$tree/tests/reference/gridrules.py" check "$@"; }

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

# Bits that the words, scales and zeros of a checkpoint have for each weight.
taken() { # DIRECTORY
    forge-ls --json "$1" | jq -s 'map(select(.name | test("(weight_(packed|scale|zero_point)|qweight|scales|qzeros)$")) | .bytes) | add * 8 / 3145728'
}

@test "rules within the budget, in both layouts, and the same again" {
    forge quantize "$model" a "${small[@]}" --work work --bits 4.4
    mapfile -t rules < <(grep -hv '^#' work/bits-*)
    [ "${#rules[@]}" -gt 2 ]
    [ "$(find work -name 'bits-*' | wc -l)" -eq 1 ]
    check a compressed-tensors 128,sym "${rules[@]}"
    less "$(taken a)" 4.4
    less 4.35 "$(taken a)"
    args=(); for r in "${rules[@]}"; do args+=(--grid "$r"); done
    forge quantize "$model" b "${small[@]}" --work work "${args[@]}"
    same_tensors a b
    [ "$(find work -name 'solve-*' | wc -l)" -eq 1 ]
    forge quantize "$model" c "${small[@]}" --effort fast --layout gptq_v2 --asym --group 64 --bits 4.7 --work other
    mapfile -t rules < <(grep -hv '^#' other/bits-*)
    check c gptq_v2 64,asym "${rules[@]}"
    forge-shard -q --from "$model" --verify c
}

@test "rules that are cut in the work directory are made again" {
    fast=("${small[@]}" --effort fast --bits 4.4 --work work)
    forge quantize "$model" a "${fast[@]}"
    made=$(echo work/bits-*)
    cp "$made" whole
    for cut in 0 100 $(($(stat -c %s whole) - 24)); do
        rm -r work/solve-*
        head -c "$cut" whole >"$made"
        forge quantize "$model" b "${fast[@]}"
        cmp whole "$made"
        same a b
        rm -r b
    done
}

@test "GGUF: blocks of 4 bits and of 8; families without gradients; mixtures" {
    forge quantize "$model" q.gguf "${small[@]}" --effort fast --layout gguf --bits 5 --work four-eight
    forge report four-eight --csv q.csv -o q.html
    awk -F, 'NR > 1 { n += $7; b += $7 * $8; if ($8 != 4.5 && $8 != 8.5) exit 1 } END { exit !(n == 3145728 && b > 4.9 * n && b <= 5 * n) }' q.csv
    grep -q 'in 4 and 8 bits, ' q.html
    forge verify -q q.gguf
    bytes=$(stat -c %s q.gguf)
    forge quantize "$model" p.gguf "${small[@]}" --effort fast --layout gguf
    [ $((bytes - $(stat -c %s p.gguf))) -gt $((3145728 * 3 / 10 / 8)) ]
    [ $((bytes - $(stat -c %s p.gguf))) -le $((3145728 / 16 + 4096)) ] # the recipe has rules
    python3 "$tree/tests/reference/forward.py" make gemma2 g
    python3 -c 'import numpy as np; np.save("t.npy", np.random.default_rng(3).integers(0, 96, (24, 80)))'
    forge quantize g out --text t.npy --sequences 4 --seqlen 40 --group 16 --quiet --bits 5.2 --work work
    mapfile -t rules < <(grep -hv '^#' work/bits-*)
    check out compressed-tensors 16,sym "${rules[@]}"
    rm -r out work
    python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain m
    forge quantize m out "${small[@]}" --group 8 --bits 6.2 --work work --modules '*'
    mapfile -t rules < <(grep -hv '^#' work/bits-*)
    check out compressed-tensors 8,sym "${rules[@]}"
}

@test "a budget of 8 bits for all is those bits; the plan says it; more bits are nearer" {
    forge quantize "$model" out "${small[@]}" --bits 5 --dry-run >plan
    grep -q "^bits         5 for each weight" plan
    grep -q "^gradients " plan
    for b in 4.2 5 9; do
        forge quantize "$model" out$b "${small[@]}" --bits $b
        forge eval "$model" out$b --json --quiet --text "$text" --sequences 4 --seqlen 128 >$b.json
    done
    less "$(figure kl_mean 5.json)" "$(figure kl_mean 4.2.json)"
    less "$(figure kl_mean 9.json)" 0.001
    forge quantize "$model" six --text "$text" --sequences 4 --seqlen 64 --effort fast --bits 6 --work work >said
    mapfile -t rules < <(grep -hv '^#' work/bits-*)
    n=$(check six compressed-tensors 128,sym "${rules[@]}" | grep -o '8bit:[0-9]*' | awk -F: '{ n += $2 } END { print n }')
    [ "$n" -gt 0 ]
    [ "$n" -lt 28 ]
    grep -q "^modules   $((28 - n)) in 4 bits, $n in 8, 0 of them" said
    bits=$(sed -n 's/^bits *\([0-9.]*\) for each of their weights.*/\1/p' said)
    less "$(taken six)" "$bits"
    less "$bits" "$(taken six | awk '{ print $1 + 0.002 }')"
    grep -q "^| linears | $((28 - n)) in 4 bits, $n in 8; $bits bits for each weight" six/README.md
    grep -q '^# llama-4m, 4 and 8 bits$' six/README.md
    forge report work >page.html
    grep -q "<title>llama-4m in 4 and 8 bits, $(printf %.2f "$bits") a weight</title>" page.html
    check out9 compressed-tensors 128,sym '*=8bit' | grep -q '^128,sym,8bit:28$' ||
        check out9 compressed-tensors 32,sym '*=8bit'
}

@test "linears that stay as they are: their gradients say still what errors of others cost" {
    for a in "--skip *.down_proj" "--modules *.gate_proj --modules *.up_proj" "--modules *.q_proj --modules *.k_proj --modules *.v_proj --modules *.o_proj"; do
        read -ra words <<<"$a"
        forge quantize "$model" out "${small[@]}" --effort fast --bits 4.3 "${words[@]}" --work work
        mapfile -t rules < <(grep -hv '^#' work/bits-*)
        [ "${#rules[@]}" -gt 0 ]
        [[ " ${rules[*]}" != *down_proj* ]]
        forge-shard -q --from "$model" --verify out
        rm -r out work
    done
}

@test "refused before any work" {
    no() { # STATUS TEXT ARGUMENT...
        refused "$1" forge quantize "$model" out "${small[@]}" "${@:3}"
        [[ $stderr == *"$2"* ]] || { echo "said: $stderr"; return 1; }
    }
    no 78 "the least of the grids is 4.1250 bits for each weight" --bits 4.1
    no 78 "a checkpoint in layout awq has one grid" --bits 5 --layout awq
    no 78 "between Q4_0 and Q8_0" --bits 5 --layout gguf --asym
    no 64 "--grid says the grids" --bits 5 --grid '*=8bit'
    refused 64 forge quantize "$model" out --bits 5 --method rtn
    [[ $stderr == *"--method rtn has no text to measure costs on" ]]
    no 64 "--bits" --bits 1
}
