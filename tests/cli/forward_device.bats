#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# The forward pass on a device: forge-calib beside tests/fake_cuda.c, whose memory
# is apart from the tool's and whose operations are the CPU's, puts out what the CPU
# does, to the bit.

load ../helper/fail_each
bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/forward.py"
DENSE=(llama llama-biases dynamic mistral qwen2 qwen3 seed_oss ernie4_5 ministral3 gemma2 gemma3 phi3 phi3-long olmo2 olmo3
    granite smollm3 glm4)
MIXTURES=(deepseek_v3 deepseek_v3-plain kimi_k2 deepseek_v32-dense deepseek_v2 deepseek_v2-lite qwen2_moe qwen3_moe
    qwen3_moe-step mixtral glm4_moe minimax_m2 ernie4_5_moe gpt_oss llama4 granitemoe)
FORWARD=(qwen3_next qwen3_5 qwen3_5_moe granite4 granite4-moe kimi_linear gemma3n) # without gradients

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir gpu
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" "$(command -v forge-calib)" "$(command -v forge-eval)" \
        "$(command -v forge-gradient)" "$(command -v forge-generate)" "$(command -v forge-hessian)" gpu
    cp gpu/forge-gradient gpu/gpu-gradient
    python3 "$PY" each "${DENSE[@]}" "${MIXTURES[@]}" "${FORWARD[@]}"
    python3 "$PY" tokens t.fts 40 1 33 64
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
    export FAKE_CUDA_LOG=$PWD/log
}

every_family() { # TOOL KIND...: what it puts out is the CPU's, with room on the device and without
    for kind in "${@:2}"; do
        for dtype in f32 bf16; do
            rm -f log
            "$1" -q --dtype $dtype "$kind" t.fts >cpu.fts
            "gpu/$1" -q --dtype $dtype --device cuda "$kind" t.fts >gpu.fts
            cmp cpu.fts gpu.fts
            [ ! -e log ]
            FAKE_CUDA_SPILL=1 "gpu/$1" -q --dtype $dtype --device cuda "$kind" t.fts >gpu.fts
            grep -q ^spill log
            cmp cpu.fts gpu.fts
        done
    done
}

@test "activations of every family are the CPU's, f32 and bf16, whether or not there is room for states" {
    every_family forge-calib "${DENSE[@]}" "${MIXTURES[@]}" "${FORWARD[@]}"
}

@test "gradients of every family are the CPU's, f32 and bf16, whether or not there is room for them" {
    every_family forge-gradient "${DENSE[@]}" "${MIXTURES[@]}"
    for kind in "${FORWARD[@]}"; do
        run -78 --separate-stderr gpu/forge-gradient -q --device cuda -o out.fts "$kind" t.fts
        [[ $stderr == *": its gradients are not supported" ]]
    done
}

@test "weights in 8-bit floats cross as they are stored, in bf16 alone: what is put out is the CPU's" {
    for storage in fp8 fp8-ct-channel fp8-tensor fused-fp8; do
        rm -rf m
        python3 "${PY%forward.py}moe.py" make deepseek_v3 $storage m
        for tool in forge-calib forge-gradient; do
            $tool -q --dtype bf16 m t.fts >cpu.fts
            gpu/$tool -q --dtype bf16 --device cuda m t.fts >gpu.fts
            cmp cpu.fts gpu.fts
            [ "$(grep -c '^widen 0 ' log)" -gt 10 ]
            rm log
            $tool -q --dtype f32 m t.fts >cpu.fts
            gpu/$tool -q --dtype f32 --device cuda m t.fts >gpu.fts
            cmp cpu.fts gpu.fts
            [ ! -e log ]
        done
    done
}

loop() { # CALIB OPTION...: to codes.fts, what forge-calib put out to seen.fts
    rm -f back
    mkfifo back
    timeout 60 bash -o pipefail -c '"${@:2}" | tee seen.fts | forge-hessian -q |
        forge-weights -q --join $1 | forge-grid -q --group 8 |
        forge-solve -q | tee back >codes.fts' \
        - "$@" || return 1
    mv seen.fts "$out.seen"
}

