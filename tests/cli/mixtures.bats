#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# Mixtures of experts and latent attention: the forward pass (test helper `forward`) against NumPy, and forge-eval.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/forward.py"
EVAL="$BATS_TEST_DIRNAME/../reference/eval.py"
KINDS=(deepseek_v3 deepseek_v3-plain kimi_k2 deepseek_v32 glm_moe_dsa deepseek_v2 deepseek_v2-lite qwen2_moe qwen3_moe
    qwen3_moe-step mixtral glm4_moe minimax_m2 gpt_oss ernie4_5_moe llama4 granitemoe)

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "every family agrees with the reference in f32: logits, experts, weights" {
    python3 "$PY" tokens t.fts 40 1 33 64
    python3 "$PY" each "${KINDS[@]}"
    for kind in "${KINDS[@]}"; do
        python3 "$PY" logits "$kind" t.fts 1e-5 f32
    done
}

# KIND F32 BF16: logits and the loop, within these bounds; every linear has codes
recurrent() {
    python3 "$PY" tokens two.fts 40 33
    python3 "$PY" tokens t.fts 40 1 33 64
    python3 "$PY" make "$1" "$1"
    python3 "$PY" logits "$1" t.fts "$2" f32
    python3 "$PY" middle "$1" two.fts "$3" bf16
    loop "$1" --dtype f32 "$1" t.fts
    python3 "$PY" check "$1" t.fts 1e-4 seen.fts codes.fts
    forge-ls codes.fts | grep ^codes | cut -f 2 | sort >got
    forge-weights -q --linears "$1" | forge-ls | cut -f 2 | sort | cmp got
}

# A norm of small outputs multiplies their rounding, as tests/interop/model_check.py shows of transformers' float32.
@test "linear attention: Qwen3-Next, Qwen3.5 and Kimi-Linear" {
    for kind in qwen3_next qwen3_5 qwen3_5_moe kimi_linear; do
        recurrent "$kind" 3e-5 0.08
    done
}

@test "--kv-b: the inputs of kv_b_proj, with feedback and without, to the bit those of one run" {
    python3 "$PY" tokens t.fts 40 33
    python3 "$PY" each deepseek_v3 deepseek_v2-lite deepseek_v32
    for kind in deepseek_v3 deepseek_v2-lite deepseek_v32; do
        forge-calib -q --kv-b --dtype f32 "$kind" t.fts >seen.fts
        [ "$(forge-ls seen.fts | grep -c 'kv_lat')" -eq "$(forge-ls seen.fts | grep -c 'attn_in')" ]
        python3 "$PY" check "$kind" t.fts 1e-5 seen.fts
        MODULES="*" loop "$kind" --kv-b --dtype f32 "$kind" t.fts
        [ "$(forge-ls codes.fts | grep -c "^codes.*kv_b_proj")" -eq 3 ]
        python3 "$PY" check "$kind" t.fts 1e-4 seen.fts codes.fts
        # the run stops at every point, and puts out what one does that passes them
        forge-calib -q --dtype f32 --to hidden --layer 0 "$kind" t.fts >one.fts
        forge-calib -q --dtype f32 --to hidden --layer 0 --kv-b "$kind" t.fts >two.fts
        python3 "$PY" same one.fts two.fts
    done
}

@test "Mamba 2: Granite 4, dense and mixture" {
    for kind in granite4 granite4-moe; do
        recurrent "$kind" 1e-5 0.06
    done
}

@test "and in bf16, within what bf16 rounds" {
    python3 "$PY" tokens t.fts 40 33
    python3 "$PY" each deepseek_v3-plain deepseek_v2-lite qwen2_moe qwen3_moe-step glm4_moe
    for kind in deepseek_v3-plain deepseek_v2-lite qwen2_moe qwen3_moe-step glm4_moe; do
        python3 "$PY" middle "$kind" t.fts 0.06 bf16
    done
}

