#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# Efforts default and best of forge-solve on a GPU: what the tool gives the plug-in
# and takes back.  The plug-in is tests/fake_cuda.c, whose refined solver is the
# CPU's on what it was given, so all codes are those of --device cpu.

load ../helper/fail_each
bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/stages.py"
BEST="$BATS_TEST_DIRNAME/../reference/best.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || exit 1
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" .
    cp "$(command -v forge-solve)" gpu-solve
    mkexperts acts 4 64 32 100 | forge-hessian -q >h.fts
    mkexperts weights 4 64 32 >w.fts
    forge-grid -q --group 32 w.fts -o sym.fts
    forge-grid -q --group 16 --asymmetric --scale-dtype bf16 w.fts -o asym.fts
    python3 "$BEST" cross-experts sym.fts h.fts sym-cross.fts output
    python3 "$BEST" cross-experts sym.fts h.fts sym-gap.fts gap
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    D=$BATS_FILE_TMPDIR
    export FAKE_CUDA_LOG=$PWD/log
}

# Both devices: OPTION... STREAM
both() {
    "$D/gpu-solve" -q --device cuda "$@" >gpu
    forge-solve -q --device cpu "$@" >cpu
    python3 "$PY" same-codes gpu cpu
}

@test "the same codes as without a GPU, with and without cross moments" {
    for g in sym asym sym-cross sym-gap; do
        for effort in default best; do
            both --effort $effort --hessian "$D/h.fts" "$D/$g.fts"
        done
    done
    grep -q "^refine " log
    grep -q "^drift 0 " log
    run ! grep -q "^solve " log
}

calls() { # CALL...
    printf '%s\n' "$@" >expected
    diff expected log
}

@test "experts that wait are solved in a call for each shape, one at a time the same" {
    both --effort default --hessian "$D/h.fts" "$D/sym.fts"
    calls "factors 4 64x64" "refine 8 32x64" "factors 4 32x32" "refine 4 64x32"
    cp gpu all
    rm log
    both --effort best --hessian "$D/h.fts" "$D/asym.fts"
    calls "factors 4 64x64" "factors 4 64x64" "refine 8 32x64" \
        "factors 4 32x32" "factors 4 32x32" "refine 4 64x32"
    rm log
    both --effort default --hessian "$D/h.fts" "$D/sym-gap.fts"
    grep -c drift log | grep -x 4
    grep -qx "refine 8 32x64" log
    grep -qx "refine 4 64x32" log
    mkexperts join 4 64 32 <"$D/h.fts" | forge-grid -q --group 32 >joined
    python3 "$PY" feedback joined alone "$D/gpu-solve" -q --device cuda --effort default
    python3 "$PY" same-codes alone all
}

@test "when memory ends, half as many; a hessian without a factor, alone" {
    forge-solve -q --device cpu --effort default --hessian "$D/h.fts" "$D/sym-cross.fts" >want
    FAKE_CUDA_MOST=3 "$D/gpu-solve" -q --device cuda --effort default \
        --hessian "$D/h.fts" "$D/sym-cross.fts" >gpu
    python3 "$PY" same-codes gpu want
    grep -qx "refine 4 32x64" log
    mkstream weight:m.0:F32:16x32 weight:m.1:F32:16x32 | forge-grid -q --group 32 >g
    mkstream hessian:a:F32:528:modules=m.0:samples=3:fill=7 \
        hessian:b:F32:528:modules=m.1:samples=3:fill=1 >h1
    rm log
    run -0 --separate-stderr "$D/gpu-solve" --device cuda --effort default --hessian h1 g -o c
    grep -q "'m.0': its hessian 'a' is not positive definite" <<<"$stderr"
    grep -q '1 rounded to nearest because their hessian failed' <<<"$stderr"
    grep -qx "refine 1 16x32" log
}

@test "rows whose target is too far stay, and are counted" {
    python3 "$BEST" far "$D/sym-cross.fts" far.fts
    # of 64 rows every fourth (moment() in best.py), and two more of one
    printf '%s\n' '0.down_proj 18' '1.down_proj 16' '1.gate_proj 32' '1.up_proj 32' '2.down_proj 16' '3.down_proj 16' >want
    for effort in default best; do
        both --effort $effort --hessian "$D/h.fts" far.fts
        for solve in "forge-solve --device cpu" "$D/gpu-solve --device cuda"; do
            rm -f r
            # shellcheck disable=SC2086 # two words
            $solve --progress never --effort $effort --hessian "$D/h.fts" --report r far.fts 2>said >/dev/null
            python3 "$BEST" kept r | diff - want
            [[ $(<said) == *", 130 rows whose target was too far stayed"* ]]
        done
    done
    # where there is none, nothing is said
    forge-solve --progress never --effort default --hessian "$D/h.fts" --report r "$D/sym.fts" 2>said >/dev/null
    run ! grep -q "too far" said
    run ! grep -q rows_kept r
}

@test "a cross moment that does not fit is named as without a GPU" {
    mkstream cross:x.drift:F32:8x8:modules=m.0 weight:m.0:F32:16x32 | forge-grid -q --group 32 >g
    mkstream hessian:a:F32:528:modules=m.0:samples=3:fill=1 >h1
    for device in cpu cuda; do
        run -65 --separate-stderr "$D/gpu-solve" -q --device $device --effort default \
            --hessian h1 g
        [[ $stderr == *"'x.drift' does not fit 'm.0'"* ]]
    done
}

@test "--fisher: rows together on the GPU, and on the CPU where it has no room" {
    python3 "$BEST" fisher "$D/sym.fts" f
    both --effort default --hessian "$D/h.fts" --fisher f "$D/sym-cross.fts"
    grep -q "^together [2-9] " log # in batches, as the other efforts
    cp gpu all
    rm log
    FAKE_CUDA_ROWS=1 both --effort default --hessian "$D/h.fts" --fisher f "$D/sym-cross.fts"
    grep -q "^refine 1 " log
    python3 "$PY" same-codes gpu all
}

@test "whichever allocation fails: one line and no stream, or as without a failure" {
    export PATH="$D:$PATH"
    unset FAKE_CUDA_LOG
    forge-solve -q --device cpu --effort default --hessian "$D/h.fts" "$D/sym-cross.fts" >want
    same_codes() { python3 "$PY" same-codes "$1" want; }
    fail_recovers=same_codes fail_each malloc 75 gpu-solve -q -j 1 --device cuda \
        --effort default --hessian "$D/h.fts" "$D/sym-cross.fts"
}
