#!/usr/bin/env bats
# Families that differ from Llama, and multimodal checkpoints, from end to end.

load e2e
load ../helper/edit

families() { python3 "$tree/tests/reference/families.py" "$@"; }

make_model() { # KIND DIRECTORY
    python3 "$tree/tests/reference/forward.py" make "$1" "$2"
}

# Tokens that a model of 96 has.
setup_file() {
    python3 -c 'import numpy as np; np.save("'"$BATS_FILE_TMPDIR"'/t.npy", np.random.default_rng(3).integers(0, 96, (24, 80)))'
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    few=(--text "$BATS_FILE_TMPDIR/t.npy" --sequences 4 --seqlen 40 --group 16 --quiet)
}

# MODEL LAYOUT: made-MODEL-LAYOUT, verified; list: its tensors
quantized() {
    forge quantize $1 made-$1-$2 "${few[@]}" --layout $2
    forge verify -q made-$1-$2
    forge-shard -q --verify made-$1-$2 --from $1
    forge-ls made-$1-$2 >list
}

# MODEL: 4 of its experts are kept, and run
pruned() {
    forge-calib -q --hitmap $1 <(forge-tokens --sequences 4 --seqlen 40 $1 "$BATS_FILE_TMPDIR/t.npy") >hits.fts
    forge prune $1 pruned --hitmap hits.fts --keep 4 -q
    forge eval --json -q $1 pruned --text "$BATS_FILE_TMPDIR/t.npy" --sequences 4 --seqlen 64 >p.json
}

@test "each family: quantized, verified, nearer to the original than by rounding" {
    for kind in gemma2 gemma3 gemma3n phi3 olmo3 granite ernie4_5 glm4 gpt_oss llama4 granite4 granite4-moe kimi_linear qwen3_next qwen3_5; do
        make_model $kind $kind
        forge quantize $kind out-$kind "${few[@]}"
        forge verify -q out-$kind
        forge quantize $kind rtn-$kind --method rtn --group 16 -q
        forge eval --json -q $kind out-$kind --text "$BATS_FILE_TMPDIR/t.npy" --sequences 8 --seqlen 64 >a.json
        forge eval --json -q $kind rtn-$kind --text "$BATS_FILE_TMPDIR/t.npy" --sequences 8 --seqlen 64 >b.json
        less "$(figure kl_mean a.json)" "$(figure kl_mean b.json)" || { echo "$kind"; cat a.json b.json; return 1; }
    done
}

@test "gradients of what other families do: best is nearer than fast" {
    for kind in gpt_oss llama4 smollm3 gemma2 gemma3 phi3 olmo2 granite granitemoe glm4; do
        make_model $kind $kind
        for effort in fast best; do
            forge quantize $kind $kind-$effort "${few[@]}" --effort $effort
            forge eval --json -q $kind $kind-$effort --text "$BATS_FILE_TMPDIR/t.npy" --sequences 8 --seqlen 64 >$effort.json
        done
        less "$(figure kl_mean best.json)" "$(figure kl_mean fast.json)" || { echo "$kind"; cat best.json fast.json; return 1; }
    done
}

@test "Phi-3's fused linears stay fused, in every layout" {
    make_model phi3 m
    for layout in compressed-tensors awq gptq; do
        forge quantize m out-$layout "${few[@]}" --layout $layout
        forge-ls out-$layout >list
        [ "$(grep -c 'self_attn.qkv_proj' list)" -ge 2 ]
        [ "$(grep -c 'mlp.gate_up_proj' list)" -ge 2 ]
        run ! grep -q '\.\(q\|k\|v\|gate\|up\)_proj' list
    done
}

