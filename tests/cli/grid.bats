#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-grid(1) as a user meets it.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/stages.py"
FORWARD="$BATS_TEST_DIRNAME/../reference/forward.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || exit 1
    python3 "$PY" activations a.fts
    forge-hessian -q a.fts -o h.fts
    python3 "$PY" weights w.fts
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    W=$BATS_FILE_TMPDIR/w.fts
    H=$BATS_FILE_TMPDIR/h.fts
}

@test "no candidate is better than the one that is chosen" {
    for sym in SYM ASYM; do
        opt=--symmetric
        [ "$sym" = SYM ] || opt=--asymmetric
        forge-grid -q "$opt" --group 64 --search absmax "$W" >g
        python3 "$PY" check-grid g "$sym" absmax 2.4 1
        forge-grid -q "$opt" --group 128 --candidates 20 "$W" >g
        python3 "$PY" check-grid g "$sym" lp 2.4 20
        forge-grid -q "$opt" --group 32 --norm 3 --candidates 7 "$W" >g
        python3 "$PY" check-grid g "$sym" lp 3 7
        forge-grid -q "$opt" --group 64 --candidates 20 --hessian "$H" "$W" >g
        python3 "$PY" check-grid g "$sym" hessian 2 20 "$H"
    done
    forge-grid -q --group 64 --candidates 20 --grid '*=8bit' "$W" >g
    python3 "$PY" check-grid g SYM lp 2.4 20 - 8
    forge-grid -q --group 128 --candidates 9 --grid '*=8bit,asym' --hessian "$H" "$W" >g
    python3 "$PY" check-grid g ASYM hessian 2 9 "$H" 8
    forge-grid -q --group 64 --search absmax --grid '*=8bit,asym' "$W" >g
    python3 "$PY" check-grid g ASYM absmax 2.4 1 - 8
    forge-grid -q --group 256 --scale-dtype bf16 --candidates 9 "$W" >g
    python3 "$PY" check-grid g SYM lp 2.4 9
    forge-grid -q --group 512 --candidates 1024 --norm 2 --search lp "$W" >g
    python3 "$PY" check-grid g SYM lp 2 1024
}

@test "each weight is followed by its qmeta, all else passes" {
    forge-grid -q "$W" >g
    forge-ls "$W" | awk '{ print $1, $2 }' >in
    forge-ls g | awk '$1 != "qmeta" { print $1, $2 }' | diff in -
    run -0 forge-ls g
    [[ ${lines[2]} == $'qmeta\tmodel.layers.0.q_proj\tQMETA4\t96x2\t'* ]]
}

@test "threads do not change a byte" {
    forge-grid -q -j 1 "$W" >a
    forge-grid -q -j 3 <"$W" >b
    cmp a b
}

@test "weights that are not finite, and hessians that are missing, are named" {
    mkstream 'weight:m.q:F32:2x8:fill=inf' >bad
    run -65 --separate-stderr forge-grid bad
    [[ $stderr == *"'m.q': row 0: input 0 is not finite" ]]
    mkstream 'weight:m.q:F32:2x8' >w
    run -65 --separate-stderr forge-grid --hessian "$H" w
    [[ $stderr == *"'m.q': no hessian in '$H'" ]]
    mkstream 'weight:model.layers.0.q_proj:F32:2x8' >w
    run -65 --separate-stderr forge-grid --hessian "$H" w
    [[ $stderr == *"8 inputs, but the hessian"* ]]
}

@test "an input that is cut short is exit 65, and the output is no stream" {
    head -c 20000 "$W" >cut
    run -65 --separate-stderr bash -c 'forge-grid cut >out'
    [[ $stderr == "forge-grid: "* ]]
    run -1 forge-ls --verify out
    head -c 3000 "$H" >cut
    run -65 forge-grid --hessian cut "$W"
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c "forge-grid '$W' >/dev/full"
}

@test "hessians in the stream are those of the modules they name" {
    python3 "$PY" interleave "$H" "$W" hw.fts
    forge-grid -q --group 64 hw.fts >g
    forge-ls hw.fts | cut -f 1-2 >want
    forge-ls g | grep -v ^qmeta | cut -f 1-2 | cmp want
    forge-grid -q --group 64 --hessian "$H" "$W" >file
    python3 "$FORWARD" codes g file
    run -65 --separate-stderr bash -c "cat '$H' '$W' | forge-grid -q --group 64 >g"
    [[ $stderr == *"no hessian in '<stdin>'" ]]
}

@test "a wrong command line is exit 64, no device 69, no file 66" {
    run -64 forge-grid --group 0 "$W"
    run -64 forge-grid --candidates 1025 "$W"
    run -64 forge-grid --symmetric --asymmetric "$W"
    run -65 forge-grid --search hessian "$W"
    run -64 forge-grid "$W" "$W"
    run -66 forge-grid nothing.fts
    run -66 forge-grid --hessian nothing.fts "$W"
    run -69 forge-grid --device cuda "$W"
}

@test "weights that no F16 scale reaches are refused where they are, by name" {
    huge() { # VALUE: one weight of row 3, group 2
        python3 - "$PY" "$1" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import numpy as np
import fts
w = np.random.default_rng(1).normal(size=(8, 96)).astype(np.float32)
w[3, 70] = float(sys.argv[2])
fts.write(open("x.fts", "wb"), [fts.Tensor("weight", "m.up", w)])
END
    }
    for limit in "--symmetric 491000 492000" "--asymmetric -982000 -983000"; do
        read -r sym most over <<<"$limit"
        huge "$most"
        forge-grid -q "$sym" --group 32 x.fts >/dev/null
        huge "$over"
        run -78 --separate-stderr forge-grid -q "$sym" --group 32 -o g x.fts
        [[ $stderr == *"'m.up': row 3: the weights of group 2"*"F16 ends at 65504"* ]]
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
        [ ! -e g ]
        forge-grid -q "$sym" --group 32 --scale-dtype bf16 x.fts >/dev/null
    done
    # one group whose least and greatest weight are 1,900 inputs apart: 600,000
    # and 400,000 in 15 steps
    python3 - "$PY" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import numpy as np
import fts
w = np.random.default_rng(1).normal(size=(2, 2048)).astype(np.float32)
w[1, 50], w[1, 1950] = -6e5, 4e5
fts.write(open("x.fts", "wb"), [fts.Tensor("weight", "m.up", w)])
END
    run -78 --separate-stderr forge-grid -q --asymmetric --group 2048 -o g x.fts
    [[ $stderr == *"'m.up': row 1: the weights of group 0"*" 66666.7,"* ]]
}

@test "a large hessian goes on while it arrives, and what is wrong with it, too" {
    # 1024 inputs: 2.1 MB, behind a first frame, which the history goes with
    mkstream 'hessian:m.in0:F32:36:samples=4:modules=m.a' \
        'hessian:m.in:F32:524800:samples=4:modules=m.q' 'weight:m.q:F32:8x1024' >whole
    forge-grid -q whole >from-file
    forge-grid -q <whole >from-pipe
    cat whole | forge-grid -q >through
    cmp from-file from-pipe
    cmp from-file through
    # Cut in the middle of it, and with one bit changed there.
    head -c 1900000 whole >cut
    cp whole flipped
    printf '\001' | dd of=flipped bs=1 seek=1000000 conv=notrunc status=none
    for bad in cut flipped; do
        run -65 --separate-stderr bash -c "cat $bad | forge-grid -q >out"
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ "$(stat -c %s out)" -gt 900000 ] # it had begun to go on
        run -1 forge-ls --verify out
    done
}
