#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# What forge-hessian and forge-solve give the GPU at once.  The plug-in here is
# tests/fake_cuda.c: it notes its calls, and a module's codes follow from its
# own weights, grids and Hessian.

load ../helper/fail_each
bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/stages.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || exit 1
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" .
    cp "$(command -v forge-solve)" gpu-solve
    cp "$(command -v forge-hessian)" gpu-hessian
    mkexperts acts 12 64 32 100 >a
    forge-hessian -q a >h
    mkexperts join 12 64 32 <h | forge-grid -q --group 32 --search lp >hwg
    mkexperts weights 12 64 32 | forge-grid -q --group 32 --search lp >wg
    ./gpu-solve -q --device cuda --hessian h wg >c
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    D=$BATS_FILE_TMPDIR
    export FAKE_CUDA_LOG=$PWD/log
}

solve() {
    "$D/gpu-solve" -q --device cuda "$@"
}

calls() { # CALL...
    printf '%s\n' "$@" >want
    diff want log
}

shape() { # STREAM: what is in it, but for what a device may choose
    set -o pipefail
    forge-ls "$1" | awk '{ print $1, $2, $3, $1 == "note" ? "" : $4 }'
}

@test "experts of a file: one call for all factors, one for the linears of a shape" {
    solve --hessian "$D/h" "$D/wg" >c
    calls "factors 12 64x64" "solve 24 32x64" "factors 12 32x32" "solve 12 64x32"
    forge-solve -q --device cpu --hessian "$D/h" "$D/wg" >cpu
    shape c >c.list
    shape cpu >cpu.list
    diff c.list cpu.list
}

@test "one at a time, as codes go back before more comes: the same codes" {
    python3 "$PY" feedback "$D/hwg" alone "$D/gpu-solve" -q --device cuda
    [ "$(grep -c "solve 1 " log)" -eq 36 ]
    python3 "$PY" same-codes alone "$D/c"
}

@test "hessians of the stream, in a file and through a pipe" {
    solve "$D/hwg" >c
    calls "factors 12 64x64" "solve 24 32x64" "factors 12 32x32" "solve 12 64x32"
    python3 "$PY" same-codes c "$D/c"
    # shellcheck disable=SC2002 # a pipe it must be
    cat "$D/hwg" | solve >p
    python3 "$PY" same p c
    solve -j 1 "$D/hwg" >one
    python3 "$PY" same one c
}

@test "when memory ends, half as many, and on" {
    FAKE_CUDA_MOST=4 solve --hessian "$D/h" "$D/wg" >c
    python3 "$PY" same c "$D/c"
    grep -v ' 32x' log >wide
    grep factors wide >got
    printf '%s\n' "factors 12 64x64" "factors 6 64x64" "factors 3 64x64" \
        "factors 3 64x64" "factors 6 64x64" "factors 3 64x64" "factors 3 64x64" |
        diff - got
}

