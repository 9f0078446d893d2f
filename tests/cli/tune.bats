#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-tune(1) as a user meets it.

load cli

MODELS="$BATS_TEST_DIRNAME/../reference/forward.py"
PY="$BATS_TEST_DIRNAME/../reference/tune.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$MODELS" each llama llama-biases qwen3 gemma2 phi3 olmo2 granite \
        deepseek_v3 deepseek_v2 qwen2_moe mixtral gpt_oss llama4 \
        ernie4_5_moe qwen3_next
    python3 "$MODELS" tokens t.fts 50 1 33
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
        forge-tune -q --dtype f32 --steps 1 --gradients g.fts --tokens t.fts "$kind" codes >out
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

@test "a mixture's KL is said with either choice of experts, and falls with its own" {
    python3 "$MODELS" tokens more.fts 40 1 33 64
    solved deepseek_v3 codes
    run --separate-stderr forge-tune -v --progress never --dtype f32 --steps 1 --tokens more.fts -o out deepseek_v3 codes
    own=$(python3 "$PY" kl deepseek_v3 more.fts codes) held=$(python3 "$PY" held deepseek_v3 more.fts codes)
    [[ $stderr == *"forge-tune: KL ${own:0:5}"*" e-3, with the original's choices of experts ${held:0:4}"* ]]
    forge-tune -q --steps 40 --rate 0.02 --tokens more.fts deepseek_v3 codes >tuned
    python3 -c 'import sys; a, b = map(float, sys.argv[1:]); assert b < 0.4*a, (a, b)' \
        "$own" "$(python3 "$PY" kl deepseek_v3 more.fts tuned)"
}

@test "gradients are what differences of the KL say: asymmetric grids, scales of outputs and logits" {
    forge-weights -q granite | forge-grid -q --group 16 --asymmetric |
        forge-solve -q --method rtn >codes
    forge-tune -q --dtype f32 --steps 1 --gradients g.fts --tokens t.fts granite <codes >out
    python3 "$PY" granite t.fts codes g.fts 1e-4
}

@test "gradients of rounded operands are near" { # a mixture's router sends some tokens elsewhere
    for kind in llama deepseek_v3; do
        solved $kind codes
        forge-tune -q --steps 1 --batch 40 --gradients g.fts --tokens t.fts $kind codes >out
        forge-tune -q --dtype f32 --steps 1 --batch 40 --gradients f.fts --tokens t.fts $kind codes >out
        python3 - "$BATS_TEST_DIRNAME/../reference" $kind <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import forward
g, f = ({x.name: x.array().astype("f8") for x in forward.read(n)} for n in ("g.fts", "f.fts"))
assert g.keys() == f.keys()
off = (sum(((g[k] - f[k])**2).sum() for k in f)/sum((f[k]**2).sum() for k in f))**.5
print("%.4f" % off)
assert 1e-5 < off < {"llama": 0.05, "deepseek_v3": 0.2}[sys.argv[2]]
EOF
    done
}

# tests/fake_cuda.c: a device whose memory is apart, and whose operations are the CPU's
@test "on a device, in f32 and in bf16: gradients, and codes that are tuned" {
    mkdir gpu
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" "$(command -v forge-tune)" gpu
    for kind in llama llama-biases qwen3 gemma2 phi3 granite deepseek_v3 qwen2_moe mixtral gpt_oss llama4; do
        solved $kind codes
        gpu/forge-tune -q --device cuda --dtype f32 --steps 1 --batch 4 --gradients g.fts --tokens t.fts $kind codes >out
        python3 "$PY" $kind t.fts codes g.fts 1e-4
    done
    for kind in llama deepseek_v3; do
        solved $kind codes
        forge-tune -q --device cpu --dtype f32 --steps 10 --rate 0.1 --batch 4 --tokens t.fts $kind codes >cpu
        gpu/forge-tune -q --device cuda --dtype f32 --steps 10 --rate 0.1 --batch 4 --tokens t.fts $kind codes >f32
        gpu/forge-tune -q --device cuda --steps 10 --rate 0.1 --batch 4 --tokens t.fts $kind codes >bf16
        moved=$(python3 "$PY" steps codes cpu)
        echo "$moved moved; other codes: $(python3 "$PY" steps cpu f32), $(python3 "$PY" steps cpu bf16)"
        [ "$moved" -gt 100 ]
        [ "$(python3 "$PY" steps cpu f32)" -lt $((moved / 50)) ]
        [ "$(python3 "$PY" steps cpu bf16)" -lt $((moved / 2)) ]
    done
}

