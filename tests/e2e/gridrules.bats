#!/usr/bin/env bats
# Grids of several kinds in one checkpoint: forge quantize --grid, the pipe's options of that name.

load e2e

check() { python3 "$tree/tests/reference/gridrules.py" check "$@"; }
parts() { python3 "$tree/tests/reference/gridrules.py" parts "$@"; }

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "--group -1: one scale for each output, as the loaders' configs say it" {
    [ "$(jq -r '"\(.hidden_size) \(.intermediate_size)"' "$model/config.json")" = "256 768" ]
    for layout in compressed-tensors awq gptq gptq_v2; do
        forge quantize "$model" out "${small[@]}" --effort default --layout $layout --group -1 --work work
        forge quantize "$model" rules "${small[@]}" --effort default --layout $layout --group 256 --grid '*.down_proj=768' --work ruled
        python3 - $layout <<PYTHON
import json, sys
sys.path.insert(0, "$tree/tests/reference")
from choice import tensors
t, rules = tensors("out"), tensors("rules")
assert t == rules
scales = [n for n in t if n.endswith((".scales", ".weight_scale"))]
assert len(scales) == 28 and all(1 in t[n][1] for n in scales)
q = json.load(open("out/config.json"))["quantization_config"]
if sys.argv[1] == "compressed-tensors":
    (g,) = q["config_groups"].values()
    assert g["weights"]["strategy"] == "channel" and g["weights"]["group_size"] is None
else:
    assert q["group_size"] == -1
PYTHON
        grep -q "^| layout | $layout: 4 bits, a scale for each output (F16), symmetric |$" out/README.md
        forge verify -q out
        forge-shard -q --from "$model" --verify out
        forge status work | head -n 1 | grep -q "group -1, symmetric, complete"
        rm -r out rules work ruled
    done
    forge quantize "$model" out --method rtn --group 64 --grid '*.down_proj=-1' -q
    [ "$(jq -r '[.quantization_config.config_groups[].weights | "\(.strategy) \(.group_size)"] | sort | join(",")' out/config.json)" = "channel null,group 64" ]
    grep -q "a scale for 64 inputs (F16), symmetric; of some linears otherwise |$" out/README.md
    forge-shard -q --from "$model" --verify out
    for how in "--group 0" "--group 7" "--group -2" "--group -1 --search absmax" "--grid *.down_proj=-2"; do
        set -f
        # shellcheck disable=SC2086
        run -64 forge quantize "$model" not --method rtn $how
        set +f
    done
    run -64 forge quantize "$model" not "${small[@]}" --bits 5 --group -1
    run -69 --separate-stderr forge quantize "$model" not "${small[@]}" --group -1 --device cuda
    [[ $stderr == *"does not solve groups of more than 128 inputs"* ]]
    [ ! -e not ]
}

@test "each layout: shapes of tensors, and what loaders read from the config" {
    served() { # WANT RULE...
        args=(); for r in "${@:2}"; do args+=(--grid "$r"); done
        forge quantize "$model" out --method rtn --layout $layout --group 64 -q "${args[@]}"
        [ "$(check out $layout 64,sym "${@:2}")" = "$1" ]
        forge verify -q out
        forge-shard -q --from "$model" --verify out
        forge generate -q --greedy --tokens 4 out "the" >/dev/null
        rm -r out
    }
    for layout in compressed-tensors gptq gptq_v2; do
        served "128,sym:6 32,sym:4 64,sym:18" '*.down_proj=32' '*.layers.[01].self_attn.[qkv]_proj=128,sym'
        served "32,sym,8bit:4 64,sym:18 64,sym,8bit:6" '*.down_proj=8bit,32' '*.layers.[01].self_attn.[qkv]_proj=8bit'
    done
    forge quantize "$model" dynamic --method rtn --layout gptq -q --grid '*.down_proj=32'
    grep -q 'transformers 5.23 does not load this layout' dynamic/README.md
    run -0 --separate-stderr forge quantize "$model" out --dry-run --method rtn --layout gptq --grid '*.down_proj=8bit'
    [[ $stderr == *"transformers (5.23) does not load GPTQ whose linears differ"* ]]
    run -0 --separate-stderr forge quantize "$model" out --dry-run --text "$text" --layout gptq --bits 5
    [ "$(grep -c "GPTQ whose linears differ" <<<"$stderr")" -eq 1 ]
    run -0 --separate-stderr forge quantize "$model" out --dry-run --method rtn --layout gptq_v2 --asym --grid '*.down_proj=sym'
    [[ $stderr != *"linears differ"* ]]
    for layout in compressed-tensors gptq_v2 awq; do
        forge quantize "$model" out --method rtn --layout $layout --group 64 -q --grid '*.down_proj=asym' --grid '*.3.mlp.*=sym'
        [ "$(check out $layout 64,sym '*.down_proj=asym' '*.3.mlp.*=sym')" = "64,asym:3 64,sym:25" ]
        forge-shard -q --from "$model" --verify out
        rm -r out
    done
}

