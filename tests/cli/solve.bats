#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-solve(1) as a user meets it.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/stages.py"
BEST="$BATS_TEST_DIRNAME/../reference/best.py"
FORWARD="$BATS_TEST_DIRNAME/../reference/forward.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || exit 1
    python3 "$PY" activations a.fts
    forge-hessian -q a.fts -o h.fts
    forge-hessian -q --block 128 a.fts -o blocks.fts
    python3 "$PY" weights w.fts
    python3 "$PY" broken-hessian broken.fts
    forge-grid -q --group 64 --hessian h.fts w.fts -o sym.fts
    forge-grid -q --group 128 --asymmetric --scale-dtype bf16 w.fts -o asym.fts
    forge-grid -q --group 64 --hessian h.fts --grid '*=8bit' w.fts -o eight.fts
    forge-grid -q --group 128 --grid '*=8bit,asym' --scale-dtype bf16 w.fts -o eight-asym.fts
    for grid in sym asym eight; do
        python3 "$BEST" cross $grid.fts h.fts $grid-cross.fts
    done
    python3 "$BEST" cross sym.fts h.fts sym-gap.fts gap
}

effort() { # GRIDS OPTION...
    local g=$1
    shift
    forge-solve -q --effort default --hessian "$D/h.fts" "$@" "$D/$g.fts"
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    D=$BATS_FILE_TMPDIR
}

@test "codes are those of GPTQ as its paper has it, in every order" {
    for grid in sym asym eight eight-asym; do
        for order in natural activation group; do
            forge-solve -q --hessian "$D/h.fts" --order "$order" \
                "$D/$grid.fts" >c
            python3 "$PY" check-solve "$D/$grid.fts" "$D/h.fts" c "$order" 0.01
        done
        forge-solve -q --hessian "$D/h.fts" --damping 0.1 --order group \
            "$D/$grid.fts" >c
        python3 "$PY" check-solve "$D/$grid.fts" "$D/h.fts" c group 0.1
    done
}

@test "of many outputs some tell what rounding to nearest loses" {
    python3 "$PY" weights many.fts 12
    forge-grid -q --group 64 --hessian "$D/h.fts" many.fts -o many-sym.fts
    forge-solve -q --hessian "$D/h.fts" --order group many-sym.fts >c
    python3 "$PY" check-solve many-sym.fts "$D/h.fts" c group 0.01
    forge-solve -q --hessian "$D/h.fts" --method rtn many-sym.fts >c
    python3 "$PY" check-solve many-sym.fts "$D/h.fts" c natural 0.01
}

@test "block-diagonal hessians are solved as what they are" {
    forge-solve -q --hessian "$D/blocks.fts" --order natural "$D/sym.fts" >c
    python3 "$PY" check-solve "$D/sym.fts" "$D/blocks.fts" c natural 0.01
}

@test "hessians in the stream are those of the modules they name" {
    python3 "$PY" interleave "$D/h.fts" "$D/w.fts" hw.fts
    forge-grid -q --group 64 hw.fts | forge-solve -q >c
    forge-ls c >list
    run -1 grep hessian list
    forge-solve -q --hessian "$D/h.fts" "$D/sym.fts" >file
    python3 "$FORWARD" codes c file
    forge-solve -q --effort best --hessian "$D/h.fts" "$D/sym.fts" >file
    forge-grid -q --group 64 hw.fts | forge-solve -q --effort best >c
    python3 "$FORWARD" codes c file
}

@test "rounding to nearest: by choice, and without hessians" {
    for grid in sym eight eight-asym; do
        forge-solve -q --method rtn --hessian "$D/h.fts" "$D/$grid.fts" >c
        python3 "$PY" check-solve "$D/$grid.fts" "$D/h.fts" c natural 0.01
    done
    forge-solve -q "$D/sym.fts" >n
    forge-ls --head model.layers.0.q_proj n >/dev/null
    grep -aq '"method":"rtn"' n
    run ! grep -aq '"loss"' n
}

@test "weight and qmeta become codes, qmeta and notes; all else passes" {
    forge-solve -q --hessian "$D/h.fts" "$D/sym.fts" >c
    run -0 forge-ls c
    [[ ${lines[0]} == tensor* && ${lines[1]} == codes* ]]
    [[ ${lines[2]} == qmeta* && ${lines[3]} == note* ]]
    # a weight without a grid is somebody else's; if none has one, forge-grid is missing
    mkstream weight:m.0:F32:16x32 weight:m.1:F32:16x32 qmeta:m.1:QMETA4:16x1:group=32:scale=F16 >s
    forge-solve -q s | forge-ls >in
    grep -q '^weight.*m\.0' in
    grep -q '^codes.*m\.1' in
    run -65 --separate-stderr forge-solve -q "$D/w.fts"
    [ "$stderr" = "forge-solve: no grids: is forge-grid missing?" ]
    mkstream tensor:x:F32:10 | forge-solve -q | forge-ls >in
}

