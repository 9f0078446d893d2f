#!/usr/bin/env bats
# Some linears only: forge quantize --modules and --skip, forge-weights' options of that name.

load e2e

check() { python3 "$tree/tests/reference/choice.py" check "$@"; }

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "each layout: what is skipped has its own bytes, and the config says so" {
    forge quantize "$model" whole --method rtn -q
    for layout in compressed-tensors awq gptq gptq_v2; do
        rm -rf out
        forge quantize "$model" out --method rtn --layout $layout -q --skip 'model.layers.1.*' --skip '*.down_proj'
        [ "$(check "$model" out $layout '*' 'model.layers.1.*' '*.down_proj')" = "10 18" ]
        forge verify -q out
        rm -r out
        forge quantize "$model" out --method rtn --layout $layout -q --modules '*.mlp.*' --skip '*.layers.[03].*'
        [ "$(check "$model" out $layout '*.mlp.*' '*.layers.[03].*')" = "22 6" ]
    done
    # those that are quantized are what they are without the options
    forge quantize "$model" some --method rtn -q --modules '*.mlp.*'
    python3 - <<PYTHON
import sys
sys.path.insert(0, "$tree/tests/reference")
from choice import tensors
whole, some = tensors("whole"), tensors("some")
packed = [n for n in some if n.endswith("weight_packed") or n.endswith("weight_scale")]
assert len(packed) == 24 and all(some[n] == whole[n] for n in packed)
PYTHON
}

@test "--method rtn --search absmax: what forge-grid --search absmax and forge-solve would make, without codes in between" {
    for layout in compressed-tensors awq gptq gptq_v2; do
        for kind in --sym --asym; do
            [ $layout$kind != gptq--asym ] || continue
            rm -rf one three work
            forge quantize "$model" one --method rtn --search absmax --group 64 --layout $layout $kind -q --work work --skip '*.down_proj'
            [ -z "$(find work -name '*.fts')" ]
            forge status --json work | jq -e '.state == "complete" and .percent == 100 and .done == 24 and .layers_done == 4' >/dev/null
            forge-weights -q --linears --skip '*.down_proj' "$model" |
                forge-grid -q --search absmax --group 64 ${kind}metric | forge-solve -q --method rtn |
                forge-pack -q --layout $layout ${kind}metric | forge-shard -q --from "$model" --others --skip '*.down_proj' three
            [ "$(check "$model" one $layout '*' '*.down_proj')" = "4 24" ]
            python3 - <<PYTHON
import sys
sys.path.insert(0, "$tree/tests/reference")
from choice import tensors
assert tensors("one") == tensors("three")
PYTHON
            cmp one/config.json three/config.json
        done
    done
    # neither search makes Hessians
    for search in auto absmax; do
        forge quantize "$model" other --method rtn --search $search --dry-run >plan
        grep -Eqx 'memory +about [0-9.]+ MiB' plan
        forge-meter -q -o cost -- forge quantize "$model" other --method rtn --search $search -q
        rm -rf other
        grep -q __asan "$(command -v forge-pack)" || jq -e --arg m "$(sed -nE 's/^memory +about ([0-9.]+) MiB/\1/p' plan)" \
            '.peak_bytes < ($m | tonumber) * 1048576' cost
    done
    forge quantize "$model" file.gguf --method rtn --search absmax --layout gguf -q
    forge quantize "$model" told --method rtn --search absmax --progress json 2>events
    tail -n 1 events | jq -e '.event == "end" and .done == 28 and .total == 28' >/dev/null
}

@test "layers of which nothing is quantized, whatever the method; and again from what is there" {
    for how in "--effort fast" "--effort default" "--effort best" "--propagate original --jobs 2"; do
        for layer in 0 3; do
            rm -rf out again work
            # shellcheck disable=SC2086
            forge quantize "$model" out "${small[@]}" $how --work work --skip "*.layers.$layer.*"
            [ "$(check "$model" out compressed-tensors '*' "*.layers.$layer.*")" = "7 21" ]
            forge status --json work >status
            [ "$(jq -c '[.state, .percent, .total]' status)" = '["complete",100,21]' ]
        done
        # a run that ended after two layers
        rm work/solve-*/codes-[12].fts work/solve-*/report-[12].jsonl
        # shellcheck disable=SC2086
        forge quantize "$model" again "${small[@]}" $how --work work --skip "*.layers.3.*"
        same_tensors out again
    done
}

