#!/usr/bin/env bats
# forge-generate(1): prompts in, text out.  Tokens, texts of ids and templates are
# compared with transformers in tests/interop.

bats_require_minimum_version 1.5.0
load ../helper/fail_each

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    M=$FORGE_TREE/examples/llama-4m
    P='The old man looked at the sea and'
}

# A copy of the example with this chat template.
with_template() {
    cp -r "$M" "$1"
    jq --arg t "$2" '. + {chat_template: $t}' "$M/tokenizer_config.json" >"$1/tokenizer_config.json"
}

@test "greedy tokens are those of transformers" {
    run -0 --separate-stderr forge-generate --greedy --dtype f32 --tokens 24 --json "$M" "$P"
    # AutoModelForCausalLM.generate(do_sample=False), transformers 5.23, float32, eager
    [ "$(jq -c .ids <<<"$output")" = "[263,737,450,14,416,326,261,619,283,468,946,14,276,261,619,271,277,273,263,737,450,377,14,276]" ]
    [ "$(jq -c .prompt_ids <<<"$output")" = "[$(forge-tokens --ids "$M" <<<"$P" | tr ' ' ,)]" ] ||
        [ "$(jq -c .prompt_ids <<<"$output")" = "[$(printf %s "$P" | forge-tokens --ids "$M" | tr ' ' ,)]" ]
    [ "$(jq -r .finish <<<"$output")" = length ]
    [[ $stderr == *" tokens of prompt, "*" tokens/s; 24 tokens, "*" tokens/s" ]]
}

@test "the text is that of the tokens, from operand and input alike" {
    forge-generate -q --greedy --dtype f32 --tokens 24 "$M" "$P" >a
    printf %s "$P" | forge-generate -q --greedy --dtype f32 --tokens 24 "$M" >b
    cmp a b
    forge-generate -q --greedy --dtype f32 --tokens 24 --json "$M" "$P" | jq -r .text >c
    cmp a c
    forge-generate -q --greedy --dtype f32 --tokens 24 --json "$M" "$P" | jq -r '.ids | map(tostring) | join(" ")' |
        decode "$M" none | jq -r . >d
    cmp a d
}

@test "lines are prompts, each with an answer of its own" {
    printf 'The sea\n\n%s\n' "$P" | forge-generate -q --lines --greedy --tokens 8 --json "$M" >lines
    [ "$(wc -l <lines)" = 2 ]
    forge-generate -q --greedy --tokens 8 --json "$M" "$P" >alone
    tail -n 1 lines >last
    cmp last alone
    run -0 forge-generate -q "$M" </dev/null
    [ -z "$output" ]
}

@test "seeds draw tokens: equal ones equal tokens" {
    forge-generate -q --tokens 40 --temperature 1 --json "$M" "$P" >a
    forge-generate -q --tokens 40 --temperature 1 --seed 0 --json -j 1 "$M" "$P" >b
    cmp a b
    forge-generate -q --tokens 40 --temperature 1 --seed 1 --json "$M" "$P" >c
    run -1 cmp -s a c
    # the likeliest alone, by each way to say it, is greedy
    forge-generate -q --tokens 40 --greedy --json "$M" "$P" >g
    forge-generate -q --tokens 40 --top-k 1 --seed 9 --json "$M" "$P" | cmp - g
    forge-generate -q --tokens 40 --top-p 1e-6 --json "$M" "$P" | cmp - g
    forge-generate -q --tokens 40 --temperature 0.001 --json "$M" "$P" | cmp - g
}

@test "a 4-bit checkpoint speaks, the same in every layout" {
    forge-weights "$M" | forge-grid | forge-solve >codes
    for l in compressed-tensors awq gptq gptq_v2; do
        forge-pack --layout $l <codes | forge-shard --from "$M" $l
        forge-generate -q --greedy --dtype f32 --tokens 40 --json $l "$P" >$l.json
        cmp compressed-tensors.json $l.json
    done
    # as the same weights in floats do
    forge-weights --dequantize awq | forge-shard --from "$M" floats
    forge-generate -q --greedy --dtype f32 --tokens 40 --json floats "$P" | cmp - awq.json
}