@test "a linear's codes are those of a checkpoint with that grid alone" {
    forge quantize "$model" most --method rtn --group 64 -q
    forge quantize "$model" other --method rtn --group 32 --asym -q
    forge quantize "$model" eight --method rtn --group 64 -q --grid '*=8bit'
    [ "$(check eight compressed-tensors 64,sym '*=8bit')" = "64,sym,8bit:28" ]
    forge quantize "$model" mixed --method rtn --group 64 -q --grid '*.o_proj=8bit'
    [ "$(parts mixed eight '*.o_proj')" = 12 ]
    [ "$(parts mixed most '*.mlp.*_proj')" = 36 ]
    rm -r mixed
    forge quantize "$model" mixed --method rtn --group 64 -q --grid '*.down_proj=32,asym' --grid '*.layers.2.mlp.*=32' --grid '*.layers.2.mlp.*=asym'
    [ "$(check mixed compressed-tensors 64,sym '*.down_proj=32,asym' '*.layers.2.mlp.*=32,asym')" = "32,asym:6 64,sym:22" ]
    grep -q 'transformers 5.23 reads all linears' mixed/README.md
    grep -q 'dequantize=True' other/README.md
    [ "$(parts mixed other '*.down_proj')" = 16 ]
    [ "$(parts mixed other '*.layers.2.mlp.*')" = 12 ]
    [ "$(parts mixed most '*.self_attn.*_proj')" = 48 ]
}

@test "linears of one input with groups of their own: codes as where all have that group" {
    python3 "$tree/tests/reference/moe.py" make deepseek_v3-direct plain m
    for effort in fast default; do
        way=("${small[@]}" --effort "$effort" --propagate original)
        forge quantize m eights "${way[@]}" --group 8
        forge quantize m wide "${way[@]}" --group 32
        forge quantize m mixed "${way[@]}" --group 8 --grid '*.kv_a_proj_with_mqa=32'
        [ "$(parts mixed wide '*.kv_a_proj_with_mqa')" -eq 10 ] # of 3 layers; the fourth's weight
        [ "$(parts mixed eights '*.self_attn.q_proj')" -eq 10 ]
        rm -r eights wide mixed
    done
}

@test "the loop solves each on its grid, smaller groups are nearer, and another run goes on" {
    forge quantize "$model" a "${small[@]}" --effort fast --work work
    forge quantize "$model" b "${small[@]}" --effort fast --work work --grid '*.down_proj=32,asym' --grid '*.mlp.*=32'
    forge quantize "$model" c "${small[@]}" --effort fast --work work --grid '*.down_proj=32,asym' --grid '*.mlp.*=32'
    same_tensors b c
    [ "$(find work -name 'solve-*' | wc -l)" -eq 2 ]
    check b compressed-tensors 128,sym '*.down_proj=32,asym' '*.mlp.*=32'
    forge quantize "$model" e "${small[@]}" --work work --grid '*.mlp.*=8bit'
    forge quantize "$model" f "${small[@]}" --work work --grid '*=8bit'
    for d in a b e f; do
        forge eval "$model" $d --json --quiet --text "$text" --sequences 4 --seqlen 128 >$d.json
    done
    less "$(figure kl_mean b.json)" "$(figure kl_mean a.json)"
    less "$(figure kl_mean e.json)" "$(figure kl_mean b.json)"
    less "$(figure kl_mean f.json)" 0.001
    rm work/solve-*/codes-2.fts
    forge quantize "$model" d "${small[@]}" --effort fast --work work --grid '*.down_proj=32,asym' --grid '*.mlp.*=32'
    same_tensors b d
}

@test "mixtures, latent attention, and repacking" {
    /usr/bin/python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain m
    rules=('*.experts.*=32,8bit' '*.kv_a_proj_with_mqa=16' '*.q_a_proj=16' '*shared_experts*=asym' '*.o_proj=8bit')
    args=(); for r in "${rules[@]}"; do args+=(--grid "$r"); done
    forge quantize m out "${small[@]}" --group 8 "${args[@]}"
    check out compressed-tensors 8,sym "${rules[@]}"
    forge repack -q out v2 --layout gptq_v2
    check v2 gptq_v2 8,sym "${rules[@]}"
    forge repack -q v2 ct --layout compressed-tensors
    check ct compressed-tensors 8,sym "${rules[@]}"
    run -78 --separate-stderr forge repack out x --layout awq
    [[ $stderr == *": a checkpoint in layout awq has one group size; compressed-tensors, gptq and gptq_v2 take several" ]]
    [ "$(forge eval out ct --json -q --text "$text" --sequences 1 --seqlen 32 | jq .kl_mean)" = 0 ]
}

