#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-calib(1) as a user meets it.

load cli

PY="$BATS_TEST_DIRNAME/../reference/forward.py"

# One tiny model of each kind, tokens of ragged sequences.
setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$PY" each mini llama llama-biases dynamic mistral qwen2 qwen3
    python3 "$PY" tokens t.fts 40 1 33 64
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
}

# The tool fails with this status and one line that says this.
refused() { # STATUS TEXT ARGUMENT...
    fails "$1" "$2" forge-calib -q -o out.fts "${@:3}"
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

@test "families that differ from Llama: every activation is what their papers say" {
    local kinds
    kinds=$(python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import families; print(*families.KINDS)' "$(dirname "$PY")")
    [ "$(wc -w <<<"$kinds")" -ge 12 ]
    python3 "$PY" each $kinds
    for kind in $kinds; do
        forge-calib -q --dtype f32 "$kind" t.fts >"$kind.fts"
        python3 "$PY" check "$kind" t.fts 1e-5 "$kind.fts"
        python3 "$PY" logits "$kind" t.fts 1e-5 f32
        forge-calib -q "$kind" t.fts >"$kind.fts"
        python3 "$PY" check "$kind" t.fts 0.06 "$kind.fts"
        python3 "$PY" logits "$kind" t.fts 0.06 bf16
    done
}

@test "Gemma 3n: every activation is what the papers of its parts say" {
    python3 "$PY" make gemma3n m
    # in f32 0.9e-5 to 1.6e-5 from double, by CPU level and OpenBLAS kernel
    forge-calib -q --dtype f32 m t.fts >f32.fts
    python3 "$PY" check m t.fts 3e-5 f32.fts
    [ "$(python3 "$PY" names f32.fts | wc -l)" -eq 96 ]
    python3 "$PY" logits m t.fts 3e-5 f32
    # what bf16 rounds becomes larger behind cut-offs and in corrections: the worst
    # token 0.26 at plain and avx2, below 0.2 elsewhere
    forge-calib -q m t.fts >bf16.fts
    python3 "$PY" check m t.fts 0.3 bf16.fts
    python3 "$PY" logits m t.fts 0.15 bf16
    # a layer's hidden states have the keys and inputs of all layers behind it
    forge-calib -q --dtype f32 --to embed m t.fts >h0.fts
    for i in 0 1 2 3 4 5; do
        forge-calib -q --dtype f32 --layer $i --hidden h$((i + 1)).fts m h$i.fts >a.fts
        python3 "$PY" check m t.fts 3e-5 a.fts
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

@test "a layer's hidden states, by themselves or beside its activations" {
    for dtype in f32 bf16; do
        calib() { forge-calib -q --dtype $dtype qwen3 "$@"; }
        tolerance=1e-5
        [ $dtype = f32 ] || tolerance=0.06
        calib --to embed t.fts >x.fts
        calib --to hidden x.fts >h.fts
        calib --layer 0 --hidden h2.fts t.fts >all.fts
        python3 "$PY" same h.fts h2.fts
        calib --layer 1 h.fts >one.fts
        for f in x h all one; do
            python3 "$PY" check qwen3 t.fts $tolerance $f.fts
        done
        calib t.fts >whole.fts
        python3 "$PY" names all.fts >n
        python3 "$PY" names one.fts >>n
        python3 "$PY" names whole.fts | cmp n
    done
}

# Round every linear to nearest, whatever its Hessian: a chain like forge's.
loop() { # CALIBRATION-ARGUMENT...: codes.fts, and what came out, seen.fts
    rm -f back
    mkfifo back
    timeout 60 bash -o pipefail -c '"${@:1}" | tee seen.fts | forge-hessian -q |
        forge-weights -q --join llama | forge-grid -q --group 16 |
        forge-solve -q | forge-split -q "codes-%.fts" | tee back >codes.fts' \
        - forge-calib -q --feedback back "$@"
}

@test "the loop: each point is computed with the codes of those before it" {
    for dtype in f32 bf16; do
        tolerance=1e-5
        [ $dtype = f32 ] || tolerance=0.06
        loop --dtype $dtype llama t.fts
        python3 "$PY" check llama t.fts $tolerance seen.fts codes.fts
        [ $dtype = bf16 ] || run -1 python3 "$PY" check llama t.fts 1e-3 seen.fts
        [ "$(python3 "$PY" names seen.fts | grep -c last)" -eq 8 ]
        [ "$(forge-ls codes.fts | grep -c ^codes)" -eq 14 ]
        [ "$(forge-ls codes-0.fts | grep -c ^codes)" -eq 7 ]
        [ "$(forge-ls codes.fts | grep -c '^note.*mlp_in')" -eq 2 ]
        [ "$(forge-ls codes-0.fts | grep -c '^note.*mlp_in')" -eq 0 ]
        # one pass with all codes in place sees the same
        forge-calib -q --dtype $dtype --codes codes.fts llama t.fts >again.fts
        python3 "$PY" check llama t.fts $tolerance again.fts codes.fts
        python3 "$PY" names again.fts >want
        python3 "$PY" names seen.fts | grep activation | cmp want
    done
}

@test "the loop layer by layer is the loop" {
    loop llama t.fts
    cp codes.fts whole.fts
    loop --layer 0 --hidden h.fts llama t.fts
    forge-calib -q --to hidden --codes codes.fts llama t.fts >h2.fts
    python3 "$PY" same h.fts h2.fts
    mv codes.fts first.fts
    mv codes-0.fts c0
    loop --layer 1 llama h.fts
    cat first.fts codes.fts | python3 "$PY" codes - whole.fts
}

@test "the loop goes on from what a killed one left" {
    loop llama t.fts
    mkdir whole
    mv codes-*.fts whole
    cp whole/codes-0.fts .
    loop --codes 'codes-%.fts' llama t.fts
    [ "$(python3 "$PY" names seen.fts | grep -c last)" -eq 4 ]
    cmp codes-0.fts whole/codes-0.fts
    python3 "$PY" codes codes-1.fts whole/codes-1.fts
    loop --codes 'codes-%.fts' llama t.fts
    run -1 grep -a activation seen.fts
}

@test "--propagate both: how far activations drift, and what output is wanted" {
    for kind in llama llama-biases; do
        rm -f llama codes*.fts
        ln -s "$BATS_FILE_TMPDIR/$kind" llama
        loop --dtype f32 --propagate both llama t.fts
        python3 "$PY" drift llama t.fts 1e-4 seen.fts codes.fts
    done
    mv codes.fts both.fts
    loop --dtype f32 llama t.fts # the same codes: they are rounded to nearest
    python3 "$PY" codes codes.fts both.fts
    refused 64 "wants --feedback" --propagate both llama t.fts
}

@test "both streams go on from what a killed run left" {
    for dtype in f32 bf16; do
        both() { loop --dtype $dtype --propagate both "$@"; }
        both llama t.fts
        mv seen.fts whole.fts
        rm codes-*.fts
        both --layer 0 --hidden h.fts llama t.fts
        mv seen.fts first.fts
        both --codes 'codes-%.fts' llama h.fts
        mv seen.fts second.fts
        forge-calib -q --dtype $dtype --to hidden --layer 0 llama t.fts >o.fts
        PYTHONPATH=$(dirname "$PY") python3 - <<'PYTHON'
import fts
def frames(name, role):
    return [(t.name, t.sequence, t.payload) for t in fts.read(open(name, "rb")) if t.role == role]
# the second stream is what the original model makes
states = frames("h.fts", "hidden")
assert [n for n, *_ in states] == ["model.layers.1"]*4 + ["model.layers.1.original"]*4
assert [x[1:] for x in states[4:]] == [x[1:] for x in frames("o.fts", "hidden")]
# and the differences go on, from layer 1's first linear on
assert frames("first.fts", "activation") + frames("second.fts", "activation") == frames("whole.fts", "activation")
PYTHON
    done
    refused 65 "want --propagate both" llama h.fts
}

@test "a linear that gets no codes runs as it is" {
    mkfifo back
    timeout 60 bash -o pipefail -c 'forge-calib -q --dtype f32 --feedback back llama t.fts |
        tee seen.fts | forge-hessian -q |
        forge-weights -q --join --exclude "*.[kv]_proj" llama |
        forge-grid -q --group 16 | forge-solve -q | tee back >codes.fts'
    [ "$(forge-ls codes.fts | grep -c ^codes)" -eq 10 ]
    python3 "$PY" check llama t.fts 1e-5 seen.fts codes.fts
    # nothing at all comes back: no quantized linear, and no hang
    timeout 60 bash -o pipefail -c 'forge-calib -q --feedback back llama t.fts |
        tee back >seen.fts'
    forge-calib -q llama t.fts >plain.fts
    forge-ls plain.fts >a
    forge-ls seen.fts | grep ^activation | cmp a
}

# However the feedback ends too soon, forge-calib says so and ends.
@test "feedback cut anywhere: exit 65, one line, no hang" {
    loop llama t.fts
    size=$(stat -c %s codes.fts)
    rm -f back
    mkfifo back
    for n in 0 1 63 64 200 1000 $((size / 3)) $((size / 2)) $((size - 5000)) \
        $((size - 64)) $((size - 1)); do
        head -c "$n" codes.fts >back &
        run -65 --separate-stderr timeout 20 \
            forge-calib -q --feedback back -o out.fts llama t.fts
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
        [ ! -e out.fts ]
        wait
    done
}

# The loop, one tool of which fails or is killed on its way; `ended` gets the
# exit status of each tool, in the pipe's order.
chain() {
    timeout 30 bash -c 'one() {
            case $how:$1 in
            kill-*:forge-$victim)
                "$@" &
                sleep "${how#*-}"
                kill -KILL $!
                exec >&- <&-
                # who opens back to write to it waits for a reader
                [ "$victim" != calib ] || sleep 1 3<>back
                wait $!
                ;;
            *:forge-$victim) FAIL=$how LD_PRELOAD=$FAIL_SO exec "$@" ;;
            *) exec "$@" ;;
            esac
        }
        one forge-calib -q --feedback back llama t.fts | one forge-hessian -q |
            one forge-weights -q --join llama | one forge-grid -q --group 16 |
            one forge-solve -q | one forge-split -q "codes-%.fts" >back
        echo "${PIPESTATUS[*]}" >ended' 2>err
}

