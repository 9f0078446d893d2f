#!/usr/bin/env bats
# forge quantize --effort best: tokens with weights by their gradients (forge-gradient
# --weights), in every way through the layers.

load e2e

few=("${small[@]}" --effort best)

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    forge-tokens -q --sequences 4 --seqlen 64 -o t.fts "$model" "$text"
    forge-gradient -q --weights w.fts "$model" t.fts | forge-hessian -q -o f.fts
    forge quantize "$model" whole "${few[@]}" --work kept
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    T=$BATS_FILE_TMPDIR
}

# OUT OPTION...: what tools in a pipe make of t.fts, with these options of forge-hessian.
by_hand() {
    rm -f back
    mkfifo back
    timeout 60 bash -o pipefail -c '
        forge-calib -q --feedback back --propagate both "$1" "$2/t.fts" |
        forge-hessian -q --blend 2 "${@:4}" | forge-weights -q --join "$1" | forge-grid -q |
        forge-solve -q --effort best --prior 2 --fisher "$2/f.fts" | tee back >codes.fts
        { cat codes.fts; forge-weights -q --others "$1"; } |
            forge-pack -q --layout compressed-tensors | forge-shard -q --from "$1" "$3"' - \
        "$model" "$T" "$@"
}

# FILE FILE: Hessians of the same names and bytes.
same_hessians() {
    python3 - "$tree/tests/reference" "$@" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
a, b = ({t.name: bytes(t.payload) for t in fts.read(open(p, "rb")) if t.role == "hessian"} for p in sys.argv[2:])
assert len(a) == 4 and a == b
PYTHON
}

@test "the loop has the codes of tools in a pipe, with weights and not without" {
    by_hand weighted --weights "$T/w.fts"
    same_tensors "$T/whole" weighted
    by_hand alike
    run -1 same_tensors "$T/whole" alike
}

@test "Hessians of the original model are of weighted tokens" {
    forge quantize "$model" out "${few[@]}" --propagate original --work work
    forge-calib -q --layer 0 "$model" "$T/t.fts" | forge-hessian -q --weights "$T/w.fts" -o h.fts
    same_hessians h.fts work/calib-*/hessian-0.fts
    forge-calib -q --layer 0 "$model" "$T/t.fts" | forge-hessian -q -o h.fts
    run -1 same_hessians h.fts work/calib-*/hessian-0.fts
}

@test "what is there of F and the weights is not made again; what is lost, is" {
    cp -rL "$(dirname "$(command -v forge)")" bin
    cp -rL "$(dirname "$(command -v forge)")/../lib" lib
    printf '#!/bin/sh\nexit 1\n' >bin/forge-calib
    run -65 --separate-stderr bin/forge quantize "$model" out "${few[@]}" --work work
    run -0 forge status work
    [ "${lines[2]}" = "gradients, of all tokens for their weights: done" ]
    jq -e '.gradients and .layers_done == 0' <<<"$(forge status --json work)"
    stat -c %Y%i work/calib-*/{fisher,weights}.fts >stamps
    forge quantize "$model" out "${few[@]}" --work work
    same "$T/whole" out
    stat -c %Y%i work/calib-*/{fisher,weights}.fts | cmp - stamps
    for lost in fisher weights; do # as after a kill between the two
        rm -r out work/solve-* work/calib-*/$lost.fts
        run -0 forge status work
        [ "$lost" = weights ] || [ "${lines[2]}" = "gradients, of all tokens for their weights: to come, before the layers" ]
        forge quantize "$model" out "${few[@]}" --work work
        same "$T/whole" out
        cmp work/calib-*/weights.fts "$T"/kept/calib-*/weights.fts
    done
}

@test "the card's recipe names all that had a part: who replays it gets the same tensors" {
    forge quantize "$model" plain "${small[@]}"
    grep -qx 'forge-gradient --tokens=[0-9]*' plain/README.md
    grep -qx 'forge-solve .*--fisher=FILE' plain/README.md
    grep -q '; forge-gradient --tokens=[0-9]*; .*--fisher=FILE' plain/model.safetensors
    grep -qx 'forge-gradient --weights=FILE --tokens=[0-9]*' "$T/whole/README.md"
    grep -qx 'forge-hessian .*--weights=FILE' "$T/whole/README.md"
    step() { # TOOL [LINE [FILE]]: its arguments
        sed -n "s/^$1 *//p" "$card" | sed -n "${2:-1}p" | sed "s/=FILE/=${3-}/; s/=FIFO/=back/"
    }
    export -f step
    for was in plain "$T/whole"; do
        card=$was/README.md
        rm -rf back again
        mkfifo back
        # shellcheck disable=SC2016 # its own variables
        card=$card timeout 60 bash -e -o pipefail -c '
            forge-tokens $(step forge-tokens) "$1" "$2" >t
            forge-gradient $(step forge-gradient 1 w) "$1" t | forge-hessian $(step forge-hessian) >f
            forge-calib $(step forge-calib) "$1" t | forge-hessian $(step forge-hessian $ w) |
                forge-weights $(step forge-weights) "$1" | forge-grid $(step forge-grid) |
                forge-solve $(step forge-solve 1 f) | tee back | forge-pack $(step forge-pack) |
                forge-shard --from "$1" --others again' - "$model" "$text"
        cmp "$was/forge_checksums.json" again/forge_checksums.json
    done
}

@test "--dry-run: weights up to 131072 tokens" {
    plan() { forge quantize "$model" out --text "$text" --dry-run --seqlen 512 "$@"; }
    plan --effort best --sequences 256 >with
    plan --effort best --sequences 257 >without
    plan --sequences 256 >default
    grep -x 'calibration  131072 tokens with weights by their gradients, propagate both' with
    grep -x 'calibration  131584 tokens without weights, which up to 131072 have, propagate both' without
    grep -x 'calibration  131072 tokens, propagate both' default
    operations() { sed -nE 's/^  best +([0-9.]+) ([GT])FLOP.*/\1\2/p' "$1" | numfmt --from=si; }
    less "$(operations without)" "$(operations with)"
    [ "$(operations default)" = "$(operations with)" ]
}

@test "the default effort solves rows together up to 2,048 inputs, in families with gradients" {
    gradients() { # MODEL OPTION...
        forge quantize "$1" out --text "$text" --dry-run "${@:2}" >said
        grep -c '^gradients ' said
    }
    for width in 2048 2176; do
        mkdir $width
        cp "$model"/tokenizer* $width
        sed -E 's/("hidden_size": )[^,]*/\1'$width'/; s/("intermediate_size": )[^,]*/\1128/; s/("head_dim": )[^,]*/\1128/
            s/("num_attention_heads": )[^,]*/\1'$((width / 128))'/; s/("num_key_value_heads": )[^,]*/\11/
            s/("num_hidden_layers": )[^,]*/\11/' "$model/config.json" >$width/config.json
        mkmodel $width/model.safetensors "$(jq .vocab_size $width/config.json)" $width 128 $((width / 128)) 1 1
    done
    [ "$(gradients 2048)" -eq 1 ]
    run -1 gradients 2176
    [ "$(gradients 2176 --effort best)" -eq 1 ]
    run -1 gradients 2048 --effort fast
    python3 "$tree/tests/reference/forward.py" make qwen3_next qwen3_next
    cp "$model"/tokenizer* qwen3_next
    run -1 gradients qwen3_next --group 16
    refused 78 forge quantize qwen3_next out --text "$text" --dry-run --group 16 --effort best
}