both() { # KIND OPTION...: the loop of the CPU, and of a device with room for states and none
    local kind=$1 out
    shift
    out=cpu loop "$kind" forge-calib -q --feedback back "$@" "$kind" t.fts
    for out in all none; do
        rm -f log
        [ $out = all ] || export FAKE_CUDA_SPILL=1
        loop "$kind" gpu/forge-calib -q --device cuda --feedback back "$@" "$kind" t.fts
        unset FAKE_CUDA_SPILL
        cmp cpu.seen "$out.seen" || { echo "$kind $*: $out"; return 1; }
        if [ $out = all ]; then [ ! -e log ]; else grep -q ^spill log; fi
    done
}

@test "the loop: what quantized layers put out is the CPU's, to the bit" {
    for kind in llama llama-biases qwen3 deepseek_v3 qwen2_moe gemma3 phi3 gpt_oss "${FORWARD[@]}"; do
        both $kind
    done
}

@test "both streams: drifts, outputs and gaps are the CPU's, to the bit" {
    for kind in llama llama-biases mistral deepseek_v3 deepseek_v2-lite qwen2_moe mixtral gemma2 granite llama4 \
        "${FORWARD[@]}"; do
        both $kind --propagate both
    done
}

same_frames() { # A B: streams by commands with other options
    PYTHONPATH=${PY%/*} python3 - "$@" <<'PYTHON'
import sys
import fts
a, b = [[(t.role, t.name, t.sequence, t.shape, bytes(t.payload)) for t in fts.read(open(p, "rb")) if not t.ancillary]
        for p in sys.argv[1:]]
assert len(a) > 100 and a == b, [x[:4] for x, y in zip(a, b) if x != y][:5]
PYTHON
}

@test "experts that run again for the sums of some tokens after the others: the CPU's, to the bit" {
    # shellcheck disable=SC2046 # the lengths are words
    python3 "$PY" tokens many.fts $(yes 5 | head -n 600)
    ln -sf many.fts t.fts
    for kind in deepseek_v3 llama4 mixtral; do
        for option in '' '--propagate both'; do
            [ "$option" ] || [ $kind = mixtral ] || continue
            # shellcheck disable=SC2086 # two words
            out=cpu loop $kind forge-calib -q --feedback back $option $kind t.fts
            h=$(tr , '\n' <$kind/config.json | sed -n 's/.*"hidden_size": *//p')
            for sums in 1 $((4 * h * 2600)); do # a batch of 1,280 tokens, and two
                # shellcheck disable=SC2086
                FAKE_CUDA_SPILL=1 out=parts loop $kind gpu/forge-calib -q --device cuda \
                    --expert-sums "$sums" --feedback back $option $kind t.fts
                same_frames cpu.seen parts.seen
            done
        done
    done
}

@test "forge-eval: the same figures, layer by layer, too" {
    for kind in llama deepseek_v3 qwen2_moe gemma2 granite qwen3_next granite4 gemma3n; do
        python3 "$PY" make $kind original
        cp -r original other
        python3 - <<'PYTHON'
import json, struct
b = bytearray(open("other/model.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
for name, t in json.loads(b[8:8 + n]).items():
    if "down_proj" in name: # half of it is gone
        lo, hi = t["data_offsets"]
        b[8 + n + lo:8 + n + (lo + hi) // 2] = bytes((hi - lo) // 2)
open("other/model.safetensors", "wb").write(b)
PYTHON
        for option in '--dtype f32' '--dtype bf16' --by-layer; do
            # shellcheck disable=SC2086 # two words
            forge-eval -q --json $option original other t.fts >cpu
            # shellcheck disable=SC2086
            gpu/forge-eval -q --json $option --device cuda original other t.fts >gpu.json
            diff cpu gpu.json
        done
        # the states behind the final norm, where there is no head
        for model in original other; do
            python3 "${PY%/*}/families.py" bare $model $model-bare headless
            sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' $model-bare/config.json
        done
        for option in '--dtype f32' '--dtype bf16' --by-layer; do
            # shellcheck disable=SC2086
            forge-eval -q --json $option original-bare other-bare t.fts >cpu
            grep -q cosine_mean cpu
            # shellcheck disable=SC2086
            gpu/forge-eval -q --json $option --device cuda original-bare other-bare t.fts >gpu.json
            diff cpu gpu.json
        done
        rm -r original* other*
    done
    run -75 --separate-stderr gpu/forge-eval -q --device cuda --gpu-memory 1K llama llama t.fts
    run -69 --separate-stderr env FAKE_CUDA_FAIL=30 gpu/forge-eval -q --device cuda llama llama t.fts
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
}

fails() { # TOOL N...: it ends with one line when the device's N-th operation fails
    local tool=$1 n
    shift
    for n; do
        run -69 --separate-stderr env FAKE_CUDA_FAIL="$n" "gpu/$tool" -q --device cuda -o out.fts deepseek_v3 t.fts
        [[ $stderr == *"fake: "*" failed" ]]
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
        [ ! -e out.fts ]
    done
}

@test "a family whose layers a GPU lacks: the CPU's, or refused" {
    python3 "$PY" make deepseek_v32 sparse # index_topk 24
    forge-calib -q --device cpu sparse t.fts >cpu.fts
    gpu/forge-calib -q sparse t.fts >auto.fts
    cmp cpu.fts auto.fts
    run -69 --separate-stderr gpu/forge-calib -q --device cuda -o out.fts sparse t.fts
    [[ $stderr == *"layers of deepseek_v32 have sparse attention beyond index_topk"* ]]
    [ ! -e out.fts ]
}

@test "gradients: a device that fails, or has no room" {
    fails forge-gradient 1 3 20 60 150 250 350 400
    run -75 --separate-stderr gpu/forge-gradient -q --device cuda --gpu-memory 1K -o out.fts llama t.fts
    [[ $stderr == *"gradients of a layer take "*" of GPU memory, there are 1.00 KiB" ]]
    run -69 --separate-stderr forge-gradient -q --device cuda -o out.fts llama t.fts
    [ ! -e out.fts ]
}

@test "gradients: whichever call fails on the way to a device: one line and no stream" {
    unset FAKE_CUDA_LOG
    export PATH=$PWD/gpu:$PATH
    for kind in malloc pread write rename; do # of a library that cannot be loaded: 69
        fail_each $kind 75,74,73,69 gpu-gradient -q -j 1 --device cuda -o out.fts llama t.fts
    done
    fail_each malloc 75,69 gpu-gradient -q -j 1 --device cuda deepseek_v3 t.fts
}

@test "a layer's hidden states, with codes, and hit maps" {
    out=cpu loop llama forge-calib -q --feedback back llama t.fts
    for kind in llama deepseek_v3; do
        for option in '--to hidden' --hitmap; do
            # shellcheck disable=SC2086 # two words
            forge-calib -q $option $kind t.fts >cpu.fts
            # shellcheck disable=SC2086
            gpu/forge-calib -q --device cuda $option $kind t.fts >gpu.fts
            cmp cpu.fts gpu.fts
        done
    done
    forge-split -q 'codes-%.fts' codes.fts >/dev/null
    for tool in forge-calib 'gpu/forge-calib --device cuda'; do
        # shellcheck disable=SC2086
        $tool -q --layer 0 --codes codes-0.fts --hidden next.fts llama t.fts >seen.fts
        mv seen.fts "${tool:0:3}.seen"
        mv next.fts "${tool:0:3}.hidden"
    done
    cmp for.seen gpu.seen
    cmp for.hidden gpu.hidden
}

@test "a device that fails at any operation: exit 69, one line, and nothing that looks whole" {
    fails forge-calib 1 2 3 7 20 50 90 150
}

@test "no room for a layer: refused when demanded, else the CPU computes" {
    export FAKE_CUDA_ROOM=100
    run -75 --separate-stderr gpu/forge-calib -q --device cuda -o out.fts llama t.fts
    [[ $stderr == *"a layer takes "*" of GPU memory, there are 100 B" ]]
    run -75 --separate-stderr gpu/forge-calib -q --device cuda --gpu-memory 1K -o out.fts llama t.fts
    [[ $stderr == *"there are 1.00 KiB" ]]
    run -69 --separate-stderr gpu/forge-calib -q --device cuda:1 -o out.fts llama t.fts
    run -64 --separate-stderr gpu/forge-calib -q --device tpu -o out.fts llama t.fts
    run -69 --separate-stderr forge-calib -q --device cuda -o out.fts llama t.fts
    [ ! -e out.fts ]
}

@test "--dry-run says what the refusal says" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m text=$BATS_TEST_DIRNAME/../../examples/calib.jsonl
    forge-tokens -q --sequences 2 --seqlen 16 "$model" "$text" >tokens
    forge quantize --dry-run --effort fast --text "$text" "$model" out >said
    need=$(sed -nE 's/^GPU memory .* one, ([0-9.]+ MiB) for a layer; .*/\1/p' said)
    run -75 --separate-stderr env FAKE_CUDA_ROOM=100 gpu/forge-calib -q --device cuda "$model" tokens
    [[ $stderr == *"a layer takes $need of GPU memory"* ]]
    # as much is enough
    FAKE_CUDA_ROOM=$(awk -v n="$need" 'BEGIN { printf "%.0f", (n + .05) * 1048576 }') \
        gpu/forge-calib -q --device cuda "$model" tokens >gpu.fts
    forge-calib -q "$model" tokens >cpu.fts
    cmp cpu.fts gpu.fts
    forge quantize --dry-run --effort fast --device cpu --text "$text" "$model" out >said
    run ! grep -q "GPU memory" said
    run ! grep -q gradients said
    # and with --effort best, of gradients
    forge quantize --dry-run --effort best --text "$text" "$model" out >said
    grep -q '^gradients    before that, about [0-9.]* MiB of memory; of work 64.0 MiB$' said
    need=$(sed -nE 's/^GPU memory .*, ([0-9.]+ MiB) for its gradients; .*/\1/p' said)
    run -75 --separate-stderr env FAKE_CUDA_ROOM=100 gpu/forge-gradient -q --device cuda "$model" tokens
    [[ $stderr == *"gradients of a layer take $need of GPU memory"* ]]
    FAKE_CUDA_ROOM=$(awk -v n="$need" 'BEGIN { printf "%.0f", (n + .5) * 1048576 }') \
        gpu/forge-gradient -q --device cuda "$model" tokens >gpu.fts
    forge-gradient -q "$model" tokens >cpu.fts
    cmp cpu.fts gpu.fts
}

# MiB of files without a name that a forge-calib has which has sent the first of its inputs,
# of the tokens of big.fts, to a forge-hessian; DIR: where both are.  The fake device's memory
# is files, too.
files() { # DIR DEVICE OPTION...
    rm -f back seen l
    mkfifo back
    "$1/forge-calib" -q --loans l --feedback back --device "$2" "${@:3}" \
        "$BATS_TEST_DIRNAME/../../examples/llama-4m" big.fts \
        > >(tee seen | "$1/forge-hessian" -q --loans l --device "$2" >/dev/null 2>&1 3>&-) 3>&- &
    exec 5>back # it has begun
    until grep -q 'model.layers.0.attn_in' seen; do
        kill -0 $! || return 1
        sleep 0.2
    done
    stat -L -c '%h %s %n' /proc/$!/fd/* | while read -r links size name; do
        [[ $links -ne 0 || $(readlink "$name") == /memfd:* ]] || echo "$size"
    done | awk '{ n += $1 } END { print int(n / 1048576) }'
    kill $!
    exec 5>&-
    wait $! || true
}

@test "states: their files are as large as --dry-run says, and a device needs fewer" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m here bin both
    # shellcheck disable=SC2046 # words
    python3 "$PY" tokens big.fts $(yes 512 | head -n 600)
    bin=$(dirname "$(command -v forge)")
    mkdir all
    cp -rL "$bin" "$bin/../lib" all
    cp gpu/forge-cuda.so all/bin
    said() { # FORGE OPTION...: MiB
        "$1" quantize --dry-run --rate 1 --text "$model/../calib.jsonl" --sequences 600 --seqlen 512 --states-memory 0 "${@:2}" \
            "$model" out >plan
        grep -Eq '^memory .*; and the system keeps up to [0-9.]+ MiB of states in memory' plan || return
        sed -nE 's/^work .*, of it ([0-9.]+) MiB for states.*/\1/p' plan
    }
    for both in quantized both; do
        effort=fast
        [ $both = quantized ] || effort=default
        is=$(files "$bin" cpu --propagate $both)
        here=$(said forge --effort $effort --device cpu)
        echo "$both: $is MiB, said $here"
        awk -v is="$is" -v said="$here" 'BEGIN { exit !(is > 0 && is <= said * 1.02 && is >= said * 0.95) }'
        [ "$(files "$bin" cpu --propagate $both --states-memory "$((${here%.*} + 64))M")" -eq 0 ]
        [ "$(files "$bin" cpu --propagate $both --states-memory 64M)" -eq "$is" ]
        is=$(files gpu cuda --propagate $both)
        there=$(said all/bin/forge --effort $effort --device cuda)
        echo "$both, cuda: $is MiB, said $there"
        awk -v is="$is" -v here="$here" -v said="$there" 'BEGIN { exit !(is <= said && said < here) }'
    done
    memory() { # SIZE: MiB of memory
        forge quantize --dry-run --rate 1 --text "$model/../calib.jsonl" --sequences 600 --seqlen 512 --effort fast \
            --device cpu --states-memory "$1" "$model" out | tee plan | sed -nE 's/^memory +about ([0-9.]+) MiB.*/\1/p'
    }
    here=$(memory 0)
    grep -q '^work .* for states' plan
    there=$(memory 2G)
    [ -z "$(sed -n '/^work .* for states/p; /^memory .*keeps/p' plan)" ]
    awk -v here="$here" -v there="$there" 'BEGIN { exit !(there > here + 128) }'
}

@test "forge quantize --effort best: its gradients are made there" {
    local bin model=$BATS_TEST_DIRNAME/../../examples/llama-4m
    bin=$(dirname "$(command -v forge)")
    mkdir -p all/gpu
    cp -rL "$bin" "$bin/../lib" all
    mv all/bin/forge-gradient all/gpu
    cp gpu/forge-cuda.so all/bin
    cp gpu/forge-cuda.so all/gpu
    cp gpu/forge-cuda.so all/gpu/libcuda.so.1 # the driver that --device auto looks for
    # of forge-gradient alone: memory of the device, which is pinned then, is noted
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nFAKE_CUDA_KILL=$KILL_GRADIENT FAKE_CUDA_LOG=%s FAKE_CUDA_SPILL=1 exec "%s" "$@"\n' \
        "$PWD/noted" "$PWD/all/gpu/forge-gradient" >all/bin/forge-gradient
    chmod +x all/bin/forge-gradient
    export LD_LIBRARY_PATH=$PWD/all/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    best() { # OUT OPTION...
        all/bin/forge quantize "$model" "$1" --effort best --tune 0 --quiet \
            --text "$BATS_TEST_DIRNAME/../../examples/calib.jsonl" --sequences 2 --seqlen 32 "${@:2}"
    }
    best out-cpu --device cpu
    [ ! -e noted ]
    best out-auto
    grep -q ^spill noted
    # killed at any time, it leaves nothing, and the next run has the same result
    for n in 1 40 200 400; do
        KILL_GRADIENT=$n run -75 --separate-stderr best out --work work
        [[ ${stderr_lines[0]} == "forge: forge-gradient: killed by signal 9"* && ${#stderr_lines[@]} -eq 1 ]]
        [ ! -e out ]
        [ -z "$(find work -name 'fisher*' -o -name 'weights*')" ]
    done
    best out --work work
    diff -r out-auto out
}

tokenizer() { # DIR: of one letter a token, for vocabularies of 96
    python3 - "$1/tokenizer.json" <<'PYTHON'
import json, sys
vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz.,Ġ")}
json.dump({"added_tokens": [], "normalizer": None, "post_processor": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
           "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}},
          open(sys.argv[1], "w"))
PYTHON
}

speaks() { # MODEL: the same tokens on the device
    local dtype
    for dtype in f32 bf16; do
        forge-generate -q --dtype $dtype --greedy --tokens 20 --json "$1" 'the sea and more of the same' >cpu
        gpu/forge-generate -q --device cuda --dtype $dtype --greedy --tokens 20 --json "$1" \
            'the sea and more of the same' >gpu.json
        diff cpu gpu.json
    done
}

@test "forge-generate: every family speaks the same, with its keys and values there" {
    for kind in "${DENSE[@]}" "${MIXTURES[@]}" "${FORWARD[@]}"; do
        cp -r "$kind" speaker
        tokenizer speaker
        speaks speaker
        rm -r speaker
    done
    # prompts one after the other, and one that is read in parts
    for kind in kimi_linear granite4 gemma3n llama; do
        rm -rf speaker
        cp -r $kind speaker
        tokenizer speaker
        printf 'the sea\n%s\nthe hill\n' "$(printf 'the sea and the hill %.0s' {1..40})" >prompts
        forge-generate -q --lines --json --greedy --tokens 5 speaker <prompts >cpu
        gpu/forge-generate -q --device cuda --lines --json --greedy --tokens 5 speaker <prompts >gpu.json
        diff cpu gpu.json
    done
    for n in 1 30 60; do
        run -69 --separate-stderr env FAKE_CUDA_FAIL=$n gpu/forge-generate -q --device cuda speaker hello
        [[ $stderr == *"fake: "*" failed" ]]
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
    done
    # no room: for a layer, for all of them, for keys and values
    run -75 --separate-stderr gpu/forge-generate -q --device cuda --gpu-memory 1K speaker hello
    [[ $stderr == *"a layer takes "* ]]
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    run -75 --separate-stderr gpu/forge-generate -q --device cuda --tokens 100000 --gpu-memory 5M speaker hello
    [[ $stderr == *"keys and values"* ]]
}

@test "forge-generate --sequences: several grow together, with their keys and values there" {
    local dtype
    for kind in "${DENSE[@]}" "${MIXTURES[@]}"; do
        for dtype in f32 bf16; do
            forge-generate -q --dtype $dtype --sequences 3 --tokens 9 "$kind" >cpu
            gpu/forge-generate -q --device cuda --dtype $dtype --sequences 3 --tokens 9 "$kind" >gpu.fts
            cmp cpu gpu.fts
        done
    done
    # as many at a time as there is room for: six, and one at last
    gpu/forge-generate -q --device cuda --dtype bf16 --sequences 25 --tokens 60 llama >all
    gpu/forge-generate -q --device cuda --dtype bf16 --sequences 25 --tokens 60 --gpu-memory 4M llama >few
    cmp all few
    run -75 --separate-stderr gpu/forge-generate -q --device cuda --sequences 2 --tokens 100000 --gpu-memory 5M llama
    [[ $stderr == *"keys and values"* ]]
}

@test "4-bit checkpoints of every layout are multiplied in 4 bits, linears of 8 bits in 16" {
    local kind layout dtype
    for kind in llama-biases deepseek_v3 qwen2_moe; do
        for layout in compressed-tensors awq gptq gptq_v2 mixed; do
            # shellcheck disable=SC2046,SC2086 # options
            forge-weights -q $kind |
                forge-grid -q --group 8 $([ $layout != mixed ] || echo "--grid *.down_proj=8bit") |
                forge-solve -q | forge-pack -q --layout ${layout/mixed/gptq --mixed} | forge-shard -q --from $kind small
            tokenizer small
            FAKE_CUDA_LOG=$PWD/linears speaks small
            for dtype in f32 bf16; do
                forge-eval -q --json --dtype $dtype $kind small t.fts >cpu
                gpu/forge-eval -q --json --dtype $dtype --device cuda $kind small t.fts >gpu.json
                diff cpu gpu.json
            done
            rm -r small
        done
    done
}