@test "--prior: all is of the hessian with it, but what moves the target" {
    for order in natural activation; do
        forge-solve -q --hessian "$D/h.fts" --prior 8 --order $order \
            "$D/sym.fts" >c
        python3 "$PY" check-solve "$D/sym.fts" "$D/h.fts" c $order 0.01 8
    done
    forge-solve -q --hessian "$D/blocks.fts" --prior 8 --order natural \
        "$D/sym.fts" >c
    python3 "$PY" check-solve "$D/sym.fts" "$D/blocks.fts" c natural 0.01 8
    for g in sym-cross sym-gap; do
        effort $g --prior 8 --sweeps 0 >c
        python3 "$BEST" check-blocks "$D/$g.fts" "$D/h.fts" c 8 yes 8
    done
}

@test "--prior is not for hessians of no samples, nor for experts'" {
    for kind in none experts; do
        python3 - "$BATS_TEST_DIRNAME/../reference" "$D/h.fts" $kind >h <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
frames = [t for t in fts.read(open(sys.argv[2], "rb")) if t.role == "hessian"]
for i, t in enumerate(frames):
    if sys.argv[3] == "none":
        del t.extra["samples"]
    else:
        t.name = "model.layers.0.mlp.experts.%d.in" % i
fts.write(sys.stdout.buffer, frames)
PYTHON
        forge-solve -q --hessian h "$D/sym.fts" >a
        forge-solve -q --hessian h --prior 8 "$D/sym.fts" >b
        python3 "$PY" same a b
    done
}

@test "--effort: each group's grid is the cheapest of its candidates" {
    effort sym --sweeps 0 >c
    python3 "$BEST" check-blocks "$D/sym.fts" "$D/h.fts" c 8 yes
    effort sym-cross --sweeps 0 --positive >c
    python3 "$BEST" check-blocks "$D/sym-cross.fts" "$D/h.fts" c 8 no
    effort sym-gap --sweeps 0 >c
    python3 "$BEST" check-blocks "$D/sym-gap.fts" "$D/h.fts" c 8 yes
    effort asym-cross --sweeps 0 >c
    python3 "$BEST" check-blocks "$D/asym-cross.fts" "$D/h.fts" c 5 no
    effort eight-cross --sweeps 0 >c
    python3 "$BEST" check-blocks "$D/eight-cross.fts" "$D/h.fts" c 8 yes
    effort eight-asym --sweeps 0 >c
    python3 "$BEST" check-blocks "$D/eight-asym.fts" "$D/h.fts" c 5 no
}

@test "--effort: refined until nothing can move, and no row is worse" {
    for g in sym sym-cross asym-cross eight-cross eight-asym; do
        effort $g --sweeps 0 >before
        effort $g --sweeps 200 >after
        python3 "$BEST" check-refined "$D/$g.fts" "$D/h.fts" before after
    done
}

@test "--effort best: no row is worse than from one start" {
    for g in sym sym-cross; do
        effort $g --sweeps 5 --factors 24 >before
        forge-solve -q --effort best --hessian "$D/h.fts" "$D/$g.fts" >after
        python3 "$BEST" check-starts "$D/$g.fts" "$D/h.fts" before after
    done
}

@test "--effort against all codes there are, on tiny rows" {
    python3 "$BEST" tiny g h
    forge-solve -q --effort default --hessian h --sweeps 0 g >before
    forge-solve -q --effort default --hessian h --sweeps 200 g >after
    python3 "$BEST" check-tiny g h before after
}

@test "--fisher: rows together, until nothing can move" {
    for g in sym sym-cross asym eight; do
        python3 "$BEST" fisher "$D/$g.fts" f
        # to the end of what refines each row for itself
        effort $g --sweeps 200 >before
        effort $g --sweeps 200 --fisher f >after
        python3 "$BEST" check-coupled "$D/$g.fts" "$D/h.fts" f before after
    done
    python3 "$BEST" tiny-pair g h f
    forge-solve -q --effort default --hessian h --sweeps 200 g >before
    forge-solve -q --effort default --hessian h --sweeps 200 --fisher f g >after
    python3 "$BEST" check-coupled g h f before after
}

@test "--fisher: moments that do not fit are named; fast does not look at them" {
    python3 "$BEST" fisher "$D/sym.fts" f
    forge-solve -q --hessian "$D/h.fts" "$D/sym.fts" >a
    forge-solve -q --hessian "$D/h.fts" --fisher f "$D/sym.fts" >b
    python3 "$FORWARD" codes a b
    effort sym --sweeps 0 >a
    effort sym --sweeps 0 --fisher f >b
    python3 "$FORWARD" codes a b
    run --separate-stderr effort sym --fisher "$D/h.fts"
    [ "$status" -eq 65 ]
    [[ $stderr == *"q_proj"* ]]
    run --separate-stderr effort sym --fisher none
    [ "$status" -eq 66 ]
}

