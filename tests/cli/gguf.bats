#!/usr/bin/env bats
# forge-gguf(1): files for llama.cpp, judged by tests/reference/ggufs.py, which is
# written from ggml's documents; tests/interop has the gguf package and
# llama.cpp itself.
# shellcheck disable=SC2154 # run sets stderr

bats_require_minimum_version 1.5.0

load ../helper/fail_each
load ../helper/edit

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    M=$FORGE_TREE/examples/llama-4m
    forge-weights -q "$M" | forge-grid -q --group 32 | forge-solve -q | forge-pack -q |
        forge-shard -q --from "$M" sym
    forge-weights -q "$M" | forge-grid -q --group 64 --asymmetric | forge-solve -q |
        forge-pack -q --layout awq | forge-shard -q --from "$M" asym
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
    rm -f ./*.gguf
    M=$FORGE_TREE/examples/llama-4m
}

ggufs() {
    /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/ggufs.py" "$@"
}

refused() { # STATUS TEXT ARGUMENT...
    run "-$1" --separate-stderr forge-gguf "${@:3}"
    [[ $stderr == *"$2"* ]] || { echo "said: $stderr"; return 1; }
    [ "${#stderr_lines[@]}" = 1 ]
}

# A model directory with another config.json or tokenizer.json, by a line of Python.
changed() { # FROM TO FILE CODE
    rm -rf "$2"
    cp -r "$1" "$2"
    /usr/bin/python3 - "$2/$3" "$4" <<'P'
import json, sys
c = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(c, open(sys.argv[1], "w"))
P
}

@test "codes, scales and all other tensors are those of the checkpoint" {
    forge repack -q sym s.gguf --layout gguf
    [ "$(ggufs same sym s.gguf)" = "28 linears and 12 other tensors agree" ]
    forge-gguf -q asym a.gguf
    [ "$(ggufs same asym a.gguf)" = "28 linears and 12 other tensors agree" ]
    forge-gguf -q -j 1 asym b.gguf
    cmp a.gguf b.gguf
    forge-gguf -q "$M" plain.gguf
    ggufs same "$M" plain.gguf
    forge-gguf -q --rest q8_0 "$M" q8.gguf
    ggufs same "$M" q8.gguf --q8
    forge repack -q asym q.gguf --layout gguf --rest q8_0
    ggufs same asym q.gguf --q8
}

@test "the metadata is what config.json and the tokenizer say" {
    forge-gguf -q sym s.gguf
    ggufs pairs s.gguf >pairs
    for want in "general.architecture llama" "general.file_type 2" "llama.block_count 4" \
        "llama.attention.head_count_kv 2" "llama.rope.freq_base 10000.0" \
        "tokenizer.ggml.pre llama-bpe" "tokenizer.ggml.tokens 2048" "tokenizer.ggml.merges 1789" \
        "tokenizer.ggml.bos_token_id 0" "tokenizer.ggml.eos_token_id 1" \
        "tokenizer.ggml.add_bos_token True"; do
        grep -qx "$want" pairs
    done
    [ "$(grep -c chat_template pairs)" = 0 ]
    cp -r sym chat
    echo '{% for m in messages %}{{ m.content }}{% endfor %}' >chat/chat_template.jinja
    forge-gguf -q chat c.gguf
    ggufs pairs c.gguf >pairs
    grep -q '^tokenizer.chat_template {% for m' pairs
    rm -rf chat
}

@test "the recipe, the text and the losses of the checkpoint are in the file" {
    forge quantize -q "$M" q --text "$FORGE_TREE/examples/eval.txt" --sequences 4 --seqlen 64 --effort fast --group 64
    forge-gguf -q q q.gguf
    ggufs made q q.gguf 64
    # another layout first, and the whole model in Q8_0
    forge repack -q q awq --layout awq
    forge repack -q awq w.gguf --layout gguf --rest q8_0
    ggufs made awq w.gguf 64
    forge quantize -q "$M" d.gguf --text "$FORGE_TREE/examples/eval.txt" --sequences 4 --seqlen 64 --effort fast \
        --layout gguf --work work
    ggufs made work/packed-* d.gguf 32
    forge verify -q d.gguf
    # where the checkpoint says nothing, the file has what is known here
    cp -r q foreign
    edit foreign 'head["__metadata__"] = {"format": "pt"}'
    forge-gguf -q foreign f.gguf
    ggufs pairs f.gguf >pairs
    grep '^forge\.' pairs | cut -d ' ' -f 1 | sort | tr '\n' ' ' >keys
    [ "$(cat keys)" = "forge.bits forge.block_size forge.group_size forge.recipe forge.version forge.xxh3 " ]
    grep -qx "forge.recipe 1" pairs
    run ! grep -q base_model pairs
    forge-gguf -q "$M" m.gguf
    ggufs pairs m.gguf >pairs
    grep '^forge\.' pairs | cut -d ' ' -f 1 | sort | tr '\n' ' ' >keys
    [ "$(cat keys)" = "forge.recipe forge.version forge.xxh3 " ]
    # the name is the file's alone
    forge-gguf -q --name other q o.gguf
    ggufs made q o.gguf 64
    rm -rf q awq foreign work pairs keys
}

@test "what llama.cpp has not is refused by name, before anything is written" {
    changed sym m config.json 'c.update(model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"], n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)'
    refused 78 "models of type glm4_moe are not written as GGUF" m x.gguf
    changed sym m config.json 'c.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=512)'
    refused 78 "has no sliding window" --check m
    changed sym m config.json 'c["rope_scaling"] = {"type": "longrope", "short_factor": [1.5] * 32, "long_factor": [4] * 32, "original_max_position_embeddings": 64}'
    refused 78 "LongRoPE is not written as GGUF" --check m
    changed sym m tokenizer.json 'c["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+|\\S+"'
    refused 78 "splits text in a way that is none of llama.cpp's gpt-2, llama-bpe, qwen2 and deepseek-v3" m x.gguf
    changed sym m config.json 'c["vocab_size"] = 2000'
    run -65 --separate-stderr forge-gguf m x.gguf
    forge-weights -q "$M" | forge-grid -q --group 16 | forge-solve -q |
        forge-pack -q --layout gptq | forge-shard -q --from "$M" small
    refused 78 "in groups of 16: blocks of GGUF have 32 inputs and one scale" small x.gguf
    /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/actorder.py" make "$M" act
    refused 78 "'model.layers.0.mlp.down_proj': its g_idx mixes groups (desc_act)" act x.gguf
    run -78 --separate-stderr forge repack act x.gguf --layout gguf
    [ "${#stderr_lines[@]}" = 1 ]
    [ ! -e x.gguf ]
    rm -rf m small act
}

@test "values that are not finite, and blocks of 8 bits whose scale is beyond F16, are refused" {
    for two in 807f c07f 184b; do # infinity, NaN, 1e7
        rm -rf m
        cp -r "$M" m
        edit m "at = head['lm_head.weight']['data_offsets'][0] + 700; data[at:at + 2] = bytes.fromhex('$two')"
        if [ $two = 184b ]; then
            refused 78 "'output.weight': a block's scale is beyond F16" --rest q8_0 m x.gguf
        else
            refused 65 "'lm_head.weight' has a value that is not finite" --rest q8_0 m x.gguf
            refused 65 "'lm_head.weight' has a value that is not finite" m x.gguf
        fi
        [ ! -e x.gguf ]
    done
    rm -rf m
    cp -r "$M" m
    edit m "at = head['model.norm.weight']['data_offsets'][0]; data[at:at + 2] = bytes.fromhex('c07f')"
    refused 65 "'model.norm.weight' has a value that is not finite" m x.gguf
    rm -rf m
}

@test "a head that is stored is written, tied or not" {
    changed "$M" m config.json 'c["tie_word_embeddings"] = True'
    forge-gguf -q m m.gguf
    forge-gguf -q "$M" x.gguf
    [ "$(stat -c %s m.gguf)" = "$(stat -c %s x.gguf)" ]
    ggufs same m m.gguf
    rm -rf m
}

@test "mixtures: experts in one tensor, kv_b_proj in two, and the metadata of each family" {
    MOE=$BATS_TEST_DIRNAME/../reference/moe.py
    for family in mixtral qwen3_moe-all qwen2_moe-all deepseek_v3; do
        /usr/bin/python3 "$MOE" make $family plain m
        forge-gguf -q m m.gguf
        [[ $(ggufs experts m m.gguf) == "0 linears in 0 tensors and "*" others agree" ]]
        ggufs pairs m.gguf >pairs.$family
        for sign in --symmetric --asymmetric; do
            forge-weights -q m | forge-grid -q --group 32 $sign | forge-solve -q | forge-pack -q |
                forge-shard -q --from m q
            forge-gguf -q q q.gguf
            [[ $(ggufs experts m q.gguf q) == *" linears in "*" others agree" ]]
            forge-gguf -q --verify q.gguf
            rm -r q q.gguf
        done
        rm -r m m.gguf
    done
    grep -qx "general.architecture llama" pairs.mixtral
    grep -qx "qwen2moe.expert_shared_feed_forward_length 64" pairs.qwen2_moe-all
    for want in "qwen3moe.expert_count 8" "qwen3moe.expert_used_count 2" "qwen3moe.expert_feed_forward_length 32"; do
        grep -qx "$want" pairs.qwen3_moe-all
    done
    # conversion/deepseek.py: one head of keys, the latent; a factor that llama.cpp multiplies by 10
    for want in "head_count_kv 1" "q_lora_rank 64" "kv_lora_rank 64" "key_length 80" "value_length 64" \
        "key_length_mla 32" "value_length_mla 32"; do
        grep -qx "deepseek2.attention.$want" pairs.deepseek_v3
    done
    for want in "leading_dense_block_count 1" "expert_weights_scale 2.5" "expert_weights_norm True" \
        "expert_gating_func 2" "expert_group_count 2" "expert_group_used_count 1" "expert_shared_count 1" \
        "rope.dimension_count 16"; do
        grep -qx "deepseek2.$want" pairs.deepseek_v3
    done
    grep -q "deepseek2.rope.scaling.yarn_log_multiplier 0.1" pairs.deepseek_v3
    grep -qx "tokenizer.ggml.pre deepseek-v3" pairs.deepseek_v3
}

@test "kv_b_proj in 4 bits, as other quantizers store it: the values keep their codes, the keys are turned" {
    /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain m
    forge-weights -q m | forge-grid -q --group 32 | forge-solve -q | forge-pack -q | forge-shard -q --from m q
    ggufs latent q l
    forge-gguf -q l l.gguf
    [ "$(ggufs keys l l.gguf)" = "3 linears agree" ]
    rm -rf m m.truth q l
}

@test "mixtures that llama.cpp computes otherwise are refused" {
    MOE=$BATS_TEST_DIRNAME/../reference/moe.py
    /usr/bin/python3 "$MOE" make qwen3_moe plain m
    refused 78 "llama.cpp's qwen3moe has experts in each layer, layer 0 has none" m x.gguf
    /usr/bin/python3 "$MOE" make qwen3_moe-all plain m
    changed m n config.json 'c["norm_topk_prob"] = False'
    refused 78 "llama.cpp's qwen3moe divides a token's weights of experts by their sum, this model does not" n x.gguf
    /usr/bin/python3 "$MOE" make deepseek_v3 plain d
    changed d n config.json 'c["num_hidden_layers"] = 3; c["rope_scaling"]["mscale_all_dim"] = 0.7'
    refused 78 "llama.cpp's YaRN has not this model's factor of attention" n x.gguf
    changed d n config.json 'c["rope_interleave"] = False'
    refused 78 "rotates pairs of neighbours, this model halves" n x.gguf
    rm -rf m n d ./*.truth
}

@test "forge verify: each byte of the file" {
    forge-gguf -q sym s.gguf
    forge verify -q s.gguf
    size=$(stat -c %s s.gguf)
    for at in 40 $((size / 2)) $((size - 40)) $((size - 1)); do
        cp s.gguf t.gguf
        printf '\x5a' | dd of=t.gguf bs=1 seek="$at" conv=notrunc status=none
        run -1 --separate-stderr forge verify t.gguf
        [[ $output == "'t.gguf': "*": not as it was written" ]]
    done
    for more in 1 32 100000; do
        { cat s.gguf && head -c "$more" /dev/zero; } >t.gguf
        run -1 --separate-stderr forge verify -q t.gguf
        [ "$output" = "'t.gguf': $more bytes behind the last tensor: not as it was written" ]
        [ -z "$stderr" ]
    done
    head -c $((size - 4096)) s.gguf >t.gguf
    run -65 --separate-stderr forge verify t.gguf
    [[ $stderr == *"'t.gguf': ends inside of '"* ]]
    head -c 1000 s.gguf >t.gguf
    run -65 --separate-stderr forge verify t.gguf
    [[ $stderr == *"its head is cut or damaged" ]]
    ggufs pairs s.gguf | grep -qx "forge.xxh3 41"
    sed -i 's/forge.xxh3/forge.none/' s.gguf
    run -65 --separate-stderr forge verify s.gguf
    [[ $stderr == *"has no digests"* ]]
    run -65 forge verify sym/model.safetensors
    run -64 forge-gguf --verify
}

@test "scales that F16 does not hold are refused by module, output and group" {
    cp -r sym bf16
    edit bf16 '[t.update(dtype="BF16") for k, t in head.items() if k.endswith("weight_scale")]'
    refused 78 "which F16 does not hold: GGUF would change it" bf16 x.gguf
    [ ! -e x.gguf ]
    rm -rf bf16
}

@test "values that a file does not hold exactly are said, with their number" {
    says() { # TEXT or nothing, CHECKPOINT
        rm -f x.gguf
        run -0 --separate-stderr forge-gguf --progress never "$2" x.gguf
        [[ $1 && $stderr == "forge-gguf: warning: $1"* ]] || [[ -z $1 && $stderr != *warning* ]] ||
            { echo "said: $stderr"; return 1; }
    }
    n=$(ggufs rounded asym)
    [ "$n" = 28 ]
    mins="Q4_1 holds zero points times scales, rounded to F16: weights of"
    says "$mins 28 linears change by less than 1/128 of their scale" asym
    run -0 --separate-stderr forge repack asym y.gguf --layout gguf
    [ "$(grep -c 'warning: Q4_1 holds' <<<"$stderr")" = 1 ]
    run -0 --separate-stderr forge repack -q asym z.gguf --layout gguf
    [ -z "$stderr" ]
    says "" sym
    forge quantize -q "$M" some --method rtn --group 32 --grid '*.down_proj=asym' --layout compressed-tensors
    says "$mins 4 linears change" some
    # scales that are powers of two: exact, whatever the zeros
    for i in 0 1 2; do
        edit some "a, b = head['model.layers.$i.mlp.down_proj.weight_scale']['data_offsets']; data[a:b] = b'\\0\\x20' * ((b - a) // 2)"
    done
    [ "$(ggufs rounded some)" = 1 ]
    says "$mins 1 linear change" some
    edit some "a, b = head['model.layers.3.mlp.down_proj.weight_scale']['data_offsets']; data[a:b] = b'\\0\\x20' * ((b - a) // 2)"
    [ "$(ggufs rounded some)" = 0 ]
    says "" some
    cp -r "$M" wide
    edit wide "head['model.norm.weight'].update(dtype='F64', shape=[64])"
    says "1 tensor in F64 will be rounded to F32" wide
    rm -rf some wide
}

@test "wrong command lines, an output that is there, a full disk" {
    refused 64 "want MODEL and OUT" sym
    refused 64 "want MODEL (try" --check sym x
    refused 64 "is none of" --rest q4_k sym x.gguf
    refused 64 "OUT is no file's name" sym ''
    refused 66 "nowhere" nowhere x.gguf
    [ "$stderr" = "forge-gguf: 'nowhere': cannot open: No such file or directory" ]
    run -66 --separate-stderr forge-gguf --verify nowhere
    [ "$stderr" = "forge-gguf: cannot open 'nowhere': No such file or directory" ]
    mkfifo fifo
    run -65 --separate-stderr forge-gguf --verify fifo
    [ "$stderr" = "forge-gguf: 'fifo': not a regular file" ]
    touch x.gguf
    refused 73 "is there already" sym x.gguf
    refused 73 "" sym nowhere/x.gguf
    run -64 forge repack sym y.gguf --layout gguf --rest x
    run -73 forge repack sym x.gguf --layout gguf
    run -78 --separate-stderr forge repack "$M" y.gguf --layout gguf
    [[ $stderr == *"is not in 4 bits"* ]]
    forge-gguf -q --check sym
    [ "$(ls ./*.gguf)" = ./x.gguf ]
}
