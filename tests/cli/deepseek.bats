#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# A checkpoint with the names, the index and the sizes of DeepSeek-V3, 689 GB
# in 163 files that are holes.

MOE="$BATS_TEST_DIRNAME/../reference/moe.py"
bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
}

@test "its plan, its check and the small tensors of a layer" {
    [ "$(python3 "$MOE" deepseek v3)" = "91991 688574839360" ]
    forge-plan v3 >plan
    grep -x "layers=61" plan
    grep -x "modules=44971" plan # (61 x 4 + 3 x 3 + 58 x (257 x 3)) linears
    grep -x "parameters=684489845504" plan
    grep -x "bytes_in=688574839360" plan
    grep -x "hessian_bytes=679514112" plan # of the dense down_proj, 18432
    awk -F= '$1 == "bytes_out" { exit !($2 > 350e9 && $2 < 400e9) }' plan
    awk -F= '$1 == "layer_bytes" { exit !($2 < 2e9) }' plan # two experts of 256
    for layout in awq gptq compressed-tensors; do
        forge-pack --layout $layout --check v3 >table
        grep "^all  *1 2 4 8 16$" table
    done
    forge quantize --dry-run --text "$BATS_TEST_DIRNAME/../../examples/calib.jsonl" v3 out >said 2>&1 ||
        grep -E "needs .*(free|available)" said # of a machine that is too small
    [ ! -e out ]
    forge-weights -q v3 --layer 5 --match '*norm*' --match '*mlp.gate*' --match '*.experts.7.down_proj' >w
    forge-ls w | cut -f 1-4 >names
    diff names - <<'END'
tensor	model.layers.5.input_layernorm.weight	BF16	7168
tensor	model.layers.5.post_attention_layernorm.weight	BF16	7168
tensor	model.layers.5.self_attn.q_a_layernorm.weight	BF16	1536
tensor	model.layers.5.self_attn.kv_a_layernorm.weight	BF16	512
tensor	model.layers.5.mlp.gate.weight	BF16	256x7168
tensor	model.layers.5.mlp.gate.e_score_correction_bias	F32	256
weight	model.layers.5.mlp.experts.7.down_proj	BF16	7168x2048
END
}

@test "all its linears, with small matrices, through the whole pipe" {
    [ "$(python3 "$MOE" names v3 | cut -d ' ' -f 1)" = 91991 ]
    forge-weights -q v3 | forge-grid -q --group 32 --symmetric | forge-solve -q --method rtn |
        forge-pack -q --layout awq -o packed
    run --separate-stderr forge-shard --from v3 --shard-size 5MB out packed
    [ "$status" -eq 0 ]
    [[ $stderr == *"136125 tensors"*"44971 of the linears in 4 bits; verified"* ]]
    python3 - <<'END'
import json
q = json.load(open("out/config.json"))["quantization_config"]
assert len(q["modules_to_not_convert"]) == 1 + 61 + 58 + 1 and len(q["dynamic"]) == 3
assert len(json.load(open("out/model.safetensors.index.json"))["weight_map"]) == 136125
END
}