@test "a model for embeddings: names without model., with a head and without one" {
    make_model qwen3 m
    families bare m flat
    families bare m headless headless
    [ "$(forge-ls headless | grep -c lm_head)" = 0 ]
    for layout in compressed-tensors awq gptq; do
        forge quantize m full-$layout "${few[@]}" --layout $layout
        forge quantize flat out-$layout "${few[@]}" --layout $layout
        families stripped full-$layout out-$layout
        forge verify -q out-$layout
        forge-shard -q --verify out-$layout --from flat
    done
    jq -e '.quantization_config.ignore == ["re:(.*\\.)?lm_head$"]' out-compressed-tensors/config.json
    forge eval -q flat out-awq --text "$BATS_FILE_TMPDIR/t.npy" --sequences 4 --seqlen 64
    forge quantize m full "${few[@]}" --skip '*.layers.1.mlp.down_proj' --grid '*.o_proj=32'
    forge quantize flat out "${few[@]}" --skip '*.layers.1.mlp.down_proj' --grid '*.o_proj=32'
    families stripped full out
    jq -e '.quantization_config.ignore | index("re:(.*\\.)?layers\\.1\\.mlp\\.down_proj$")' out/config.json
    jq -e '.quantization_config.config_groups.group_1.targets == ["re:(.*\\.)?layers\\.[0-9]+\\.self_attn\\.o_proj(\\..*)?$"]' out/config.json
    forge repack out-gptq again --layout awq -q
    families stripped full-awq again

    forge quantize m fast "${few[@]}" --effort fast
    forge quantize headless out-fast "${few[@]}" --effort fast
    families stripped fast out-fast
    forge verify -q out-fast
    forge-shard -q --verify out-fast --from headless
    jq '.architectures = ["Qwen3Model"]' headless/config.json >config && mv config headless/config.json
    # with the modules of sentence-transformers around it
    mkdir headless/1_Pooling headless/2_Dense
    echo '[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "3_Normalize"}]' >headless/modules.json
    echo '{"pooling_mode_lasttoken": true}' | tee headless/1_Pooling/config.json >headless/config_sentence_transformers.json
    cp m/model.safetensors headless/2_Dense
    forge quantize headless rtn --method rtn --group 16
    forge repack rtn rtn-awq --layout awq -q
    for made in rtn rtn-awq; do
        forge verify -q $made
        for name in modules.json config_sentence_transformers.json 1_Pooling 2_Dense; do
            diff -r headless/$name $made/$name
        done
    done
    truncate -s 300M headless/2_Dense/pytorch_model.bin
    run -0 --separate-stderr forge quantize headless large --method rtn --group 16
    [ "$(grep -c "/headless/2_Dense/pytorch_model.bin': will not be copied: " <<<"$stderr")" -eq 1 ]
    sed -i 's/1_Pooling/..\/m/' headless/modules.json
    run -65 --separate-stderr forge quantize headless not --method rtn --group 16
    [[ $stderr == *"'modules.json': '../m' is not allowed as the directory of a module" ]]
    [ ! -e not.work ]
    sed -i 's/..\/m/1_Pooling/' headless/modules.json
    run -78 --separate-stderr forge quantize headless not "${few[@]}" --effort best
    [ "$stderr" = "forge: the model has no output head, so no gradients of what it predicts: take --effort fast" ]
    [ ! -e not ]
    small=(--text "$BATS_FILE_TMPDIR/t.npy" --sequences 4 --seqlen 64)
    for out in out-fast rtn; do
        forge eval --json -q headless $out "${small[@]}" >$out.json
        jq -e '.tokens == 256 and .cosine_mean > 0.9 and .cosine_min < .cosine_mean and (has("ppl") | not)' $out.json
    done
    less "$(figure error_rms out-fast.json)" "$(figure error_rms rtn.json)"
    run -64 --separate-stderr forge eval headless out-fast "${small[@]}" --max-ppl-ratio 2
    [ "$stderr" = "forge: --max-ppl-ratio: the model has no output head, so no predictions to compare" ]
    forge quantize headless run "${few[@]}" --effort fast --work work
    run -64 --separate-stderr forge report work -o page.html "${small[@]}"
    [ "$stderr" = "forge: --text: the model has no output head, so no predictions to compare" ]
    [ ! -e page.html ]
    forge report work -o page.html
}

@test "a multimodal checkpoint: the language model is quantized, the rest stays, names are those of the files" {
    make_model gemma3 gemma
    make_model qwen2 qwen
    families wrap gemma mm-gemma gemma3
    forge quantize gemma alone "${few[@]}"
    forge quantize mm-gemma out "${few[@]}"
    families wrapped alone out mm-gemma language_model.model.
    [ "$(jq -c .text_config out/config.json)" = "$(jq -c .text_config mm-gemma/config.json)" ]
    jq -e '.quantization_config.ignore | index("re:(.*\\.)?vision_tower\\..*")' out/config.json
    jq -e '.quantization_config.ignore | index("re:(.*\\.)?multi_modal_projector\\..*")' out/config.json
    forge verify -q out
    forge-shard -q --verify out --from mm-gemma
    forge eval -q mm-gemma out --text "$BATS_FILE_TMPDIR/t.npy" --sequences 4 --seqlen 64
    make_model qwen3_5 next
    families wrap next mm-next qwen3_5
    forge quantize next alone-next "${few[@]}"
    forge quantize mm-next out-next "${few[@]}"
    families wrapped alone-next out-next mm-next model.language_model.
    forge verify -q out-next
    # and again from what is 4-bit already
    forge repack out again --layout awq -q
    jq -e '.quantization_config.modules_to_not_convert | index("vision_tower")' again/config.json
    forge-ls again | grep -q 'language_model.model.layers.1.mlp.down_proj.qweight'

    make_model qwen3_moe moe
    sed -i 's/"qwen3_moe"/"qwen3_vl_moe_text"/' moe/config.json
    families wrap moe mm-moe qwen3_vl_moe
    forge quantize mm-moe out-moe "${few[@]}"
    forge-ls out-moe | grep -q 'language_model.*mlp.experts.0.down_proj.weight_packed'
    forge verify -q out-moe

    sed -i 's/"qwen2"/"qwen2_5_vl_text"/' qwen/config.json
    families wrap qwen mm-qwen qwen2_5_vl
    forge quantize mm-qwen out-qwen "${few[@]}"
    forge-ls out-qwen | grep -q 'visual.blocks.0.attn.qkv.weight'
    forge verify -q out-qwen
}

@test "what a family does not do yet is refused before any work, by what it has" {
    make_model qwen3_next m
    refused 78 forge quantize m out "${few[@]}" --effort best
    [[ $stderr == *"--effort best: qwen3_next has linear attention"* ]]
    [ ! -e out.work ]
    forge-tokens --sequences 1 --seqlen 8 m "$BATS_FILE_TMPDIR/t.npy" >t.fts
    refused 78 forge-gradient -q -o out m t.fts
    [[ $stderr == *"linear attention"* ]]
    make_model phi3 p
    # a longer text than the short factors are for
    make_model phi3-long l
    refused 78 forge quantize l out --text "$BATS_FILE_TMPDIR/t.npy" --sequences 2 --seqlen 65 --group 16 -q
    [[ $stderr == *"original_max_position_embeddings 64"* ]]
    # text without tokenizer.json; what is there of the tokenizer goes along with ids
    cp "$tree/examples/eval.txt" .
    refused 66 forge quantize p out --text eval.txt --sequences 4 --seqlen 40 --group 16 -q -n
    [[ $stderr == *"'p' has no tokenizer.json"*".npy"* ]]
    echo ranks >p/tiktoken.model
    forge quantize p made "${few[@]}"
    cmp p/tiktoken.model made/tiktoken.model
    sed -i 's/"phi3"/"phi4"/' p/config.json
    refused 78 forge quantize p out "${few[@]}"
    [[ $stderr == *"nearest relative that is: phi3"* ]]
}

@test "a tensor that the model needs is missing, or is not as config.json says: refused before any work" {
    for kind in deepseek_v3 qwen2_moe qwen3_next gemma3n granite4-moe; do
        make_model $kind m
        cp m/model.safetensors kept
        tried=0
        for name in $(python3 -c 'if 1:
            import json, re, struct
            b = open("kept", "rb").read()
            n, = struct.unpack("<Q", b[:8])
            print(*(k for k in json.loads(b[8:8 + n]) if not re.search(r"metadata|layers\.[2-9]|experts\.[1-9]", k)))'); do
            edit m "head['gone'] = head.pop('$name')"
            refused 65 forge quantize m out --method rtn --group 8 -q -n
            [ ! -e out.work ]
            cp kept m/model.safetensors
            tried=$((tried + 1))
        done
        [ $tried -gt 25 ]
        rm -r m
    done
    wrong() { # TEXT PYTHON
        make_model qwen2_moe m
        edit m "$2"
        for method in rtn gptq; do
            refused 65 forge quantize m out --method $method "${few[@]}" -n
            [[ $stderr == *"$1"* ]] || { echo "$stderr"; return 1; }
        done
        rm -r m
    }
    wrong "'lm_head': the weight is 48x96, the config says 96x48" 'head["lm_head.weight"]["shape"].reverse()'
    wrong "'model.embed_tokens.weight' is not [96,48]" 'head["model.embed_tokens.weight"]["shape"].reverse()'
    wrong "'model.layers.1.mlp.gate': the weight is 48x10" 'head["model.layers.1.mlp.gate.weight"]["shape"].reverse()'
    wrong "q_proj.weight': is no matrix of floats" 'head["model.layers.1.self_attn.q_proj.weight"]["dtype"] = "I16"'
    # and sequences that only calibration would refuse
    make_model phi3-long l
    refused 78 forge quantize l out "${few[@]}" --seqlen 65 -n
    [[ $stderr == *"a sequence of 65 tokens"*"original_max_position_embeddings 64"* ]]
    forge quantize l out --method rtn --group 16 -q -n
}

@test "DeepSeek-V3.2 beyond index_topk: sparse attention, the indexer untouched; what a GPU and gradients lack is said" {
    make_model deepseek_v32 m # index_topk 24
    forge quantize m made "${few[@]}"
    forge verify -q made
    forge-ls made >list
    [ "$(grep -c 'indexer\..*BF16' list)" = 20 ] # five tensors in four layers
    jq -e '[.quantization_config.ignore[] | select(test("indexer"))] | length > 0' made/config.json
    forge quantize m rtn --method rtn --group 16 -q
    forge eval --json -q m made --text "$BATS_FILE_TMPDIR/t.npy" --sequences 8 --seqlen 64 >a.json
    forge eval --json -q m rtn --text "$BATS_FILE_TMPDIR/t.npy" --sequences 8 --seqlen 64 >b.json
    less "$(figure kl_mean a.json)" "$(figure kl_mean b.json)"
    refused 78 forge quantize m out "${few[@]}" --effort best
    [[ $stderr == *"--effort best: deepseek_v32 has sparse attention beyond index_topk"* ]]
    refused 69 forge quantize m out "${few[@]}" --device cuda
    [[ $stderr == *"sparse attention beyond index_topk"* ]]
    forge-tokens --sequences 1 --seqlen 25 m "$BATS_FILE_TMPDIR/t.npy" >t.fts
    refused 78 forge-gradient -q -o out.fts m t.fts
    [[ $stderr == *"sparse attention beyond index_topk"* ]]
    forge-tokens --sequences 1 --seqlen 24 m "$BATS_FILE_TMPDIR/t.npy" | forge-gradient -q -o out.fts m
}

@test "gpt-oss: MXFP4 in, experts with gate, up, down and their biases out, in every layout" {
    make_model gpt_oss m
    for layout in compressed-tensors awq gptq gptq_v2; do
        quantized m $layout
        [ "$(grep -c 'experts\.[0-5]\.\(gate\|up\|down\)_proj\.bias' list)" = 54 ] # 3 layers, 6 experts
        run ! grep -q '_blocks\|_scales\|gate_up' list
        [ "$(jq -r .quantization_config.quant_method made-m-$layout/config.json)" != mxfp4 ]
    done
    pruned m
    # codes without their scales
    sed -i 's/down_proj_scales/down_proj_scalez/' m/model.safetensors
    refused 65 forge quantize m out "${few[@]}"
    [[ $stderr == *"down_proj_blocks': there are no scales of it"* ]]
}

@test "Llama 4: experts of one tensor taken apart, in every layout, alone and in a multimodal checkpoint" {
    make_model llama4 m
    forge-ls m >list
    [ "$(grep -c 'experts.gate_up_proj' list)" = 2 ]
    for layout in compressed-tensors awq gptq gptq_v2; do
        quantized m $layout
        [ "$(grep -c 'feed_forward.experts\.[0-5]\.\(gate\|up\|down\)_proj\.\(qweight\|weight_packed\)' list)" = 36 ] # 2 layers, 6 experts
        [ "$(grep -c 'feed_forward.\(shared_expert.\)\?down_proj\.\(qweight\|weight_packed\)' list)" = 4 ]
        [ "$(grep -c 'feed_forward.router.weight.*BF16' list)" = 2 ]
        run ! grep -q gate_up list
    done
    families wrap m mm llama4
    forge quantize mm made-mm "${few[@]}"
    families wrapped made-m-compressed-tensors made-mm mm language_model.model.
    jq -e '.quantization_config.ignore | index("re:(.*\\.)?vision_model\\..*")' made-mm/config.json
    pruned m
    sed -i 's/"moe_layers"/"x"/; s/"interleave_moe_layer_step": 2/"moe_layers": [9, "x"]/' m/config.json
    refused 65 forge quantize m out "${few[@]}"
    [[ $stderr == *"moe_layers: not the number of a layer"* ]]
}

@test "Gemma 3n: layers that share keys, in every layout, in parts, alone and in a multimodal checkpoint" {
    make_model gemma3n m
    for layout in compressed-tensors awq gptq gptq_v2; do
        quantized m $layout
        # six layers, the last three without k and v
        [ "$(grep -c '_proj\.\(qweight\|weight_packed\)' list)" = 36 ]
        [ "$(grep -c '\(altup\|laurel\|per_layer\).*BF16' list)" = 73 ]
        run ! grep -q 'layers.[345].self_attn.[kv]_proj' list
    done
    for jobs in 1 2; do
        forge quantize m parts-$jobs "${few[@]}" --parts 2 --jobs $jobs
    done
    cmp parts-1/model.safetensors parts-2/model.safetensors
    # published checkpoints have k and v of all layers: what nothing reads does not come out
    families wrap m mm gemma3n
    [ "$(forge-ls mm | grep -c 'layers.[345].self_attn.[kv]_proj')" = 6 ]
    forge quantize mm made-mm "${few[@]}"
    families wrapped made-m-compressed-tensors made-mm mm model.language_model.
    forge-shard -q --verify made-mm --from mm
    jq -e '.quantization_config.ignore | index("re:(.*\\.)?vision_tower\\..*")' made-mm/config.json
    refused 78 forge quantize m out "${few[@]}" --effort best
    [[ $stderr == *"--effort best: gemma3n_text has several residual streams"* ]]
    sed -i 's/"num_kv_shared_layers": 3/"num_kv_shared_layers": 6/' m/config.json
    refused 65 forge quantize m out "${few[@]}"
    [[ $stderr == *"num_kv_shared_layers"* ]]
}

@test "Kimi-Linear: the large linears of both attentions in 4 bits, its small ones untouched" {
    make_model kimi_linear m
    for layout in compressed-tensors awq gptq; do
        quantized m $layout
        [ "$(grep -c 'self_attn.\([qkvo]_proj\|kv_a_proj_with_mqa\).\(qweight\|weight_packed\)' list)" = 14 ]
        [ "$(grep -c 'self_attn.\([fg]_[ab]_proj\|b_proj\|[qkv]_conv1d\).weight.*BF16' list)" = 16 ]
        [ "$(grep -c 'block_sparse_moe.experts.[0-5].w[123].\(qweight\|weight_packed\)' list)" = 54 ]
    done
    refused 78 forge quantize m out "${few[@]}" --effort best
    [[ $stderr == *"kimi_linear has linear attention"* ]]
    pruned m
}

@test "Granite 4 and Granite's mixtures: Mamba's linears and the experts in 4 bits, under the names that vLLM loads" {
    for kind in granite4-moe granitemoe; do
        make_model $kind $kind
        forge-ls $kind >list
        grep -q 'block_sparse_moe.input_linear' list
        for layout in compressed-tensors awq gptq; do
            quantized $kind $layout
            names='gate_proj\|up_proj\|down_proj'
            [ $kind = granite4-moe ] || names='w[123]' # as its other loader has it
            n=$(grep -c "block_sparse_moe.experts\.[0-5]\.\($names\)\.\(qweight\|weight_packed\)" list)
            [ "$n" = $((18 * $(jq .num_hidden_layers $kind/config.json))) ] || [ "$n" = 36 ] # two layers if it does not say
            run ! grep -q 'block_sparse_moe.\(in\|out\)put_linear' list
            grep -q 'block_sparse_moe.router.layer.weight.*BF16' list
        done
    done
    forge-ls made-granite4-moe-gptq >list
    [ "$(grep -c 'mamba.\(in\|out\)_proj.qweight' list)" = 4 ]
    [ "$(grep -c 'shared_mlp.\(in\|out\)put_linear.qweight' list)" = 8 ]
    [ "$(grep -c 'mamba.\(conv1d.weight\|A_log\|D\|dt_bias\|norm.weight\).*BF16' list)" = 10 ]
    refused 78 forge quantize granite4-moe out "${few[@]}" --effort best
    [[ $stderr == *"granitemoehybrid has linear attention"* ]]
    pruned granite4-moe
    sed -i 's/"mamba_d_head": 12/"mamba_d_head": 15/' granite4-moe/config.json
    refused 65 forge quantize granite4-moe out "${few[@]}"
    [[ $stderr == *"mamba_d_head 15 do not make mamba_expand 2 times hidden_size"* ]]
}

@test "Qwen3-Next and Qwen3.5: the linears of linear attention in 4 bits, its convolution and gates untouched" {
    for kind in qwen3_next qwen3_5_moe; do
        make_model $kind $kind
        for layout in compressed-tensors awq gptq; do
            quantized $kind $layout
            grep -q 'linear_attn.out_proj.\(qweight\|weight_packed\)' list
            grep -q 'linear_attn.in_proj_qkvz\?.\(qweight\|weight_packed\)' list
            grep -q 'linear_attn.conv1d.weight.*BF16' list
            grep -q 'linear_attn.in_proj_ba\?.weight.*BF16' list
        done
        refused 78 forge quantize $kind out "${few[@]}" --effort best
        [[ $stderr == *" has linear attention"* ]]
    done
    # q, k, v and z are loaded as one
    refused 78 forge quantize qwen3_5_moe out "${few[@]}" --skip '*.in_proj_z'
}
