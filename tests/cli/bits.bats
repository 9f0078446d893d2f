#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-bits(1) as a user meets it.

bats_require_minimum_version 1.5.0

MODELS="$BATS_TEST_DIRNAME/../reference/forward.py"
PY="$BATS_TEST_DIRNAME/../reference/bits.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$MODELS" tokens t.fts 40 1 33 64
    for kind in llama qwen3_moe deepseek_v3; do
        python3 "$MODELS" make $kind $kind
        forge-calib -q $kind t.fts | forge-hessian -q --skip-tokens 1 -o $kind.h
        forge-gradient -q $kind t.fts | forge-hessian -q -o $kind.f
        forge-calib -q $kind t.fts | forge-hessian -q --skip-tokens 1 | forge-weights -q --join $kind >$kind.in
    done
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
}

@test "costs and choices are those of the formulas" {
    for b in 4.9 5 5.5 6.5 8; do
        forge-bits -q --bits $b --group 32 --fisher llama.f --try 16 --try 8bit llama llama.in >r
        python3 "$PY" llama llama.h llama.f r $b 32 16 8bit >said
        [[ $(<said) == "8 units, "[1-8]* ]] || [ "$b" = 4.9 ] || return 1
    done
    forge-bits -q --bits 5.3 --group 16 --asymmetric --fisher llama.f --try 16,sym --try 8,sym --try 8bit,sym llama <llama.in >r
    python3 "$PY" llama llama.h llama.f r 5.3 16,asym 16,sym 8,sym 8bit,sym
    forge-bits -q --bits 5.5 --group 16 --try 8 --try 8bit llama llama.in >r
    python3 "$PY" llama llama.h - r 5.5 16 8 8bit
}

@test "experts count by their tokens, latent attention by its keys" {
    for kind in qwen3_moe deepseek_v3; do
        forge-bits -q --bits 5.6 --group 16 --fisher $kind.f --try 8 --try 8bit $kind $kind.in >r
        python3 "$PY" $kind $kind.h $kind.f r 5.6 16 8 8bit
    done
}

@test "linears without a grid stand for others still, and count in no sum" {
    cost() { sed -n 's/.*default grid \([0-9.e+-]*\) in.*/\1/p' r; }
    all=() weights=0
    for a in "--modules *" "--skip *.down_proj --skip *.k_proj" "--modules *.down_proj --modules *.k_proj"; do
        read -ra words <<<"$a"
        forge-bits -q --bits 6 --group 16 --fisher llama.f --try 8bit "${words[@]}" llama llama.in >r
        all+=("$(cost)")
        weights+="+$(sed -n 's/.*each of \([0-9]*\) weights.*/\1/p' r)"
    done
    IFS=+ read -ra n <<<"$weights"
    [ $((n[2] + n[3])) -eq "${n[1]}" ]
    awk -v a="${all[0]}" -v b="${all[1]}" -v c="${all[2]}" 'BEGIN { exit !(b > 0 && c > 0 && (a - b - c)^2 < (a / 1000)^2) }'
    forge-bits -q --bits 8 --group 16 --try 8bit --skip '*.down_proj' llama llama.in >r
    run -1 grep down_proj= r
}

@test "rules are those of forge-grid, and say what the model is then" {
    forge-bits -q --bits 6 --group 16 --fisher llama.f --try 8 --try 8bit llama -o r llama.in
    grep -v '^#' r >rules
    [ -s rules ]
    args=(); while read -r l; do args+=(--grid "$l"); done <rules
    forge-weights -q llama | forge-grid -q --group 16 "${args[@]}" | forge-solve -q |
        forge-pack -q --mixed | forge-shard -q --from llama out
    bits=$(forge-ls --json out | jq -s 'map(select(.name | test("weight_(packed|scale)$")) | .bytes) | add * 8')
    weights=$(sed -n 's/.*each of \([0-9]*\) weights.*/\1/p' r)
    [ "$((bits))" -le $((weights * 6)) ]
    [ "$((bits))" -gt $((weights * 59 / 10)) ]
}

@test "threads do not change a byte" {
    forge-bits -q -j 1 --bits 6 --group 16 --fisher llama.f --try 8bit llama llama.in >a
    forge-bits -q -j 3 --bits 6 --group 16 --fisher llama.f --try 8bit llama <llama.in >b
    cmp a b
}

@test "what is wrong ends with one line and its status" {
    no() { # STATUS TEXT ARGUMENT...
        run "-$1" --separate-stderr forge-bits -q "${@:3}"
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == *"$2"* ]] || { echo "said: $stderr"; return 1; }
        [ -z "$output" ]
    }
    no 78 "the least of these grids is 5.0000" --bits 4.5 --group 16 --try 8bit llama llama.in
    no 64 "want --bits" llama llama.in
    no 64 "want PATTERN=WORD" --bits 5 --try 5bit llama llama.in
    no 64 "want MODEL" --bits 5
    no 66 "nothing" --bits 5 --group 16 llama nothing
    no 66 "nothing" --bits 5 --group 16 --fisher nothing llama llama.in
    PYTHONPATH=${PY%/*} python3 -c 'import fts
fts.write(open("some.f", "wb"), [t for t in fts.read(open("llama.f", "rb")) if "k_proj" not in t.name])'
    no 65 "self_attn.q_proj': there are no gradients for it" --bits 5 --group 16 --fisher some.f llama llama.in
    no 65 "is no linear of" --bits 5 --group 16 qwen3_moe llama.in
    head -c $(($(stat -Lc %s llama.in) - 64)) llama.in >short
    no 65 "" --bits 5 --group 16 -o out llama short
    [ ! -e out ]
    forge-weights -q llama >bare
    no 65 "" --bits 5 --group 16 llama bare
    run -74 bash -c "forge-bits -q --bits 5 --group 16 llama llama.in >/dev/full"
}