@test "levels of CPU and numbers of threads do not change greedy tokens" {
    forge-generate -q --greedy --dtype f32 --tokens 20 --json "$M" "$P" >a
    for c in plain avx2 avx512; do
        FORGE_CPU=$c forge-ls --version >/dev/null 2>&1 || continue
        FORGE_CPU=$c forge-generate -q -j 1 --greedy --dtype f32 --tokens 20 --json "$M" "$P" | cmp - a
    done
}

@test "a chat template is applied, and left out with --raw" {
    with_template chat "{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>{% endfor %}"
    run -0 --separate-stderr forge-generate --tokens 1 --json chat hello
    want=$(printf '<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n' | forge-tokens --ids "$M")
    bos=$(forge-tokens --ids "$M" <<<x | cut -d ' ' -f 1)
    [ "$(jq -r '.prompt_ids | map(tostring) | join(" ")' <<<"$output")" = "${want#"$bos "}" ]
    run -0 --separate-stderr forge-generate --tokens 1 --json --system 'Be brief.' chat hello
    want=$(printf '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n' | forge-tokens --ids "$M")
    [ "$(jq -r '.prompt_ids | map(tostring) | join(" ")' <<<"$output")" = "${want#"$bos "}" ]
    forge-generate -q --raw --greedy --tokens 5 --json chat hello >a
    forge-generate -q --greedy --tokens 5 --json "$M" hello | cmp - a
}

# Forms that are not those of their relatives, as published; "P": the prompt.
@test "templates that look like another family's are told apart, or refused" {
    local loop='{% for message in messages %}' want
    form() { # NAME TEMPLATE PROMPT
        with_template "$1" "$2"
        run -0 --separate-stderr forge-generate --tokens 1 --json "$1" P
        want=$(printf "$3" | forge-tokens --ids "$M")
        [ "$(jq -r '.prompt_ids | map(tostring) | join(" ")' <<<"$output")" = "${want#* }" ]
    }
    form phi4 "$loop{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{{ '<|im_start|>assistant<|im_sep|>' }}{% endfor %}" \
        '<|im_start|>user<|im_sep|>P<|im_end|><|im_start|>assistant<|im_sep|>'
    form phi3 "$loop{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{{ '<|assistant|>\n' }}{% endfor %}" \
        '<|user|>\nP<|end|>\n<|assistant|>\n'
    form olmo2 "$loop{{'<|system|>\n' + message['content'] + '\n'}}{{'<|user|>\n' + message['content'] + '\n'}}{{'<|assistant|>\n' + message['content'] + eos_token}}{{ '<|assistant|>\n' }}{% endfor %}" \
        '<|user|>\nP\n<|assistant|>\n'
    form think "$loop{{ '<|im_start|>' + message['role'] }}<|im_end|>{{ '<|im_start|>assistant\n<think>' }}" \
        '<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n<think>'
    form math "{{ '<|im_start|>system\nPut it into \\\\boxed{}.<|im_end|>\n' }}{{ '<|im_start|>' + m.role }}" \
        '<|im_start|>system\nPut it into \\boxed{}.<|im_end|>\n<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n'
    for other in "{% set cls = '<|begin_of_sentence|>' %}User: {{ m }}Assistant: " \
        "{{ '<|user|>' + message['content'] + '<|end|>' + '<|assistant|>' + eos_token }}" \
        "{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}[INST]{{ m }}[/INST]" \
        "{{ '<|im_start|>system\n' }}<|im_end|>{{ '<|im_start|>system\nYou are {{ name }}.<|im_end|>' }}"; do
        rm -rf other
        with_template other "$other"
        run -78 --separate-stderr forge-generate --tokens 1 other P
        [[ $stderr == *"'other': "*"chat template"*"--raw"* ]]
    done
}

@test "a prompt from the input has no newline behind it, numbers may stand behind -j, and a bad line is named" {
    forge-generate -q --greedy --tokens 5 --json "$M" "$P" >want
    forge-generate -q --greedy --tokens 5 -j1 --json "$M" <<<"$P" | cmp - want
    run -64 --separate-stderr forge-generate -q -output x "$M" "$P"
    printf 'one\ntw\xffo\nthree\n' >bad
    run -65 --separate-stderr forge-generate -q --tokens 1 --lines "$M" <bad
    [[ $stderr == "forge-generate: line 2: "* ]]
}