@test "another choice is another result, by the same calibration" {
    forge quantize "$model" a "${small[@]}" --propagate original --work work
    forge quantize "$model" b "${small[@]}" --propagate original --work work --skip '*.o_proj'
    [ "$(check "$model" b compressed-tensors '*' '*.o_proj')" = "4 24" ]
    forge quantize "$model" c "${small[@]}" --propagate original --work work
    same_tensors a c
    [ "$(find work -name 'solve-*' | wc -l)" -eq 2 ]
    [ "$(find work -name 'calib-*' | wc -l)" -eq 1 ]
}

@test "mixtures: the experts of a layer together, shared ones by themselves" {
    python3 "$tree/tests/reference/forward.py" make deepseek_v3 m
    cp "$model"/tokenizer*.json m
    for layout in compressed-tensors awq gptq; do
        rm -rf out
        forge quantize m out --method rtn --group 16 --layout $layout -q \
            --skip '*.1.mlp.experts.*' --skip '*shared_experts*' --skip '*.q_b_proj'
        check m out $layout - '*.1.mlp.experts.*' '*shared_experts*' '*.q_b_proj'
    done
    rm -r out
    quantize=(forge quantize m out --method rtn --group 16 -q)
    refused 78 "${quantize[@]}" --skip '*.experts.3.*'
    [[ $stderr == *"experts.0.gate_proj' is quantized and "*"experts.3.gate_proj' is not: runtimes load all experts"* ]]
    refused 78 "${quantize[@]}" --skip '*.experts.*.down_proj'
    refused 78 "${quantize[@]}" --skip '*.q_a_proj'
    refused 78 "${quantize[@]}" --skip '*.kv_b_proj' # is not quantized
    [ ! -e out.work ]
    quantize=(forge quantize m out --method rtn --group 8 -q)
    for layout in compressed-tensors awq gptq gptq_v2; do # unless it is asked for
        rm -rf out
        "${quantize[@]}" --layout $layout --modules '*.self_attn.*'
        check m out $layout '*.self_attn.*'
    done
    rm -r out
    "${quantize[@]}" --modules '*' --skip '*.kv_b_proj'
    check m out compressed-tensors -
}

# The same codes in a pipe, in steps, and in a run that goes on; NumPy checks kv_lat in cli/mixtures.
@test "kv_b_proj of latent attention, calibrated on its own inputs" {
    for kind in deepseek_v3 deepseek_v3-direct; do # with and without a query latent
        python3 "$tree/tests/reference/moe.py" make $kind plain m
        way=("${small[@]}" --sequences 16 --group 32 --modules '*')
        figures() { forge eval m "$1" --json --quiet --text "$text" --sequences 8 --seqlen 64 >"$1.json"; }
        forge quantize m nearest "${nearest[@]}" --group 32 --modules '*'
        figures nearest
        for how in "--effort fast" "--effort default" "--effort best" "--propagate original --jobs 2"; do
            # shellcheck disable=SC2086
            forge quantize m out "${way[@]}" $how --work work
            check m out compressed-tensors '*'
            forge verify -q out
            rm work/solve-*/codes-2.fts work/solve-*/report-2.jsonl
            # shellcheck disable=SC2086
            forge quantize m again "${way[@]}" $how --work work
            same_tensors out again
            figures out
            awk -v k="$(figure kl_mean out.json)" -v n="$(figure kl_mean nearest.json)" 'BEGIN {
                print "KL", k, n; exit !(k < n) }'
            rm -r out again work
        done
        for jobs in 1 4; do forge quantize m p$jobs "${way[@]}" --parts 3 --jobs $jobs; done
        same_tensors p1 p4
        FORGE_STEP_COST=0 forge quantize m shared "${way[@]}" --parts 3 --jobs 4 # rows of it in shares
        same_tensors p1 shared
        forge quantize m original "${way[@]}" --parts 3 --jobs 4 --propagate original # at one stop with all
        check m original compressed-tensors '*'
        # without it the calibration is another, and another directory
        forge quantize m out "${way[@]}" --propagate original --work work
        forge quantize m plain "${small[@]}" --group 32 --propagate original --work work
        [ "$(find work -name 'calib-*' | wc -l)" -eq 2 ]
        rm -r m p1 p4 shared original out plain work nearest
    done
}

