#!/usr/bin/env bats
# The whole pipe at the levels of CPU that this machine has: without AVX2, with
# it, and with everything.

load e2e

here() { FORGE_CPU=$1 forge-ls --version >/dev/null 2>&1; }

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    best=$(forge-ls --version | sed 's/.* cpu //')
    for level in plain avx2 neon "$best"; do
        if here "$level" && [ ! -e "$level" ]; then
            mkdir "$level"
            echo "$level" >>levels
        fi
    done
    while read -r level; do
        for effort in fast default; do
            FORGE_CPU=$level forge quantize "$model" "$level/$effort" \
                --text "$text" --sequences 8 --seqlen 128 --quiet \
                --effort $effort
        done
    done <levels
    export best
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

evaluate() { # LEVEL DIRECTORY: its figures, by the kernels of a level
    FORGE_CPU=$1 forge eval "$model" "$2" --json --quiet \
        --text "$tree/examples/eval.txt" --sequences 4
}

near() { # A B PERCENT
    awk -v a="$1" -v b="$2" -v p="$3" \
        'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= p / 100 * b) }'
}

@test "each level makes a model as close to the original as the best does" {
    for effort in fast default; do
        evaluate "$best" "$best/$effort" >best.json
        less "$(figure kl_mean best.json)" 0.1
        while read -r level; do
            evaluate "$best" "$level/$effort" >$effort.json
            echo "$level $effort: $(figure kl_mean $effort.json)" \
                "$(figure kl_mean best.json)"
            # other roundings on the way, other codes where two are as good
            near "$(figure kl_mean $effort.json)" "$(figure kl_mean best.json)" 10
        done <levels
    done
}

@test "each level evaluates a model alike" {
    evaluate "$best" "$best/default" >best.json
    while read -r level; do
        evaluate "$level" "$best/default" >level.json
        echo "$level: $(jq -c . level.json)"
        near "$(figure kl_mean level.json)" "$(figure kl_mean best.json)" 3
        near "$(figure ppl level.json)" "$(figure ppl best.json)" 0.5
    done <levels
}

@test "a level gives the same bytes with any number of threads" {
    while read -r level; do
        FORGE_CPU=$level forge quantize "$model" again --text "$text" \
            --sequences 8 --seqlen 128 --quiet --effort fast --threads 1
        same again "$level/fast"
        rm -r again
    done <levels
}

@test "a work directory knows its level: another one begins anew, and says so" {
    level=$(tail -n 1 levels)
    FORGE_CPU=plain forge quantize "$model" one "${small[@]}" --effort fast --work work
    ls -d work/*-* >stages
    run -0 --separate-stderr env FORGE_CPU="$level" forge quantize "$model" two \
        --text "$text" --sequences 4 --seqlen 64 --effort fast --work work
    [ "$level" = plain ] || [[ $stderr == *"made with FORGE_CPU=plain, this run uses $level"* ]]
    ls -d work/*-* >both
    [ "$level" = plain ] || run -1 cmp -s both stages
    # ... and the first one is taken up where it is asked for.
    rm -r one
    ls work/*-* >files
    FORGE_CPU=plain forge quantize "$model" one "${small[@]}" --effort fast --work work
    ls work/*-* | cmp - files
}

@test "a step on a machine without the planned level says what to set" {
    FORGE_CPU=plain forge quantize "$model" out "${small[@]}" --effort fast --work planned
    rm -r out planned/solve-*/codes-1.fts
    there=neonbf16
    [[ $(uname -m) != aarch64 ]] || there=amx
    jq -c --arg l "$there" '.cpu = $l' planned/settings.json >other
    cp other planned/settings.json
    run ! --separate-stderr make -s -f "$tree/scripts/pipeline.mk" -C planned
    [[ $stderr$output == *"planned on another machine: FORGE_CPU: this machine has "*", not $there"* ]]
}
