#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-gradient(1) as a user meets it.

bats_require_minimum_version 1.5.0

load ../helper/edit

MODELS="$BATS_TEST_DIRNAME/../reference/forward.py"
PY="$BATS_TEST_DIRNAME/../reference/gradient.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$MODELS" each mini mini-mixture llama llama-biases mistral qwen2 qwen3 deepseek_v3 \
        deepseek_v3-plain deepseek_v2 qwen2_moe qwen3_moe mixtral glm4_moe \
        minimax_m2 ernie4_5_moe gpt_oss llama4 smollm3 gemma2 gemma3 phi3 \
        phi3-long olmo2 olmo3 granite granitemoe glm4
    python3 "$MODELS" tokens t.fts 50 1 33
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
}

@test "gradients are what differences say: dense models" {
    for kind in llama llama-biases mistral qwen2 qwen3 smollm3; do
        forge-gradient -q --dtype f32 $kind t.fts >g.fts
        python3 "$PY" $kind t.fts g.fts 1e-4
    done
}

@test "gradients are what differences say: norms behind, soft caps, GELU, a RoPE by layer, fused linears, multipliers" {
    for kind in gemma2 gemma3 phi3 phi3-long olmo2 olmo3 glm4 granite; do
        forge-gradient -q --dtype f32 $kind t.fts >g.fts
        python3 "$PY" $kind t.fts g.fts 1e-4
    done
}

@test "gradients are what differences say: in bf16, as near as its forward pass" {
    for kind in llama qwen3 gemma2; do # by 0.1 at most where products are f32, too
        forge-gradient -q $kind t.fts >g.fts
        python3 "$PY" $kind t.fts g.fts 0.2
    done
}

@test "gradients are what differences say: mixtures" {
    local bound=5e-4
    [[ $(forge-gradient --version) != *"cpu plain" ]] || bound=1e-3
    for kind in deepseek_v3 deepseek_v3-plain deepseek_v2 qwen2_moe qwen3_moe \
        mixtral glm4_moe minimax_m2 ernie4_5_moe gpt_oss llama4 granitemoe; do
        forge-gradient -q --dtype f32 $kind t.fts >g.fts
        # margins are differences of f32 scores, and a random router's are few steps apart:
        # 3.1e-4 for qwen3_moe (5.8e-4 at level plain), 1.9e-4 for gpt_oss, below 1e-4 for
        # the others
        python3 "$PY" $kind t.fts g.fts $bound
    done
}

@test "random sums of logits have the second moments of drawn tokens' gradients" {
    python3 "$PY" signs
}

@test "--weights: squares of gradients of all linears, whatever --tokens" {
    python3 "$MODELS" tokens few.fts 5 1
    for kind in llama olmo2 phi3 qwen2_moe deepseek_v3; do
        forge-gradient -q --dtype f32 --weights w.fts --tokens 1 $kind few.fts >/dev/null
        python3 "$PY" weights $kind few.fts w.fts 1e-4
    done
    # shellcheck disable=SC2046
    python3 "$MODELS" tokens many.fts $(yes 64 | head -n 80)
    for kind in mini mini-mixture; do
        forge-gradient -q --tokens 4096 $kind many.fts >alone
        forge-gradient -q --tokens 4096 --weights windows $kind many.fts >beside
        forge-gradient -q --tokens 0 --weights whole $kind many.fts >/dev/null
        python3 "$MODELS" same alone beside # but for the options in HEAD
        forge-calib -q $kind many.fts >acts
        for w in whole windows; do
            forge-hessian -q --weights $w acts >$w.h
        done
        python3 "$MODELS" same whole.h windows.h
    done
}