@test "no room on the device: refused when demanded, else the CPU tunes" {
    mkdir gpu
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" "$(command -v forge-tune)" gpu
    run -75 --separate-stderr gpu/forge-tune -q --device cuda --gpu-memory 1M --steps 2 --tokens t.fts llama c.fts
    [[ $stderr == *"tuning takes "*" of GPU memory, there are 1.00 MiB" ]]
    gpu/forge-tune -q --device auto --gpu-memory 1M --steps 2 --tokens t.fts llama c.fts >auto
    forge-tune -q --device cpu --steps 2 --tokens t.fts llama c.fts >cpu
    cmp auto cpu
    run -69 forge-tune -q --device cuda --steps 2 --tokens t.fts llama c.fts
    run -78 forge-tune -q --expect-device NVIDIA --steps 2 --tokens t.fts llama c.fts
}

@test "the KL falls, on other tokens, too" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m text=$BATS_TEST_DIRNAME/../../examples
    forge-tokens -q -n 64 -t 32 "$model" "$text/calib.jsonl" -o some
    forge-tokens -q -n 16 -t 64 "$model" "$text/eval.txt" -o others
    forge-weights -q "$model" | forge-grid -q --group 128 | forge-solve -q --method rtn >codes
    forge-tune --steps 80 --batch 4 --tokens some "$model" codes >out
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
    run ! cmp -s other one
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

same_tensors() { # OUT OUT
    jq -S .tensors "$1/forge_checksums.json" >"$1.tensors"
    jq -S .tensors "$2/forge_checksums.json" >"$2.tensors"
    cmp "$1.tensors" "$2.tensors"
}

@test "numbers begin as near to the next code as steps are small" {
    run --separate-stderr forge-tune --progress never --steps 250 --rate 2e-4 --batch 1 --tokens t.fts -o out llama c.fts
    [[ $stderr != *warning* ]]
    # from 0.05 away 250 such steps, 0.02 together, reach none
    [[ $stderr =~ ([0-9.]+)\ %\ of\ the\ codes\ moved ]]
    awk -v moved="${BASH_REMATCH[1]}" 'BEGIN { exit moved < 0.1 || moved > 20 }'
}

@test "forge quantize --tune: what the tools make, once" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m text=$BATS_TEST_DIRNAME/../../examples/calib.jsonl
    local args=(--text "$text" --sequences 4 --seqlen 48 --group 32 --effort fast --quiet --device cpu)
    forge quantize "$model" plain --work work "${args[@]}"
    forge quantize "$model" tuned --work work "${args[@]}" --tune 96 --tune-batch 1
    # half of the sequences are the text's
    forge-tokens -q --sequences 48 --seqlen 48 -o given "$model" "$text"
    forge-generate -q --sequences 48 --tokens 48 -o own "$model"
    forge-tune -q --steps 96 --batch 1 --tokens given --tokens own "$model" work/solve-*/codes-*.fts >codes
    (cat codes; forge-weights -q --others "$model") | forge-pack -q | forge-shard -q --from "$model" by-hand
    same_tensors by-hand tuned
    run ! same_tensors plain tuned
    touch -d 2001-01-01 work/tuned-*/*.fts
    rm -r tuned
    forge quantize "$model" tuned --work work "${args[@]}" --tune 96 --tune-batch 1 -j 1
    same_tensors by-hand tuned
    [ "$(find work/tuned-* -newermt 2002-01-01 -name '*.fts' | wc -l)" -eq 0 ]
    forge quantize "$model" skipped --work other "${args[@]}" --tune 1 --skip 'model.layers.1.*'
    forge-ls --verify skipped >/dev/null
    # of a short text all that there is, and the rest the model's own
    head -n 1 "$text" >short.jsonl
    forge quantize "$model" short --work short-work "${args[@]/#"$text"/short.jsonl}" --tune 6
    n=$(forge-ls short-work/tuned-*/text.fts | grep -c tokens)
    [ "$n" -lt 24 ]
    [ "$(forge-ls short-work/tuned-*/own.fts | grep -c tokens)" -eq $((96 - n)) ]
    # all of it is the run's: gc of other settings leaves no tuned codes behind
    forge quantize "$model" plain2 --work work "${args[@]}"
    forge gc --settings work
    [ -z "$(find work -name 'tuned-*')" ]
}

