#!/usr/bin/env bats
# forge repack: a 4-bit checkpoint in another layout is what quantizing into that
# layout writes, to the bit (tests/reference/layouts.py, but for the recipe).

bats_require_minimum_version 1.5.0

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    M=$FORGE_TREE/examples/llama-4m
    forge-weights -q "$M" | forge-grid -q | forge-solve -q -o sym
    forge-weights -q "$M" | forge-grid -q --group 32 --asymmetric | forge-solve -q -o asym
    for l in compressed-tensors awq gptq gptq_v2; do
        forge-pack -q --layout $l sym | forge-shard -q --from "$M" sym-$l
        [ $l = gptq ] || forge-pack -q --layout $l asym | forge-shard -q --from "$M" asym-$l
    done
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
    rm -rf out
    reference=$BATS_TEST_DIRNAME/../reference/layouts.py
}

# Change the header, the bytes of tensors, or both, of CHECKPOINT's file.
edit() { # CHECKPOINT CODE
    /usr/bin/python3 - "$1/model.safetensors" "$2" <<'P'
import json, struct, sys
b = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", b[:8])
head, data = json.loads(b[8:8 + n]), bytearray(b[8 + n:])
exec(sys.argv[2])
h = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(h)) + h + data)
P
}

@test "from every layout into every other, to the bit" {
    for kind in sym asym; do
        for from in compressed-tensors awq gptq gptq_v2; do
            [ -d $kind-$from ] || continue
            for to in compressed-tensors awq gptq gptq_v2; do
                [ -d $kind-$to ] || continue
                rm -rf out
                run -0 --separate-stderr forge repack -q $kind-$from out --layout $to
                [ -z "$output$stderr" ]
                /usr/bin/python3 "$reference" same out $kind-$to
                forge verify out >/dev/null
            done
        done
    done
}

@test "what comes out says what came in: KL 0, perplexity equal" {
    forge repack -q asym-awq out --layout compressed-tensors
    forge-tokens -q -n 2 -t 64 asym-awq "$FORGE_TREE/examples/eval.txt" |
        forge-eval -q --json asym-awq out >report
    [ "$(jq '.kl_max' report)" = 0 ]
    [ "$(jq '.ppl == .ppl_original' report)" = true ]
}

@test "zeros that the first version of GPTQ does not hold are refused before any work" {
    run -78 --separate-stderr forge repack asym-awq out --layout gptq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"model.layers.0."* ]]
    [ ! -e out ]
}

@test "scales that F16 does not hold are refused by module, output and group" {
    cp -r sym-compressed-tensors bf16
    edit bf16 '[t.update(dtype="BF16") for k, t in head.items() if k.endswith("weight_scale")]'
    run -78 --separate-stderr forge repack bf16 out --layout awq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"the scale of output 0, group 0 is "*", which F16 does not hold: awq would change it" ]]
    [ ! -e out ]
    forge repack -q bf16 out --layout compressed-tensors
    rm -rf bf16
}

@test "inputs of a group that lie apart are refused by module" {
    cp -r sym-gptq act
    edit act 't = head["model.layers.1.mlp.down_proj.g_idx"]["data_offsets"][0]; data[t:t + 4], data[t + 512:t + 516] = data[t + 512:t + 516], data[t:t + 4]'
    run -78 --separate-stderr forge repack act out --layout awq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"'model.layers.1.mlp.down_proj': its g_idx mixes groups (desc_act)"*"awq"* ]]
    [ ! -e out ]
    rm -rf act
}

@test "wrong use, a model that is not in 4 bits, an output that is there" {
    run -64 forge repack sym-awq out
    run -64 forge repack sym-awq --layout awq
    run -78 --separate-stderr forge repack "$FORGE_TREE/examples/llama-4m" out --layout awq
    [[ $stderr == *"is not in 4 bits; 'forge quantize' makes it so" ]]
    run -66 forge repack nowhere out --layout awq
    mkdir out
    run -73 forge repack sym-awq out --layout awq
}

@test "forge quantize of a 4-bit checkpoint says forge repack" {
    run -78 --separate-stderr forge quantize sym-awq out --method rtn
    [[ $stderr == *"is quantized to 4 bits already; 'forge repack sym-awq OUT --layout NAME' stores it in another layout" ]]
}
