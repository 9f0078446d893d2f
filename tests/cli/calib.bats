#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-calib(1) as a user meets it.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/forward.py"
MAN="$BATS_TEST_DIRNAME/../../man/forge-calib.1"

# One tiny model of each kind, tokens of ragged sequences.
setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for kind in mini llama llama-biases dynamic mistral qwen2 qwen3; do
        python3 "$PY" make $kind $kind
    done
    python3 "$PY" tokens t.fts 40 1 33 64
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
}

# The tool fails with this status and one line that says this.
refused() { # STATUS TEXT ARGUMENT...
    local status_wanted=$1 text=$2
    shift 2
    run --separate-stderr forge-calib -q -o out.fts "$@"
    [ "$status" -eq "$status_wanted" ] || { echo "exit $status: $stderr"; return 1; }
    [[ $stderr == *"$text"* ]] || { echo "said: $stderr"; return 1; }
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    [ ! -e out.fts ]
}

@test "whole models in f32: every activation is what the papers say" {
    for kind in llama llama-biases dynamic mistral qwen2 qwen3; do
        forge-calib -q --dtype f32 $kind t.fts >$kind.fts
        python3 "$PY" check $kind t.fts 1e-5 $kind.fts
        [ "$(python3 "$PY" names $kind.fts | wc -l)" -eq 32 ]
        python3 "$PY" logits $kind t.fts 1e-5 f32
    done
}

@test "whole models in bf16 are near" {
    for kind in llama llama-biases mistral qwen2 qwen3; do
        forge-calib -q $kind <t.fts >$kind.fts
        python3 "$PY" check $kind t.fts 0.06 $kind.fts
        python3 "$PY" logits $kind t.fts 0.06 bf16
    done
}

@test "the example model: hidden states and logits that transformers gave" {
    python3 "$PY" recorded "$BATS_TEST_DIRNAME/../../examples/llama-4m" \
        "$BATS_TEST_DIRNAME/../reference/llama-4m.safetensors" 1e-5
}