@test "where layers share the keys that one of them chose: up to index_topk" {
    python3 "$PY" make glm_moe_dsa m
    sed -i 's/"index_topk"/"indexer_types": ["full", "shared", "full"], "index_topk"/' m/config.json
    python3 "$PY" tokens t.fts 25
    run --separate-stderr -78 forge-eval m m t.fts
    [[ $stderr == *"a sequence of 25 tokens: glm_moe_dsa is supported up to index_topk 24, "* ]] || {
        echo "$stderr"
        return 1
    }
    python3 "$PY" tokens t.fts 24
    forge-eval -q m m t.fts
}

@test "a router of another size, and scores that are not finite" {
    python3 "$PY" make qwen3_moe m
    python3 "$PY" tokens t.fts 9
    sed -i 's/"num_experts": 10/"num_experts": 11/' m/config.json
    run --separate-stderr -65 forge-eval m m t.fts
    [[ $stderr == *"'model.layers.0.mlp.gate': the weight is 10x48, the config says 11x48"* ]]
    python3 "$PY" make mixtral x
    python3 - <<'PYTHON'
import json, struct
b = bytearray(open("x/model.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
at = json.loads(b[8:8 + n])["model.layers.1.block_sparse_moe.gate.weight"]["data_offsets"][0]
b[8 + n + at:8 + n + at + 2] = b"\xc0\x7f"
open("x/model.safetensors", "wb").write(b)
PYTHON
    run --separate-stderr -65 forge-eval x x t.fts
    [[ $stderr == *"model.layers.1.block_sparse_moe.gate: scores of token 0 are not finite"* ]]
}

@test "forge-eval: a mixture against itself, and against another, as the reference says" {
    python3 "$PY" tokens t.fts 40 2 33 64
    for kind in deepseek_v3 mixtral; do
        python3 "$PY" make $kind a
        cp -r a b
        python3 - <<'PYTHON'
import json, struct
b = bytearray(open("b/model.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
head = json.loads(b[8:8 + n])
for name in head:
    if ".experts.3." in name:
        lo, hi = head[name]["data_offsets"]
        b[8 + n + lo:8 + n + hi] = bytes(hi - lo)
open("b/model.safetensors", "wb").write(b)
PYTHON
        forge-eval -q --json a a t.fts >same.json
        [ "$(jq -c '[.kl_mean, .kl_max, .top1]' same.json)" = '[0,0,1]' ]
        forge-eval -q --json a b t.fts >f.json
        python3 "$EVAL" a b t.fts f.json
        forge-eval -q -j 1 --json a b t.fts | cmp - f.json
        rm -r a b
    done
}

@test "forge-eval: experts pruned, with and without the router, as the reference says" {
    python3 "$PY" tokens t.fts 40 33
    for kind in deepseek_v3 qwen3_moe-step mixtral; do
        python3 "$PY" make $kind a
        python3 - "$(dirname "$PY")" <<'PYTHON'
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import fts, mixtures
c = json.load(open("a/config.json"))
e, g = mixtures.experts(c), c.get("n_group", 1)
keep = np.arange(e) % (e // g) < max(e // g // 2, 2)  # the first ones of each group
ids = np.where(keep, keep.cumsum() - 1, -1).astype("<i4")
with open("map", "wb") as f:
    fts.write(f, [fts.Tensor("map", "model.layers.%d.mlp" % i, ids) for i in range(c["num_hidden_layers"])
                  if mixtures.sparse(c, i)])
PYTHON
        for mode in prune remap; do
            forge-weights -q a --expert-map map --mode $mode | forge-shard -q --from a --expert-map map --mode $mode $mode
            forge-eval -q --json a $mode t.fts >f.json
            python3 "$EVAL" a $mode t.fts f.json
        done
        python3 - <<'PYTHON'
import json, struct
b = bytearray(open("remap/expert_map.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
experts = json.loads(b[8:8 + n])["expert_map"]["shape"][1]
struct.pack_into("<i", b, 8 + n + 4 * (2 * experts - 1), 9)  # the last expert of layer 1
open("remap/expert_map.safetensors", "wb").write(b)
PYTHON
        run --separate-stderr -65 forge-eval a remap t.fts
        [[ $stderr == *"'remap/expert_map.safetensors': layer 1: expert "*" becomes 9 of "* ]]
        rm -r a prune remap
    done
}

# loop MODEL CALIBRATION-ARGUMENT...: codes.fts, and what came out, seen.fts; MODULES: a pattern of linears
loop() {
    rm -f back
    mkfifo back
    timeout 60 bash -o pipefail -c '"${@:2}" | tee seen.fts | forge-hessian -q --blend 2 |
        forge-weights -q --join ${MODULES:+--modules "$MODULES"} "$1" | forge-grid -q --group 16 |
        forge-solve -q | forge-split -q "codes-%.fts" | tee back >codes.fts' \
        - "$1" forge-calib -q --feedback back "${@:2}"
}

@test "the loop: every expert's input is computed with the codes of what comes before it" {
    python3 "$PY" tokens t.fts 40 1 33 64
    python3 "$PY" each "${KINDS[@]}"
    for kind in "${KINDS[@]}"; do
        loop "$kind" --dtype f32 "$kind" t.fts
        python3 "$PY" check "$kind" t.fts 1e-4 seen.fts codes.fts
        # every linear of the model, once; nothing else
        forge-ls codes.fts | grep ^codes | cut -f 2 | sort >got
        forge-weights -q --linears "$kind" | forge-ls | cut -f 2 | sort | cmp got
        forge-ls seen.fts | grep -q ^hitmap
        # one pass with all codes sees the same
        forge-calib -q --dtype f32 --codes codes.fts "$kind" t.fts >again.fts
        python3 "$PY" check "$kind" t.fts 1e-4 again.fts codes.fts
    done
}

@test "without feedback: the inputs of all experts, hit maps, hidden states" {
    python3 "$PY" tokens t.fts 40 33
    for kind in deepseek_v3 mixtral qwen2_moe; do
        python3 "$PY" make $kind m
        forge-calib -q --dtype f32 m t.fts >a.fts
        python3 "$PY" check m t.fts 1e-5 a.fts
        forge-calib -q --dtype f32 --to hidden m t.fts >h0.fts
        forge-calib -q --dtype f32 --to hidden m h0.fts >h1.fts
        python3 "$PY" check m t.fts 1e-5 h1.fts
        forge-calib -q --dtype f32 --hitmap m t.fts >map.fts
        forge-ls a.fts | grep ^hitmap >want
        forge-ls map.fts | cmp want
        forge-calib -q --dtype f32 --hitmap --skip-experts m t.fts >quick.fts
        forge-ls quick.fts | cmp want
        rm -r m
    done
}

@test "beside the original stream: how far it drifts, experts and all" {
    python3 "$PY" tokens t.fts 40 33
    for kind in deepseek_v3 qwen2_moe mixtral gpt_oss; do # shared expert: one, gated, none; biases
        python3 "$PY" make $kind m
        loop m --propagate both --dtype f32 m t.fts
        python3 "$PY" drift m t.fts 1e-3 seen.fts codes.fts
        rm -r m codes*.fts
    done
}

@test "experts that no token reaches are quantized, too, and counted" {
    python3 "$PY" make deepseek_v3 m
    python3 "$PY" tokens t.fts 3
    loop m --dtype f32 m t.fts
    forge-ls --json seen.fts | grep '"role":"activation"' | grep '"shape":\[0,' >none
    grep -q 'experts.*\.in"' none
    grep -q 'experts.*\.mid"' none
    grep -q '"last":true' none
    python3 "$PY" check m t.fts 1e-4 seen.fts codes.fts
    forge-ls codes.fts | grep ^codes | cut -f 2 | sort >got
    forge-weights -q --linears m | forge-ls | cut -f 2 | sort | cmp got
}

@test "the loop of a mixture goes on from what a killed one left" {
    python3 "$PY" make deepseek_v3 m
    python3 "$PY" tokens t.fts 40 33
    loop m m t.fts
    mkdir whole
    mv codes-*.fts whole
    for i in whole/codes-*.fts; do
        cp whole/codes-0.fts .
        [ "${i##*/}" = codes-0.fts ] || break
    done
    loop m --codes 'codes-%.fts' m t.fts
    for i in whole/codes-*.fts; do
        python3 "$PY" codes "$i" "${i##*/}"
    done
    [ "$(ls whole)" = "$(ls codes-*)" ]
}