# What the tools must have ended with; I: the victim's place.  If a call of it
# failed (74, 75), it has the first message and no other tool succeeds.  If it was
# killed (137), those do that had written all of their output, or had got all of
# its.  Else it never makes so many calls, or had ended before, and all succeed.
check_ended() { # I
    local all others hit=137 i
    read -ra all <ended
    [ ${#all[@]} -eq 6 ]
    case $how in
    read:* | write:*) hit=74 ;;
    malloc:*) hit=75 ;;
    esac
    [ "${all[$1]}" -eq $hit ] || [ "${all[*]}" = "0 0 0 0 0 0" ]
    [ "${all[$1]}" -eq $hit ] || [ ! -e mark ]
    others=("${all[@]}")
    unset "others[$1]"
    if [ "${others[*]}" = "0 0 0 0 0" ]; then
        [ $hit -eq 137 ] || [ "${all[$1]}" -eq 0 ]
        return
    fi
    for i in "${!all[@]}"; do
        [ "$i" -eq "$1" ] || [[ ${all[i]} == 65 || ${all[i]} == 7[45] ]] ||
            [[ $hit == 137 && ${all[i]} == 0 ]]
    done
    [ $hit -eq 137 ] || [[ $(head -n 1 err) == "forge-$victim: "* ]]
    for i in codes-*.fts; do # published ones are whole
        [ ! -e "$i" ] || forge-ls -q --verify "$i"
    done
}