@test "a template of no known family is refused before a weight is read" {
    with_template odd '{{ "<<" + messages[0].content + ">>" }}'
    rm odd/model.safetensors
    run -78 --separate-stderr forge-generate odd hello
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"'odd': its chat template is of no family that is known"*"--raw"* ]]
    run -78 --separate-stderr forge-generate --system x "$M" hello
    [[ $stderr == *"has no chat template"* ]]
}

@test "a text ends where the model's files say" {
    id=$(forge-generate -q --greedy --tokens 3 --json "$M" "$P" | jq '.ids[2]')
    cp -r "$M" stops
    jq --argjson id "$id" '. + {eos_token_id: [7, $id]}' "$M/generation_config.json" >stops/generation_config.json
    forge-generate -q --greedy --tokens 50 --json stops "$P" >a
    [ "$(jq -r .finish <a)" = stop ]
    [ "$(jq '.ids | length' <a)" = 3 ]
    [ "$(jq '.ids[2]' <a)" = "$id" ]
    id=$(forge-generate -q --greedy --tokens 1 --json "$M" "$P" | jq '.ids[0]')
    jq --argjson id "$id" '. + {eos_token_id: $id}' "$M/generation_config.json" >stops/generation_config.json
    forge-generate -q --greedy --tokens 50 --json stops "$P" >a # at once: no text at all
    [ "$(jq -c '[.finish, .text, (.ids | length)]' <a)" = '["stop","",1]' ]
}

@test "positions beyond those that the model was made for are said, once" {
    cp -r "$M" short
    jq '.max_position_embeddings = 40' "$M/config.json" >short/config.json
    printf '%s\n%s\n' "$P" "$P" >prompts
    run -0 --separate-stderr forge-generate --lines --greedy --tokens 48 short <prompts
    [ "$(grep -c '^forge-generate: warning: a sequence of 5[0-9] tokens.*max_position_embeddings 40$' <<<"$stderr")" = 1 ]
    echo "$output" >said
    forge-generate -q --lines --greedy --tokens 48 "$M" <prompts | cmp - said
    run -0 --separate-stderr forge-generate --greedy --tokens 8 short "$P"
    [[ $stderr != *warning* ]]
}

@test "wrong use is one line and 64; a wrong prompt 65; no model 66; no room 74" {
    for o in "--greedy --seed 1" "--raw --system x" "--tokens 0" "--top-p 0" "--lines"; do
        # shellcheck disable=SC2086
        run -64 --separate-stderr forge-generate $o "$M" x
        [ "${#stderr_lines[@]}" = 1 ]
    done
    run -64 forge-generate
    run -65 --separate-stderr forge-generate -q "$M" $'a\xff'
    [[ $stderr == "forge-generate: "*"prompt: byte 1 is not valid UTF-8" ]]
    cp -r "$M" high
    jq '.model.vocab.rupt = 2000000000' "$M/tokenizer.json" >high/tokenizer.json
    run -65 --separate-stderr forge-generate -q high x
    [[ $stderr == "forge-generate: 'high/tokenizer.json': the id of token 'rupt' is 2000000000, at most "* ]]
    run -66 forge-generate nowhere x
    run -74 --separate-stderr bash -c "forge-generate -q '$M' x >/dev/full"
    [ "${#stderr_lines[@]}" = 1 ]
}

@test "a decoder that replaces the empty text is refused" {
    rm -rf m
    cp -r "$M" m
    jq '.decoder = {"type": "Metaspace", "replacement": ""}' "$M/tokenizer.json" >m/tokenizer.json
    run -78 --separate-stderr timeout 20 forge-generate --raw m a
    [[ $stderr == *"decoder 'Metaspace' is not supported" ]]
    rm -r m
}

@test "an error is no frame where text was asked for, and one in a stream" {
    [ -z "$(forge-generate --tokens 0 2>/dev/null)" ]
    [ -z "$(forge-generate /nowhere 2>/dev/null)" ]
    run -66 bash -c 'forge-generate /nowhere --sequences 2 2>/dev/null | forge-ls -'
}

@test "whichever allocation fails" {
    fail_each malloc 75 forge-generate -q --tokens 2 "$M" x
}

@test "forge generate is this tool" {
    forge generate -q --greedy --tokens 5 "$M" "$P" >a
    forge-generate -q --greedy --tokens 5 "$M" "$P" | cmp - a
}