@test "--effort on groups that are no multiple of 8, and without hessians" {
    forge-grid -q --group 20 --hessian "$D/h.fts" "$D/w.fts" -o g
    forge-solve -q --hessian "$D/h.fts" g >a
    forge-solve -q --hessian "$D/h.fts" --effort best g >b
    python3 "$PY" same a b
    forge-solve -q "$D/sym.fts" >a
    forge-solve -q --effort best "$D/sym.fts" >b
    python3 "$PY" same a b
}

@test "cross moments that fit nothing are named" {
    mkstream 'cross:m.in.drift:F32:8x4:modules=m.q' >c
    run -65 --separate-stderr forge-solve --effort best c
    [[ $stderr == *"'m.in.drift': not a cross moment" ]]
    run -65 --separate-stderr bash -c "cat <(mkstream \
        'cross:model.layers.0.attn_in.drift:F32:8x8:modules=model.layers.0.q_proj') \
        '$D/sym.fts' | forge-solve --effort best --hessian '$D/h.fts'"
    [[ $stderr == *"does not fit"* ]]
}

@test "a hessian that cannot be factored: said, counted, and with --strict an error" {
    run -0 --separate-stderr bash -c \
        "forge-solve --hessian '$D/broken.fts' '$D/sym.fts' >c"
    [ "$(grep -c 'not positive definite' <<<"$stderr")" -eq 3 ]
    [[ $stderr == *"3 rounded to nearest"* ]]
    grep -aq '"damping_tried":\[0.01,0.1,1\]' c
    run -65 --separate-stderr forge-solve --strict --hessian "$D/broken.fts" \
        "$D/sym.fts"
    [[ $stderr == *"'model.layers.0.q_proj': its hessian"* ]]
}

@test "equal input gives equal bytes, whatever the threads" {
    for j in 1 2 3; do
        forge-solve -q -j "$j" --hessian "$D/h.fts" "$D/sym.fts" -o "h$j"
        forge-solve -q -j "$j" "$D/sym.fts" -o "n$j"
        python3 "$PY" same h1 "h$j"
        python3 "$PY" same n1 "n$j"
        forge-solve -q -j "$j" --effort best --hessian "$D/h.fts" \
            "$D/sym-cross.fts" -o "b$j"
        python3 "$PY" same b1 "b$j"
    done
}

@test "--report has a line for each module, and the last line sums them up" {
    run -0 --separate-stderr forge-solve --hessian "$D/h.fts" \
        --report r.jsonl "$D/sym.fts" -o c.fts
    [ "$(wc -l <r.jsonl)" -eq 3 ]
    python3 -c '
import json, sys
all = [json.loads(line) for line in open("r.jsonl")]
for r in all:
    assert r["loss"] < r["loss_rtn"] and r["samples"] == 1644, r
    assert r["damping"] == 0.01 and r["seconds"] >= 0 and r["module"]
sums = (len(all), sum(r["loss"] for r in all), sum(r["loss_rtn"] for r in all))
assert "%d modules, loss %.4g (round-to-nearest %.4g)" % sums in sys.argv[1], sums' "$stderr"
}

@test "missing hessians, shapes that do not fit and bad numbers are named" {
    mkstream 'weight:m.q:F32:2x8' 'qmeta:m.q:QMETA4:2x1:group=8:scale=F16' >w
    run -65 --separate-stderr forge-solve --hessian "$D/h.fts" w
    [[ $stderr == *"'m.q': no hessian in '$D/h.fts'" ]]
    mkstream 'weight:m.q:F32:2x8' 'qmeta:m.q:QMETA4:2x2:group=8:scale=F16' >w
    run -65 --separate-stderr forge-solve w
    [[ $stderr == *"'m.q': its qmeta does not fit its weight" ]]
    mkstream 'weight:m.q:F32:2x8:fill=nan' \
        'qmeta:m.q:QMETA4:2x1:group=8:scale=F16' >w
    run -65 --separate-stderr forge-solve w
    [[ $stderr == *"'m.q': row 0: input 0 is not finite" ]]
    mkstream 'hessian:m.in:F32:36:modules=m.q:samples=3:fill=nan' >h
    mkstream 'weight:m.q:F32:2x8' 'qmeta:m.q:QMETA4:2x1:group=8:scale=F16' >w
    run -65 --separate-stderr forge-solve --hessian h w
    [[ $stderr == *"'m.in': hessian: (0, 0) is not finite" ]]
}

@test "an input that is cut short is exit 65, and the output is no stream" {
    head -c 20000 "$D/sym.fts" >cut
    run -65 --separate-stderr bash -c 'forge-solve cut >out'
    [[ $stderr == "forge-solve: "* ]]
    run -1 forge-ls --verify out
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c "forge-solve '$D/sym.fts' >/dev/full"
}

@test "a wrong command line is exit 64, no device 69, no file 66" {
    run -64 forge-solve --order up "$D/sym.fts"
    run -64 forge-solve --damping 2 "$D/sym.fts"
    run -64 forge-solve --effort more "$D/sym.fts"
    run -64 forge-solve a b
    run -66 forge-solve nothing.fts
    run -66 forge-solve --hessian nothing.fts "$D/sym.fts"
    run -69 forge-solve --device cuda "$D/sym.fts"
}
