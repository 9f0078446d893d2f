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

@test "what llama.cpp has not is refused by name, before anything is written" {
    changed sym m config.json 'c.update(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=2)'
    refused 78 "models of type mixtral are not written as GGUF; llama, mistral, qwen2 and qwen3 are" m x.gguf
    changed sym m config.json 'c.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=512)'
    refused 78 "has no sliding window" --check m
    changed sym m tokenizer.json 'c["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+|\\S+"'
    refused 78 "splits text in a way that is none of llama.cpp's gpt-2, llama-bpe and qwen2" m x.gguf
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

@test "scales that F16 does not hold are refused by module, output and group" {
    cp -r sym bf16
    edit bf16 '[t.update(dtype="BF16") for k, t in head.items() if k.endswith("weight_scale")]'
    refused 78 "which F16 does not hold: GGUF would change it" bf16 x.gguf
    [ ! -e x.gguf ]
    rm -rf bf16
}

@test "wrong command lines, an output that is there, a full disk" {
    refused 64 "want MODEL and OUT" sym
    refused 64 "want MODEL (try" --check sym x
    refused 64 "is none of" --rest q4_k sym x.gguf
    refused 66 "nowhere" nowhere x.gguf
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
