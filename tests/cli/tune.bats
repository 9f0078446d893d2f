#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-tune(1) as a user meets it.

load cli

MODELS="$BATS_TEST_DIRNAME/../reference/forward.py"
PY="$BATS_TEST_DIRNAME/../reference/tune.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for kind in llama llama-biases qwen3 gemma2 phi3 olmo2 granite \
        deepseek_v3 deepseek_v2 qwen2_moe mixtral gpt_oss llama4 \
        ernie4_5_moe qwen3_next; do
        python3 "$MODELS" make $kind $kind
    done
    python3 "$MODELS" tokens t.fts 40 1 33 64
    solved llama c.fts
}

solved() { # MODEL CODES
    forge-weights -q "$1" | forge-grid -q --group 16 | forge-solve -q --method rtn >"$2"
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
}

slope() { # KIND...
    for kind; do
        solved "$kind" codes
        forge-tune -q --steps 1 --gradients g.fts --tokens t.fts "$kind" codes >out
        python3 "$PY" "$kind" t.fts codes g.fts 1e-4
        [ "$(python3 "$PY" steps codes out)" -eq 0 ]
    done
}

@test "gradients are what differences of the KL say: dense models" {
    slope llama llama-biases qwen3 gemma2 phi3 olmo2
}

@test "gradients are what differences of the KL say: mixtures" {
    slope deepseek_v3 deepseek_v2 qwen2_moe mixtral gpt_oss llama4 ernie4_5_moe
}

@test "gradients are what differences of the KL say: asymmetric grids, scales of outputs and logits" {
    forge-weights -q granite | forge-grid -q --group 16 --asymmetric |
        forge-solve -q --method rtn >codes
    forge-tune -q --steps 1 --gradients g.fts --tokens t.fts granite <codes >out
    python3 "$PY" granite t.fts codes g.fts 1e-4
}

@test "the KL falls, on other tokens, too" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m text=$BATS_TEST_DIRNAME/../../examples
    forge-tokens -q -n 64 -t 64 "$model" "$text/calib.jsonl" -o some
    forge-tokens -q -n 16 -t 64 "$model" "$text/eval.txt" -o others
    forge-weights -q "$model" | forge-grid -q --group 128 | forge-solve -q --method rtn >codes
    forge-tune --steps 80 --tokens some "$model" codes >out
    for i in codes out; do
        forge-pack -q $i | forge-shard -q --from "$model" of-$i
        forge-eval -q --json "$model" of-$i others | jq .kl_mean >kl-$i
    done
    awk '{ kl[NR] = $1 } END { print kl[1], kl[2]; exit kl[2] > 0.9*kl[1] }' kl-codes kl-out
}

@test "equal bytes for any number of threads; files or one stream; frames as they were" {
    solved deepseek_v3 codes
    for i in 1 2 5; do
        forge-tune -q -j $i --steps 30 --batch 2 --rate 0.05 --tokens t.fts deepseek_v3 codes >out-$i
    done
    cmp out-1 out-2
    cmp out-1 out-5
    [ "$(python3 "$PY" steps codes out-1)" -gt 100 ]
    forge-split -q layer-% codes >/dev/null
    forge-tune -q --steps 2 --rate 1 --tokens t.fts deepseek_v3 layer-0 layer-1 layer-2 >files
    cat layer-0 layer-1 layer-2 | forge-tune -q --steps 2 --rate 1 --tokens t.fts deepseek_v3 >one
    cmp files one
    forge-tune -q --steps 2 --rate 1 --seed 1 --batch 1 --tokens t.fts deepseek_v3 codes >other
    ! cmp -s other one
}

@test "what does not fit is one line, before any step" {
    fails 64 "want --tokens" forge-tune llama c.fts
    fails 64 "--steps" forge-tune --steps 0 --tokens t.fts llama c.fts
    fails 66 "none" forge-tune --tokens t.fts llama none
    fails 66 "none" forge-tune --tokens none llama c.fts
    fails 65 "key" forge-tune --tokens t.fts --expect-key a llama c.fts
    fails 65 "key" forge-tune --tokens t.fts --tokens-key a llama c.fts
    fails 65 "has no tokens" forge-tune --tokens c.fts llama c.fts
    fails 65 "no codes" forge-tune --tokens t.fts llama t.fts
    fails 65 "no linears of the model" forge-tune --tokens t.fts mixtral c.fts
    fails 65 "the config says" forge-tune --tokens t.fts qwen3 c.fts
    cp -rL llama other
    python3 -c 'import sys, numpy as np
for path in sys.argv[1:]:
    b = open(path, "rb").read()
    n = 8 + int.from_bytes(b[:8], "little")
    open(path, "wb").write(b[:n] + np.frombuffer(b[n:], "<u4")[::-1].tobytes())' other/*.safetensors
    fails 65 "codes of other weights" forge-tune --tokens t.fts other c.fts
    head -c 3000 c.fts >cut
    fails 65 "" forge-tune --tokens t.fts llama cut
    forge-weights -q llama | forge-grid -q --group 16 >grids
    fails 65 "no codes" forge-tune --tokens t.fts llama grids
    cat c.fts c.fts >twice
    fails 65 "" forge-tune --tokens t.fts llama twice
    solved qwen3_next next.fts
    fails 78 "linear attention" forge-tune --tokens t.fts qwen3_next next.fts
}

@test "disk full, reads and writes and memory that fail" {
    run --separate-stderr sh -c 'forge-tune --steps 1 --tokens t.fts llama c.fts >/dev/full'
    [ "$status" -eq 74 ]
    run --separate-stderr sh -c 'forge-tune --steps 1 --tokens t.fts --gradients /dev/full llama c.fts >/dev/null'
    [ "$status" -eq 73 ] || [ "$status" -eq 74 ]
}
