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

# The driver is this machine's own, and starts its tools at a level of its own.
by_hand() { # OUT: calibrated on the original model
    forge-tokens -q --sequences 4 --seqlen 64 "$model" "$text" |
        forge-calib -q "$model" | forge-hessian -q -o "$1.fts"
    forge-weights -q "$model" | forge-grid -q --hessian "$1.fts" |
        forge-solve -q --hessian "$1.fts" | forge-pack -q |
        forge-shard -q --from "$model" "$1"
}

@test "at neon it makes as good a model as this machine makes" {
    by_hand neon
    native by_hand native-hand
    for out in neon native-hand; do
        native forge eval "$model" $out --json --quiet --sequences 4 \
            --text "$tree/examples/eval.txt" >$out.json
    done
    awk -v a="$(figure kl_mean neon.json)" \
        -v b="$(figure kl_mean native-hand.json)" \
        'BEGIN { print a, b; exit !(a < 1.1 * b && b < 0.2) }'
}