@test "sequences stay in order, and the last of each name says so" {
    forge-calib -q llama t.fts >a.fts
    python3 "$PY" names a.fts >names
    [ "$(head -n 4 names)" = "activation model.layers.0.attn_in 1
activation model.layers.0.attn_in 2
activation model.layers.0.attn_in 3
activation model.layers.0.attn_in 4 last" ]
    [ "$(grep -c last names)" -eq 8 ]
}

@test "activations name the linears that read them" {
    forge-calib -q llama t.fts | forge-ls --json - >a.json
    head -n 1 a.json | grep -q '"modules":\["model.layers.0.self_attn.q_proj","model.layers.0.self_attn.k_proj","model.layers.0.self_attn.v_proj"\]'
    head -n 1 a.json | grep -q '"samples":40'
}

@test "a layer in steps, from point to point, is the layer in one go" {
    for dtype in f32 bf16; do
        calib() { forge-calib -q --dtype $dtype qwen3 "$@"; }
        calib --to embed t.fts >x.fts
        calib --to attn_in x.fts >a.fts
        calib --to attn_in t.fts >a2.fts
        python3 "$PY" same a.fts a2.fts
        calib --to attn_out a.fts >b.fts
        calib --to mlp_in b.fts >c.fts
        calib --to mlp_mid c.fts >d.fts
        calib --to hidden d.fts >h.fts
        calib --advance t.fts >h2.fts
        python3 "$PY" same h.fts h2.fts
        calib --layer 0 --hidden h3.fts t.fts >all.fts
        python3 "$PY" same h.fts h3.fts
        calib --to mlp_in --layer 1 h.fts >e.fts
        tolerance=1e-5
        [ $dtype = f32 ] || tolerance=0.06
        for f in x a b c d h all e; do
            python3 "$PY" check qwen3 t.fts $tolerance $f.fts
        done
        calib --all --layer 1 h.fts >one.fts
        calib t.fts >whole.fts
        python3 "$PY" names all.fts >n
        python3 "$PY" names one.fts >>n
        python3 "$PY" names whole.fts | cmp n
    done
}

@test "a whole model may start at a later layer" {
    forge-calib -q --advance llama t.fts >h.fts
    forge-calib -q llama h.fts >rest.fts
    forge-calib -q --all llama h.fts >one.fts
    python3 "$PY" same rest.fts one.fts
}

@test "codes take the place of weights" {
    forge-weights -q llama --layer 0 --match '*_proj.weight' |
        forge-grid -q --group 16 | forge-solve -q --method rtn >all.fts
    forge-weights -q llama --layer 0 --match '*.[qkv]_proj.weight' |
        forge-grid -q --group 16 | forge-solve -q --method rtn >qkv.fts
    forge-weights -q llama --layer 0 --match '*.o_proj.weight' |
        forge-grid -q --group 16 --scale-dtype bf16 | forge-solve -q --method rtn >o.fts
    forge-calib -q --dtype f32 --advance --codes all.fts llama t.fts >h.fts
    python3 "$PY" check llama t.fts 1e-5 h.fts all.fts
    run ! python3 "$PY" check llama t.fts 1e-3 h.fts
    forge-calib -q --dtype f32 --to mlp_in -c qkv.fts -c o.fts llama t.fts >c.fts
    python3 "$PY" check llama t.fts 1e-5 c.fts qkv.fts o.fts
    forge-calib -q --dtype f32 --codes all.fts llama t.fts >w.fts
    python3 "$PY" check llama t.fts 1e-5 w.fts all.fts
    refused 65 "is not in layer 1" \
        --layer 1 --to attn_out --codes qkv.fts llama h.fts
    refused 65 "two frames" --codes qkv.fts --codes all.fts llama t.fts
    forge-weights -q llama --layer 0 | forge-grid -q --group 16 >qmeta.fts
    refused 65 "no codes" --codes qmeta.fts llama t.fts
    refused 65 "the config says" --codes qkv.fts mistral t.fts
}

@test "batches do not matter: a sequence alone gives the same" {
    python3 "$PY" tokens many.fts 700 700 700 700 5 2100 3
    forge-calib -q --to mlp_mid llama many.fts >m.fts
    python3 "$PY" tokens one.fts 700
    forge-calib -q --to mlp_mid llama one.fts >o.fts
    python3 "$PY" same m.fts o.fts 2
    [ "$(python3 "$PY" names m.fts | wc -l)" -eq 14 ]
}

@test "hundreds of short sequences" {
    # shellcheck disable=SC2046
    python3 "$PY" tokens short.fts $(for ((i = 0; i < 600; i++)); do echo $((i % 5 + 1)); done)
    forge-calib -q --dtype f32 mini short.fts >s.fts
    python3 "$PY" check mini short.fts 1e-5 s.fts
    python3 "$PY" names s.fts | grep attn_in | cut -d ' ' -f 3 | cmp - <(seq 600)
}

@test "the same input gives the same bytes, whatever the threads" {
    forge-calib -q -j 1 qwen2 t.fts >a.fts
    forge-calib -q -j 2 qwen2 t.fts >b.fts
    cmp a.fts b.fts
    forge-calib -q --advance qwen2 t.fts -o c.fts
    forge-calib -q --advance qwen2 - <t.fts >d.fts
    cmp c.fts d.fts
}

@test "other frames pass through" {
    mkstream note:run:'{"bits":4}' tensor:x:F32:4 >n.fts
    cat n.fts t.fts | forge-calib -q --to attn_in llama >a.fts
    python3 "$PY" names a.fts >names
    [ "$(head -n 2 names)" = "note run None
tensor x None" ]
    [ "$(wc -l <names)" -eq 10 ]
}

@test "an input of another layer, shape or order is refused" {
    forge-calib -q --to attn_in llama t.fts >a.fts
    refused 65 "want layer 1" --layer 1 --to attn_out llama a.fts
    refused 65 "at attn_in already" --to attn_in llama a.fts
    refused 65 "at attn_in already" --all llama a.fts
    refused 65 "no tokens to embed" --to embed llama a.fts
    refused 65 "inside layer 0" llama a.fts
    refused 65 "tokens enter layer 0" --layer 1 --to hidden llama t.fts
    refused 65 "of this model it is" --to hidden llama \
        <(mkstream hidden:model.layers.0:F32:3x64)
    refused 65 "the model has 2 layers" --to hidden llama \
        <(mkstream hidden:model.layers.2:F32:3x48)
    refused 65 "want tokens, or hidden states" llama \
        <(mkstream activation:model.layers.0.attn_in:F32:3x48)
    refused 65 "the input has no sequences" llama <(mkstream)
    for how in order width layer; do
        python3 "$PY" change a.fts b.fts $how
        refused 65 "model.layers" --to attn_out llama b.fts ||
            refused 65 "sequence" --to attn_out llama b.fts
    done
}

@test "hidden states that are not finite are named" {
    forge-calib -q --to embed llama t.fts >x.fts
    python3 "$PY" change x.fts bad.fts nan
    refused 65 "'model.layers.0': sequence 3: not finite at token 32" \
        --to hidden llama bad.fts
}

@test "tokens that the model does not know are named" {
    refused 65 "token 96 at position 1 is not in the vocabulary of 96" \
        --to embed llama <(python3 -c '
import sys, os
sys.path.insert(0, os.path.dirname("'"$PY"'"))
import fts, numpy as np
fts.write(sys.stdout.buffer, [fts.Tensor("tokens", "0", np.array([1, 96], "<i4"), sequence=1)])')
}

@test "dynamic rope refuses sequences beyond its positions" {
    python3 "$PY" tokens long.fts 65
    refused 78 "supported up to max_position_embeddings 64" dynamic long.fts
}

@test "a checkpoint that lacks a tensor, or has another shape, is refused" {
    cp -rL llama broken
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' broken/config.json
    refused 65 "model.layers.2." broken t.fts
    sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/; s/"intermediate_size": 80/"intermediate_size": 96/' broken/config.json
    refused 65 "the config says" broken t.fts
    sed -i 's/"hidden_act": "silu"/"hidden_act": "relu"/' broken/config.json
    refused 78 "hidden_act 'relu' is not supported" broken t.fts
    refused 66 "nowhere" nowhere t.fts
}

@test "a stream cut anywhere is exit 65, and so is the output" {
    size=$(stat -c %s -L t.fts)
    for n in 0 63 100 300 $((size - 1)); do
        run -65 bash -c "head -c $n t.fts | forge-calib -q --to attn_in llama >cut.fts"
        run ! forge-ls --verify cut.fts
        refused 65 "" llama <(head -c "$n" t.fts)
    done
}

@test "a key that is not expected is refused, and one given is stored" {
    forge-calib -q --to embed --key abc llama t.fts >x.fts
    forge-calib -q --to hidden --expect-key abc llama x.fts >h.fts
    refused 65 "key" --to hidden --expect-key abd llama x.fts
}

@test "a wrong command line is exit 64 and one line" {
    refused 64 "want MODEL"
    refused 64 "want MODEL" llama t.fts x
    refused 64 "is none of embed" --to nowhere llama t.fts
    refused 64 "exclude each other" --all --to hidden llama t.fts
    refused 64 "--advance is --to hidden" --advance --to mlp_in llama t.fts
    refused 64 "--hidden goes with" --hidden h llama t.fts
    refused 64 "layers 0 to 1" --layer 2 llama t.fts
    refused 64 "" --dtype f16 llama t.fts
}

@test "nothing stays behind in the temporary directory" {
    mkdir tmp
    TMPDIR=$PWD/tmp forge-calib -q llama t.fts >a.fts
    [ -z "$(ls -A tmp)" ]
    TMPDIR=$PWD/nowhere run -73 forge-calib -q llama t.fts
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c 'forge-calib -q llama t.fts >/dev/full'
    run -74 bash -c 'forge-calib -q --to hidden llama t.fts >/dev/full'
}

@test "--help and the man page name the same options" {
    run -0 --separate-stderr forge-calib --help
    [ -z "$stderr" ]
    grep -o -- '--[a-z-]*' <<<"$output" | sort -u | while read -r o; do
        grep -q -- "Fl ${o#-}" "$MAN" || { echo "$o is not in the man page"; exit 1; }
    done
    run -0 forge-calib --version
}