@test "whichever tool of the loop fails or is killed, all end, and none as if all was well" {
    mkfifo back
    export how victim FAIL_MARK=$PWD/mark
    tools=(calib hessian weights grid solve split)
    for i in "${!tools[@]}"; do
        victim=${tools[i]}
        for how in kill-0 kill-0.02 kill-0.05 write:1 write:2 write:5 \
            read:1 read:3 malloc:9 malloc:60 malloc:200; do
            [ -n "$FAIL_SO" ] || [[ $how == kill-* ]] || continue
            rm -f mark ended
            run chain
            echo "forge-$victim, $how: $status: $(<ended): $(<err)"
            [ "$status" -eq 0 ] # not 124, a hang
            check_ended "$i"
            rm -f codes-*.fts
        done
    done
}

@test "--feedback wants a pipe, and - a FILE" {
    refused 64 "is no pipe" --feedback t.fts llama t.fts
    refused 66 "nowhere" --feedback nowhere llama t.fts
    refused 64 "wants the sequences as FILE" --feedback - llama
    refused 64 "exclude each other" --feedback t.fts --to hidden llama t.fts
    # whoever writes to the pipe is not left waiting for its reader
    mkfifo back
    timeout 5 bash -c 'sleep 0.3; : >back' &
    refused 64 "exclude each other" --feedback back --to hidden llama t.fts
    wait $!
}

@test "a whole model may start at a later layer" {
    forge-calib -q --to hidden llama t.fts >h.fts
    forge-calib -q llama h.fts >rest.fts
    forge-calib -q --layer 1 llama h.fts >one.fts
    python3 "$PY" same rest.fts one.fts
}

