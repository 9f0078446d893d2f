#!/usr/bin/env bats
# The pipe on another architecture, by qemu-user, against this machine's own
# tools in NATIVE.

load ../e2e/e2e

setup_file() {
    [ -n "$NATIVE" ] || skip 'run by make check-aarch64'
    cd "$BATS_FILE_TMPDIR" || return 1
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

native() { PATH=$NATIVE:$PATH "$@"; }

quantize() { # LEVEL OUT
    FORGE_CPU=$1 forge quantize "$model" "$2" "${small[@]}" --effort fast
}

@test "at plain it makes the bytes that this machine makes at plain" {
    [[ $(forge-ls --version) == *", cpu neon"* ]]
    quantize plain plain
    native quantize plain native
    same plain native
}

@test "at neon it makes as good a model as this machine makes" {
    quantize neon neon
    for out in neon native; do
        native forge eval "$model" $out --json --quiet --sequences 4 \
            --text "$tree/examples/eval.txt" >$out.json
    done
    awk -v a="$(figure kl_mean neon.json)" \
        -v b="$(figure kl_mean native.json)" \
        'BEGIN { print a, b; exit !(a < 1.1 * b && b < 0.2) }'
}