@test "patterns that cannot be meant are refused before any work" {
    quantize=(forge quantize "$model" out --text "$text" -q)
    refused 78 "${quantize[@]}" --skip q_proj
    [[ $stderr == "forge: --skip: 'q_proj' matches none of the linears that are quantized, such as 'model.layers.0.self_attn.q_proj'" ]]
    refused 78 "${quantize[@]}" --skip '*.o_proj' --modules '*.layers.9.*'
    [[ $stderr == "forge: --modules: '*.layers.9.*' matches none"* ]]
    for one in q k v; do
        refused 78 "${quantize[@]}" --skip "*.2.self_attn.${one}_proj"
        [[ $stderr == *"runtimes load both as one matrix, and want them alike" ]]
    done
    refused 78 "${quantize[@]}" --modules '*.up_proj'
    [[ $stderr == *".up_proj' is quantized and 'model.layers.0.mlp.gate_proj' is not"* ]]
    refused 78 "${quantize[@]}" --skip '*'
    [[ $stderr == *"no linear is left to quantize" ]]
    refused 64 "${quantize[@]}" --skip ''
    refused 64 "${quantize[@]}" --skip "$(printf '%256s' '*' | tr ' ' '*')"
    refused 78 forge-weights -q -o out --skip '*.up' "$model"
    refused 78 forge-weights -q -o out --skip '*.up_proj' "$model"
    # shellcheck disable=SC2046
    refused 64 "${quantize[@]}" $(printf -- '--skip=*.o_proj %.0s' {1..513})
    [ ! -e out.work ]
}

@test "a linear that is skipped need not fit the groups" {
    python3 "$tree/tests/reference/forward.py" make mini m # 80 inputs of down_proj
    cp "$model"/tokenizer*.json m
    refused 78 forge quantize m out --method rtn --group 48 -q
    forge quantize m out --method rtn --group 48 -q --skip '*.down_proj'
    check m out compressed-tensors '*' '*.down_proj'
}

@test "GPTQ of layers that differ: transformers cannot load it, which is said" {
    run -0 --separate-stderr forge quantize "$model" out --method rtn --layout gptq --skip '*.layers.0.*' -n --rate 100
    [[ $stderr == *"warning: --layout gptq: transformers loads it only where the same linears are quantized in all layers"* ]]
    run -0 --separate-stderr forge quantize "$model" out --method rtn --layout gptq --skip '*.down_proj' -n --rate 100
    [[ $stderr != *"transformers loads"* ]]
    [[ $output == *" 24 "* ]]
}

@test "compressed-tensors with experts that are not quantized: transformers cannot load it, which is said" {
    python3 "$tree/tests/reference/forward.py" make qwen3_moe m
    for way in "--skip *.0.mlp.experts.*" "--modules *.self_attn.*"; do
        run -0 --separate-stderr forge quantize m out --method rtn --group 16 "${way% *}" "${way#* }" -n --rate 100
        [[ $stderr == *"warning: --layout compressed-tensors: transformers does not load mixtures with experts that are not"* ]]
    done
    run -0 --separate-stderr forge quantize m out --method rtn --group 16 --skip '*.self_attn.*' -n --rate 100
    [[ $stderr != *"transformers does not load"* ]]
}

@test "forge-weights: --linears and --others share the tensors by the same patterns" {
    how=(--modules '*.mlp.*' --skip '*.down_proj')
    forge-weights -q "${how[@]}" --linears "$model" | forge-ls - >linears
    forge-weights -q "${how[@]}" --others "$model" | forge-ls - >others
    [ "$(grep -c '^weight.*\(gate\|up\)_proj' linears)" -eq 8 ]
    [ "$(wc -l <linears)" -eq 8 ]
    [ "$(grep -c '^weight' others)" -eq 0 ]
    [ "$(cat linears others | wc -l)" -eq "$(forge-ls "$model" | wc -l)" ]
    forge-weights -q "${how[@]}" "$model" | forge-grid -q | forge-solve -q |
        forge-pack -q --layout awq | forge-shard -q --from "$model" piped
    [ "$(check "$model" piped awq '*.mlp.*' '*.down_proj')" = "20 8" ]
}