@test "codes take the place of weights" {
    forge-weights -q llama --layer 0 --match '*_proj.weight' |
        forge-grid -q --group 16 | forge-solve -q --method rtn >all.fts
    forge-weights -q llama --layer 0 --match '*.[qkv]_proj.weight' |
        forge-grid -q --group 16 | forge-solve -q --method rtn >qkv.fts
    forge-weights -q llama --layer 0 --match '*.o_proj.weight' |
        forge-grid -q --group 16 --scale-dtype bf16 | forge-solve -q --method rtn >o.fts
    forge-calib -q --dtype f32 --to hidden --codes all.fts llama t.fts >h.fts
    python3 "$PY" check llama t.fts 1e-5 h.fts all.fts
    run ! python3 "$PY" check llama t.fts 1e-3 h.fts
    forge-calib -q --dtype f32 --layer 0 -c qkv.fts -c o.fts llama t.fts >c.fts
    python3 "$PY" check llama t.fts 1e-5 c.fts qkv.fts o.fts
    forge-calib -q --dtype f32 --codes all.fts llama t.fts >w.fts
    python3 "$PY" check llama t.fts 1e-5 w.fts all.fts
    refused 65 "is not in layer 1" --layer 1 --codes qkv.fts llama h.fts
    refused 65 "two frames" --codes qkv.fts --codes all.fts llama t.fts
    forge-weights -q llama --layer 0 | forge-grid -q --group 16 >qmeta.fts
    refused 65 "no codes" --codes qmeta.fts llama t.fts
    refused 65 "the config says" --codes qkv.fts mistral t.fts
    forge-calib -q llama t.fts >a.fts
    forge-hessian -q a.fts >hessians.fts
    forge-pack -q all.fts >packed.fts
    for other in a hessians packed t; do
        refused 65 "'$other.fts': there are no codes in it" --codes $other.fts llama t.fts
    done
    for role in codes qmeta; do # found when a linear wants them
        python3 - "$(dirname "$PY")" $role <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import fts
b = bytearray(open("qkv.fts", "rb").read())
x = [t for t in fts.load("qkv.fts").values() if t.role == sys.argv[2]][-1]
b[b.index(x.payload) + 5] ^= 1
open("bad.fts", "wb").write(b)
END
        refused 65 "'bad.fts': payload checksum differs" --codes bad.fts llama t.fts
    done
}

@test "batches do not matter: a sequence alone gives the same" {
    python3 "$PY" tokens many.fts 700 700 700 700 5 2100 3
    forge-calib -q --to hidden llama many.fts >m.fts
    python3 "$PY" tokens one.fts 700
    forge-calib -q --to hidden llama one.fts >o.fts
    python3 "$PY" same m.fts o.fts 1
    [ "$(python3 "$PY" names m.fts | wc -l)" -eq 7 ]
}

@test "hundreds of short sequences" {
    # shellcheck disable=SC2046
    python3 "$PY" tokens short.fts $(for ((i = 0; i < 600; i++)); do echo $((i % 5 + 1)); done)
    forge-calib -q --dtype f32 mini short.fts >s.fts
    python3 "$PY" check mini short.fts 1e-5 s.fts
    python3 "$PY" names s.fts | grep attn_in | cut -d ' ' -f 3 >got
    seq 600 | cmp - got
}

@test "the same input gives the same bytes, whatever the threads" {
    forge-calib -q -j 1 qwen2 t.fts >a.fts
    forge-calib -q -j 2 qwen2 t.fts >b.fts
    cmp a.fts b.fts
    forge-calib -q --to hidden qwen2 t.fts -o c.fts
    forge-calib -q --to hidden qwen2 - <t.fts >d.fts
    cmp c.fts d.fts
}

@test "other frames pass through" {
    mkstream note:run:'{"bits":4}' tensor:x:F32:4 >n.fts
    cat n.fts t.fts | forge-calib -q --to embed llama >a.fts
    python3 "$PY" names a.fts >names
    [ "$(head -n 2 names)" = "note run None
tensor x None" ]
    [ "$(wc -l <names)" -eq 6 ]
}

@test "an input of another layer or shape is refused" {
    forge-calib -q --to hidden llama t.fts >h.fts
    refused 65 "want layer 0" --layer 0 llama h.fts
    refused 65 "no tokens to embed" --to embed llama h.fts
    refused 65 "tokens enter layer 0" --layer 1 --to hidden llama t.fts
    refused 65 "of this model it is" --to hidden llama \
        <(mkstream hidden:model.layers.0:F32:3x64)
    refused 65 "the model has 2 layers" --to hidden llama \
        <(mkstream hidden:model.layers.2:F32:3x48)
    refused 65 "has no sequences" llama \
        <(mkstream activation:model.layers.0.attn_in:F32:3x48)
    refused 65 "the input has no sequences" llama <(mkstream)
    python3 "$PY" change h.fts b.fts width
    refused 65 "of this model it is" --to hidden llama b.fts
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
        run -65 bash -c "head -c $n t.fts | forge-calib -q --to hidden llama >cut.fts"
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
    refused 64 "--hidden goes with" --hidden h llama t.fts
    refused 64 "layers 0 to 1" --layer 2 llama t.fts
    refused 64 "" --dtype f16 llama t.fts
}

@test "nothing stays behind in the temporary directory" {
    mkdir tmp
    TMPDIR=$PWD/tmp forge-calib -q llama t.fts >a.fts
    [ -z "$(ls -A tmp)" ]
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c 'forge-calib -q llama t.fts >/dev/full'
    run -74 bash -c 'forge-calib -q --to hidden llama t.fts >/dev/full'
}