@test "forge quantize --tune: the plan, and what is refused" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m
    forge quantize --dry-run --tune 512 --rate 100 --text t.fts "$model" out >plan
    grep -q '^tuning  .* MiB of memory; of work ' plan
    # inputs and steps with which no number comes near the next code
    forge quantize --dry-run --tune 50 --rate 100 --text t.fts "$model" out 2>err >plan
    [ "$(<err)" = "forge: warning: --tune 50: hardly a code will change; with 256 inputs it takes some 103 steps" ]
    run --separate-stderr forge-tune --progress never --steps 50 --rate 1e-3 --batch 1 --tokens t.fts -o tuned llama c.fts
    [[ "${stderr_lines[0]}" == "forge-tune: warning: the numbers behind codes move by 0.0"* ]]
    fails 64 "--tune" forge quantize --tune 1 --method rtn "$model" out
    fails 64 "--tune-batch" forge quantize --tune 1 --tune-batch 0 --text t.fts "$model" out
    python3 -c 'import numpy as np; np.save("t.npy", np.zeros((2, 8), int))'
    fails 78 "--tune: qwen3_next has linear attention" forge quantize --tune 1 --text t.npy qwen3_next out
}

@test "forge-generate --sequences: tokens that the model draws" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m
    forge-generate -q --sequences 6 --tokens 40 --dtype f32 --key k "$model" >six
    forge-generate -q --sequences 2 --tokens 40 --dtype f32 -j 1 -o two "$model"
    forge-generate -q --sequences 6 --tokens 40 --dtype f32 --seed 9 "$model" >others
    python3 - "$BATS_TEST_DIRNAME/../reference" "$model" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import forward
six, two, others = ([x.array() for x in forward.read(f)] for f in ("six", "two", "others"))
assert len(six) == 6 and all(len(x) == 40 and x[0] == 0 for x in six)
assert all((a == b).all() for a, b in zip(six, two)) and not all((a == b).all() for a, b in zip(six, others))
c, t = forward.load(sys.argv[2])
off, spread = [], []
for ids in six + others:  # surprise less entropy has mean 0
    z = forward.run(c, t, ids)[1][:-1]
    z = z - z.max(1, keepdims=True)
    z -= np.log(np.exp(z).sum(1, keepdims=True))
    p = np.exp(z)
    off += list(-z[range(39), ids[1:]] + (p*z).sum(1))
    spread += list((p*z*z).sum(1) - (p*z).sum(1)**2)
sigma = np.sum(spread)**.5
print("%.2f sigma of %d tokens" % (np.sum(off)/sigma, len(off)))
assert abs(np.sum(off)) < 4*sigma
EOF
    for kind in deepseek_v3 qwen2_moe gemma2; do
        forge-generate -q --sequences 3 --tokens 70 --dtype f32 $kind >a
        forge-generate -q --sequences 2 --tokens 70 --dtype f32 $kind >b
        python3 "$MODELS" same a b 2
    done
    fails 64 "--sequences" forge-generate --sequences 1 --greedy "$model"
    fails 64 "--output" forge-generate -o out "$model" text
    fails 78 "several sequences" forge-generate -q --sequences 2 qwen3_next
}

@test "the disk is full" {
    run --separate-stderr sh -c 'forge-tune --steps 1 --tokens t.fts llama c.fts >/dev/full'
    [ "$status" -eq 74 ]
    run --separate-stderr sh -c 'forge-tune --steps 1 --tokens t.fts --gradients /dev/full llama c.fts >/dev/null'
    [ "$status" -eq 73 ] || [ "$status" -eq 74 ]
}