@test "a hessian that cannot be factored is rounded, alone" {
    mkstream weight:m.0:F32:16x32 weight:m.1:F32:16x32 weight:m.2:F32:16x32 |
        forge-grid -q --group 32 --search lp >g
    mkstream hessian:a.0:F32:528:modules=m.0:samples=3:fill=1 \
        hessian:a.1:F32:528:modules=m.1:samples=3:fill=7 \
        hessian:a.2:F32:528:modules=m.2:samples=3:fill=2 >h3
    run -0 --separate-stderr "$D/gpu-solve" --device cuda --hessian h3 g -o c
    grep -q "'m.1': its hessian 'a.1' is not positive definite" <<<"$stderr"
    grep -q '1 rounded to nearest because their hessian failed' <<<"$stderr"
    grep -q 'round 1 16x32' log
    FAKE_CUDA_MOST=1 solve --hessian h3 g >alone 2>why
    python3 "$PY" same c alone
    run -65 --separate-stderr "$D/gpu-solve" -q --strict --device cuda \
        --hessian h3 g
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "what is wrong is said as without a GPU, and what came before is there" {
    mkstream hessian:a:F32:528:modules=m.0,m.1:samples=3:fill=1 \
        weight:m.0:F32:16x32 qmeta:m.0:QMETA4:16x1:group=32:scale=F16 \
        weight:m.1:F32:16x32:fill=nan qmeta:m.1:QMETA4:16x1:group=32:scale=F16 \
        >nan
    mkstream hessian:a:F32:528:modules=m.0:samples=3:fill=1 \
        weight:m.0:F32:16x32 qmeta:m.0:QMETA4:16x1:group=32:scale=F16 \
        weight:m.1:F32:16x32 qmeta:m.1:QMETA4:16x1:group=32:scale=F16 >other
    mkstream hessian:a:F32:527:modules=m.0:samples=3:fill=1 \
        weight:m.0:F32:16x32 qmeta:m.0:QMETA4:16x1:group=32:scale=F16 >none
    for f in nan other none; do
        run -65 --separate-stderr forge-solve -q --device cpu $f
        want=${stderr/forge-solve/gpu-solve}
        run -65 --separate-stderr "$D/gpu-solve" -q --device cuda $f
        [ "$stderr" = "$want" ] || { echo "$stderr, want $want"; false; }
    done
    "$D/gpu-solve" -q --device cuda nan >c || true
    [ "$(stat -c %s c)" -gt 1000 ] # m.0 is in it
    head -c 100000 "$D/hwg" >cut
    run -65 --separate-stderr "$D/gpu-solve" -q --device cuda cut
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "weights without grids, notes and the rest pass in their places" {
    mkstream weight:m.0:F32:16x32 note:m.0:'{}' tensor:x:F32:1000 \
        hessian:a:F32:528:modules=m.1:samples=3:fill=1 \
        weight:m.1:F32:16x32 qmeta:m.1:QMETA4:16x1:group=32:scale=F16 \
        note:run:'{}':ancillary weight:m.2:F32:4x8 weight:m.3:F32:4x8 >s
    solve s >c
    forge-solve -q --device cpu s >cpu
    shape c >c.list
    shape cpu >cpu.list
    diff c.list cpu.list
    cat s | solve >p
    python3 "$PY" same p c
    grep -q "solve 1 16x32" log
}

@test "--prior; linears that are no experts are solved one by one" {
    solve --prior 2 --hessian "$D/h" "$D/wg" >c
    python3 "$PY" same c "$D/c"
    mkstream weight:m.0:F32:16x32 weight:m.1:F32:16x32 |
        forge-grid -q --group 32 --search lp >g
    mkstream hessian:a:F32:528:modules=m.0,m.1:samples=3:fill=1 >h1
    rm log
    solve --prior 2 --hessian h1 g >c
    calls "factors 1 32x32" "solve 1 16x32" "solve 1 16x32"
}

same_codes() { # STREAM
    python3 "$PY" same-codes "$1" "$D/c"
}

same_hessians() { # STREAM
    cmp "$1" "$D/gpu-h"
}

@test "whichever call fails: one line and no stream, or as without a failure" {
    export PATH="$D:$PATH"
    unset FAKE_CUDA_LOG
    "$D/gpu-hessian" -q -j 1 --device cuda "$D/a" >"$D/gpu-h"
    for kind in read write malloc; do
        fail_recovers=same_codes fail_each $kind 75,74 gpu-solve -q -j 1 \
            --device cuda --hessian "$D/h" "$D/wg"
        fail_recovers=same_hessians fail_each $kind 75,74 gpu-hessian -q -j 1 \
            --device cuda "$D/a"
    done
    fail_recovers=same_codes fail_each malloc 75 gpu-solve -q -j 1 --device cuda "$D/hwg"
}

@test "a plug-in without the stage's table, or with one of another version: 69" {
    cp "$(command -v forge-pack)" "$D/gpu-pack"
    FAKE_CUDA_VERSION=99 run -69 --separate-stderr "$D/gpu-solve" -q \
        --device cuda --hessian "$D/h" "$D/wg"
    [[ $stderr == *"/forge-cuda.so': forge_solve_table is version 99: want "[0-9]* ]]
    run -69 --separate-stderr "$D/gpu-pack" -q --layout awq --device cuda "$D/c"
    [[ $stderr == *"/forge-cuda.so' has no forge_pack_table" ]]
    [ ! -e log ]
}

hessians() {
    "$D/gpu-hessian" -q --device cuda "$@"
}

@test "experts' activations: one call for the hessians of a width" {
    hessians "$D/a" >h
    calls "hessians 12 0x64" "hessians 12 0x32" # one has no tokens
    python3 "$PY" check-mean "$D/a" h
    forge-ls h >got
    forge-ls "$D/h" >want
    diff want got
    mkexperts acts 12 64 32 100 | hessians >p
    python3 "$PY" same p h
    hessians -j 1 "$D/a" >one
    python3 "$PY" same one h
}

@test "experts in parts, mixed up, cut short or not finite" {
    local a=activation
    mkstream $a:m.experts.0.in:BF16:3x8:modules=x,y:sequence=1 \
        $a:m.experts.1.in:BF16:5x8:modules=z:sequence=1:fill=2 \
        $a:m.experts.0.in:BF16:2x8:modules=x,y:sequence=2:fill=1:last \
        $a:m.mlp:BF16:2x8:modules=u:sequence=1:last \
        $a:m.experts.1.in:BF16:1x8:modules=z:sequence=2:last \
        $a:m.experts.2.in:BF16:1x8:modules=v:sequence=1 >s
    hessians s >h
    python3 "$PY" check-mean s h
    forge-hessian -q s >cpu
    forge-ls h >got
    forge-ls cpu >want
    diff want got
    grep -qx "hessians 2 0x8" log
    cat s | hessians >p
    python3 "$PY" same p h
    mkstream $a:m.experts.0.in:BF16:3x8:modules=x:sequence=1:last \
        $a:m.experts.1.in:BF16:3x8:modules=x:sequence=1:fill=inf:last >inf
    run -65 --separate-stderr "$D/gpu-hessian" -q --device cuda inf
    [[ $stderr == *"'m.experts.1.in': sequence 0: token 0: input 0 is not finite" ]]
}

@test "experts' activations with what belongs to them go as they did" {
    local a=activation e=m.experts.0.in
    mkstream $a:$e.drift:BF16:3x8:sequence=1:fill=1 \
        $a:$e:BF16:3x8:modules=x:sequence=1 \
        $a:$e.drift:BF16:2x8:sequence=2:fill=1 \
        $a:$e:BF16:2x8:modules=x:sequence=2:last >s
    hessians s >h
    forge-hessian -q s >cpu
    python3 "$PY" same cpu h
    calls "hessian 1 5x8" "cross 1 8x8"
    cat s | hessians >p
    python3 "$PY" same p h
}

@test "cross moments are the device's, of the definition; a target that is not finite" {
    python3 "$PY" activations a.fts
    python3 "$PY" drift a.fts d.fts
    hessians d.fts >c.fts
    python3 "$PY" check-cross d.fts c.fts
    grep -q "^cross 1 " log
    mkstream activation:m.in.drift:BF16:2x8:sequence=1:fill=inf \
        activation:m.in:BF16:2x8:modules=m.q:sequence=1:fill=1:last >inf
    run -65 --separate-stderr "$D/gpu-hessian" -q --device cuda inf
    [[ $stderr == *"'m.in.drift': not finite" ]]
}