@test "Hessians of gradients name the linears, from the last layer down" {
    forge-gradient -q llama t.fts | forge-hessian -q >h.fts
    forge-ls --json h.fts |
        sed -n 's/.*"name":"\(model[^"]*\)".*"modules":\["\([^"]*\)"\].*/\1 \2/p' >names
    [ "$(wc -l <names)" -eq 8 ]
    [ "$(head -n 4 names)" = "model.layers.1.mlp_mid.gradient model.layers.1.mlp.down_proj
model.layers.1.attn_out.gradient model.layers.1.self_attn.o_proj
model.layers.1.self_attn.k_proj.gradient model.layers.1.self_attn.k_proj
model.layers.1.self_attn.v_proj.gradient model.layers.1.self_attn.v_proj" ]
}

@test "--tokens: whole batches of sequences" {
    # shellcheck disable=SC2046
    python3 "$MODELS" tokens many.fts $(yes 64 | head -n 80)
    count() {
        forge-gradient -q --tokens "$1" mini many.fts |
            forge-ls - | grep -c 'attn_out.gradient'
    }
    [ "$(count 0)" -eq 80 ]
    [ "$(count 1)" -eq 32 ]
    [ "$(count 2048)" -eq 32 ]
    [ "$(count 2049)" -eq 64 ]
}

@test "equal input gives equal bytes, whatever the threads" {
    for dtype in bf16 f32; do
        forge-gradient -q -j 1 --dtype $dtype --weights w1 qwen3_moe t.fts >one
        forge-gradient -q -j 2 --dtype $dtype --weights w2 qwen3_moe <t.fts >two
        cmp one two
        cmp w1 w2
    done
}

@test "memory does not grow with the number of layers" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m n
    for n in 4 40; do
        mkdir -p "m$n"
        sed -E 's/("hidden_size": )[^,]*/\1256/; s/("intermediate_size": )[^,]*/\132/
            s/("num_attention_heads": )[^,]*/\12/; s/("num_key_value_heads": )[^,]*/\11/
            s/("head_dim": )[^,]*/\1128/; s/("num_hidden_layers": )[^,]*/\1'"$n/" \
            "$model/config.json" >"m$n/config.json"
        mkmodel "m$n/model.safetensors" 2048 256 32 2 1 "$n"
    done
    # shellcheck disable=SC2046
    python3 "$MODELS" tokens many.fts $(yes 256 | head -n 32)
    for n in 4 40; do
        forge-meter -q -o cost -- forge-gradient -q m$n many.fts >/dev/null
        jq '.peak_bytes / 1048576 | floor' cost >peak$n
    done
    # The states of 40 layers are 320 MiB, of which 128 would be in memory.
    echo "4 layers: $(<peak4) MiB, 40: $(<peak40)"
    [ "$(<peak40)" -lt $(($(<peak4) + 32)) ]
}

@test "gradients that are not finite are exit 65, by their linear" {
    for tensor in lm_head model.norm model.layers.3.mlp.down_proj; do
        rm -rf m
        cp -r "$FORGE_TREE/examples/llama-4m" m
        edit m "at = head['$tensor.weight']['data_offsets'][0] + 100; data[at:at + 2] = bytes.fromhex('c07f')"
        run -65 --separate-stderr forge-gradient -q -o out --weights w m t.fts
        [ "$stderr" = "forge-gradient: layer 3: 'model.layers.3.mlp.down_proj': a gradient is not finite" ]
        [ ! -e out ]
        [ ! -e w ]
        run -65 --separate-stderr forge-gradient -q --dtype f32 -o out m t.fts
        [ "$stderr" = "forge-gradient: layer 3: 'model.layers.3.mlp.down_proj': a gradient is not finite" ]
    done
}

@test "an input that is cut short is exit 65, and the output is no stream" {
    head -c $(($(stat -c %s t.fts) - 8)) t.fts >short
    run --separate-stderr forge-gradient -q -o out --weights w mini short
    [ "$status" -eq 65 ]
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    [ ! -e out ]
    [ ! -e w ]
    forge-gradient -q mini short 2>/dev/null >out || true
    run -65 forge-ls out
}

@test "a full disk is exit 74, a wrong command line 64, no file 66" {
    run -74 forge-gradient -q mini t.fts -o /dev/full
    run -74 forge-gradient -q mini t.fts -o out --weights /dev/full
    [ ! -e out ]
    run -64 forge-gradient -q
    run -64 forge-gradient -q mini t.fts t.fts
    run -66 forge-gradient -q mini none
    run -66 forge-gradient -q none t.fts
    forge-calib -q --to embed mini t.fts >x.fts
    run --separate-stderr -65 forge-gradient -q mini x.fts
    [[ $stderr == *"tokens"* ]]
}