@test "GGUF has a type for each tensor" {
    forge quantize "$model" ct "${small[@]}" --group 32 --grid '*.down_proj=64,asym'
    forge quantize "$model" q.gguf "${small[@]}" --layout gguf --grid '*.down_proj=64,asym'
    [ "$(python3 "$tree/tests/reference/ggufs.py" same ct q.gguf)" = "28 linears and 12 other tensors agree" ]
    forge quantize "$model" ct8 "${small[@]}" --group 32 --grid '*.down_proj=64,8bit' --grid '*.o_proj=asym'
    forge quantize "$model" q8.gguf "${small[@]}" --layout gguf --grid '*.down_proj=64,8bit' --grid '*.o_proj=asym'
    [ "$(python3 "$tree/tests/reference/ggufs.py" same ct8 q8.gguf)" = "28 linears and 12 other tensors agree" ]
    run -78 --separate-stderr forge repack ct8 x --layout awq
    [[ $stderr == *"mlp.down_proj has codes of 8 bits: layout awq has 4, and compressed-tensors, gptq, gptq_v2 and gguf have either" ]]
    forge repack -q ct8 r8.gguf --layout gguf
    [ "$(python3 "$tree/tests/reference/ggufs.py" same ct8 r8.gguf)" = "28 linears and 12 other tensors agree" ]
    refused 78 forge quantize "$model" x.gguf "${small[@]}" --layout gguf --grid '*.down_proj=8bit,asym'
    [[ $stderr == *"'model.layers.0.mlp.down_proj' has codes of 8 bits and zero points: blocks of GGUF, Q8_0, have none" ]]
    refused 78 forge quantize "$model" x.gguf "${small[@]}" --layout gguf --grid '*.down_proj=48'
    [[ $stderr == *"in groups of 48: blocks of GGUF have 32 inputs and one scale" ]]
}

@test "refused before any work, by name" {
    no() { # STATUS TEXT ARGUMENT...
        refused "$1" forge quantize "$model" out --method rtn "${@:3}"
        [[ $stderr == *"$2"* ]] || { echo "said: $stderr"; return 1; }
    }
    no 78 "a checkpoint in layout awq has one group size" --layout awq --grid '*.down_proj=32'
    no 78 "down_proj has groups of all inputs, model.layers.0.self_attn.q_proj of 128: " --layout awq --grid '*.down_proj=-1'
    # all linears alike are one group size
    forge quantize "$model" all --method rtn --layout awq --grid '*=32,asym' -q
    [ "$(jq -c '[.quantization_config | .group_size, .zero_point]' all/config.json)" = "[32,true]" ]
    rm -r all
    no 78 "model.layers.0.mlp.down_proj has codes of 8 bits: layout awq has 4" --layout awq --grid '*.down_proj=8bit'
    no 78 "'model.layers.0.mlp.gate_proj' and 'model.layers.0.mlp.up_proj' differ" --grid '*.gate_proj=8bit'
    no 78 "vLLM refuses it asymmetric: use gptq_v2" --layout gptq --grid '*.down_proj=asym'
    no 78 "'model.layers.0.self_attn.q_proj' and 'model.layers.0.self_attn.k_proj' differ: runtimes load both as one matrix" \
        --grid '*.q_proj=32'
    no 78 "'*.up=32' matches none of the linears that are quantized" --grid '*.up=32'
    no 78 "'*.down_proj=32' matches none" --grid '*.down_proj=32' --skip '*.down_proj'
    no 78 "has 256 inputs, no multiple of 96" --grid '*.o_proj=96'
    for bad in '*.down_proj' '=32' '*.down_proj=' '*.down_proj=4' '*.down_proj=32x' '*.down_proj=32;asym' '*.down_proj=5bit' '*.down_proj=8bits' \
        '*.down_proj=32,64' '*.down_proj=8bit,4bit' '*.down_proj=sym,32,asym'; do
        no 64 "want PATTERN=WORD[,WORD]" --grid "$bad"
    done
    run -64 forge-grid --grid x=y
    /usr/bin/python3 "$tree/tests/reference/moe.py" make qwen3_moe-all plain m
    refused 78 forge quantize m out --method rtn --grid '*.experts.3.*=32' --group 16
    [[ $stderr == *"all experts of a layer as one"* ]]
    # a pipe must say that it wants several kinds
    forge-weights -q "$model" | forge-grid -q --grid '*.down_proj=32' | forge-solve -q >codes
    run -78 --separate-stderr forge-pack -q codes
    [[ $stderr == *"a checkpoint has one group size"* ]]
}
