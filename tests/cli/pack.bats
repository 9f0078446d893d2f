#!/usr/bin/env bats
# forge-pack(1) as a user meets it.
# shellcheck disable=SC2154 # run sets stderr

load cli

PY="$BATS_TEST_DIRNAME/../reference/layouts.py"
FTS="$BATS_TEST_DIRNAME/../reference/fts.py"

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

make_stream() { # OUT ARGUMENT... of layouts.py make
    python3 "$PY" make "$@"
}

# forge-pack fails with this status and one line that says this.
refused() { # STATUS TEXT ARGUMENT...
    fails "$1" "$2" forge-pack "${@:3}"
}

config() { # HIDDEN INTERMEDIATE: a llama in directory m
    mkdir -p m
    cat >m/config.json <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
 "hidden_size": $1, "intermediate_size": $2, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
 "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
END
}

@test "codes, zeros and scales are those of the input, symmetric" {
    make_stream x.fts 8x32 64x96 136x160 --group 32
    make_stream p.fts 8x32 136x160 --group 32 --parts
    make_stream b.fts 64x128 --group 64 --bf16
    for layout in compressed-tensors awq gptq gptq_v2; do
        for i in x p b; do
            forge-pack -q --layout $layout $i.fts >$i.out
            python3 "$PY" check $layout $i.fts $i.out
        done
    done
}

@test "codes, zeros and scales are those of the input, asymmetric" {
    make_stream x.fts 8x32 64x96 136x160 --group 32 --asym
    make_stream p.fts 8x32 136x160 --group 32 --asym --parts --bf16
    for layout in compressed-tensors awq gptq_v2; do
        for i in x p; do
            forge-pack -q --layout $layout <$i.fts >$i.out
            python3 "$PY" check $layout $i.fts $i.out
        done
    done
}

# All frames but notes of time and history.
frames() {
    PYTHONPATH=${FTS%/*} python3 - "$@" <<'END'
import sys
import fts
a, b = [[(t.role, t.name, t.dtype, t.shape, t.payload) for t in fts.read(open(p, "rb")) if not t.ancillary]
        for p in sys.argv[1:]]
assert len(a) > 3 and a == b, [x[:4] for x, y in zip(a, b) if x != y]
END
}

@test "--rtn is forge-grid, forge-solve and forge-pack in one, to the bit: layouts, zeros, groups, types" {
    forge-weights -q --layer 0 "$BATS_TEST_DIRNAME/../../examples/llama-4m" >real.fts
    for layout in compressed-tensors awq gptq gptq_v2 int4pack int4pack-xpu; do
        for kind in --symmetric --asymmetric; do
            [ $layout$kind != gptq--asymmetric ] || continue
            for scale in f16 bf16; do
                for group in 128 32; do
                    opt=(--layout "$layout" --capability avx2)
                    forge-grid -q --search absmax $kind --group $group --scale-dtype $scale real.fts | forge-solve -q --method rtn |
                        forge-pack -q $kind "${opt[@]}" >three
                    forge-pack -q --rtn $kind --group $group --scale-dtype $scale "${opt[@]}" real.fts >one
                    frames three one
                done
            done
        done
    done
    forge-pack -q --rtn -j 1 real.fts >one
    forge-pack -q --rtn -j 7 real.fts >seven
    cmp one seven
}

@test "--rtn: what it refuses" {
    forge-weights -q --layer 0 "$BATS_TEST_DIRNAME/../../examples/llama-4m" >real.fts
    refused 64 "--rtn has grids of one kind" --rtn --mixed real.fts
    mkstream weight:m.w:F32:8x64:fill=inf >inf.fts
    refused 65 "'m.w': row 0: input 0 is not finite" -q --rtn -o x inf.fts
    mkstream weight:m.w:F32:64 >vector.fts
    refused 65 "'m.w': a weight is a matrix of floats" -q --rtn -o x vector.fts
    mkstream weight:m.w:F32:8x64:fill=600000 >large.fts
    refused 78 "they need a scale of 80000, and F16 ends at 65504" -q --rtn --group 64 -o x large.fts
    forge-pack -q --rtn --group 64 --scale-dtype bf16 large.fts >ok
    forge-ls --verify -q ok
    head -c 5000 real.fts >cut
    refused 65 "" -q --rtn -o x cut
    [ ! -e x ]
}

@test "codes of 8 bits, where the layout has them" {
    make_stream s.fts 8x32 64x96 136x160 --bits 8
    make_stream p.fts 8x32 136x160 --bits 8 --parts
    make_stream a.fts 8x32 136x160 --bits 8 --asym --parts
    make_stream b.fts 64x128 --bits 8 --asym
    for layout in compressed-tensors gptq_v2; do
        for i in s p a b; do
            forge-pack -q --layout $layout $i.fts >$i.out
            python3 "$PY" check $layout $i.fts $i.out
        done
    done
    forge-pack -q --layout gptq s.fts >s.out
    python3 "$PY" check gptq s.fts s.out
    for layout in awq int4pack int4pack-xpu; do
        refused 78 "m0 has codes of 8 bits: layout $layout has 4, and compressed-tensors" --layout $layout s.fts
    done
    # a grid of other bits than its codes, and codes of two kinds without --mixed
    mkstream codes:m:U8:8x32:group=32 qmeta:m:QMETA4:8x1:group=32,scale=F16 >c.fts
    refused 65 "m: codes of 8 bits, and a grid of others" c.fts
    mkstream codes:m:U8:8x32:group=32 scales:m:F16:8x1:group=32 codes:n:U4:8x32:group=32 scales:n:F16:8x1:group=32 >c.fts
    refused 78 "n has codes of 4 bits, want 8: pack all of it with --mixed" c.fts
    forge-pack -q --mixed c.fts >/dev/null
}

@test "BF16 scales that F16 cannot hold are refused where kernels want F16, by name" {
    make_stream b.fts 64x128 --group 64 --bf16 --parts
    for value in 0x3700:1 0x3600:0 0x4780:0 0xb700:1; do # 2^-17, 2^-19 and more, 65536
        python3 - "$PY" "${value%:*}" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import numpy as np
import fts
out = []
for t in fts.read(open("b.fts", "rb")):
    if t.role == "scales":
        a = np.frombuffer(t.payload, "<u2").copy()
        a[7] = int(sys.argv[2], 16) | (int(sys.argv[2], 16) == 0x3600)
        t.payload = a.tobytes()
    out.append(t)
fts.write(open("v.fts", "wb"), out)
END
        forge-pack -q --layout compressed-tensors v.fts >/dev/null
        for layout in awq gptq gptq_v2; do
            if [ "${value#*:}" = 1 ]; then
                forge-pack -q --layout $layout v.fts >v.out
                python3 "$PY" check $layout v.fts v.out
            else
                refused 78 "m0: the scale of output 3, group 1 is" --layout $layout v.fts
            fi
        done
    done
}

@test "--asymmetric stores zero points of symmetric modules too" {
    make_stream x.fts 8x32 --group 32
    forge-pack -q --asymmetric x.fts >y.fts
    python3 "$PY" check compressed-tensors x.fts y.fts
    forge-ls y.fts | grep -q weight_zero_point
    make_stream a.fts 8x32 --group 32 --asym
    refused 78 "m0 is asymmetric" --layout awq --symmetric a.fts
}

@test "GPTQ may have a short last group, and says who refuses it" {
    make_stream x.fts 16x40 --group 32
    run -0 --separate-stderr bash -c 'forge-pack --layout gptq x.fts >y.fts'
    python3 "$PY" check gptq x.fts y.fts
    [[ $stderr == *"warning: m0: the last group is short"*vLLM*ATEN* ]]
    run -0 --separate-stderr bash -c 'forge-pack -q -l gptq_v2 x.fts >y.fts'
    [ -z "$stderr" ]
    python3 "$PY" check gptq_v2 x.fts y.fts
}

@test "what no runtime loads is refused while packing" {
    make_stream x.fts 16x40 --group 32
    refused 78 "m0 is 16 x 40: awq needs inputs that are a multiple of the group" \
        --layout awq x.fts
    refused 78 "compressed-tensors needs inputs" x.fts
    make_stream x.fts 12x64 --group 32
    refused 78 "12 x 64: gptq needs outputs that are a multiple of 8" -l gptq x.fts
    make_stream x.fts 16x36 --group 32
    refused 78 "16 x 36: gptq needs inputs that are a multiple of 8" -l gptq x.fts
    make_stream x.fts 16x32 --group 32 --asym
    refused 78 "use gptq_v2, compressed-tensors or, for 4 bits, awq" --layout gptq x.fts
    refused 78 "use gptq_v2, compressed-tensors or, for 4 bits, awq" --layout gptq --asymmetric x.fts
    refused 78 "m0 has groups of 32, want 64" --layout awq --group 64 x.fts
}

@test "--check says before the work what no runtime would load" {
    config 256 768
    for layout in compressed-tensors awq gptq gptq_v2; do
        run -0 --separate-stderr forge-pack --layout $layout --group 128 --check m
        [ -z "$stderr" ]
    done
    run -0 forge-pack -q --check m
    [ -z "$output" ]
    config 256 320
    refused 78 "model.layers.0.mlp.down_proj is 256 x 320: awq needs inputs that are a multiple of the group, and 320 is not one of 128; groups that work: 32, 64" \
        --layout awq --check m
    refused 78 "compressed-tensors needs inputs" --check m --group 128
    run -0 --separate-stderr forge-pack --layout awq --group 64 --check m
    [[ $stderr == *"warning"*"320"*Marlin* ]]
    run -0 --separate-stderr forge-pack --layout gptq --check m
    [[ $stderr == *"the last group is short"*GPTQ_TORCH*vLLM* ]]
    run -0 --separate-stderr forge-pack --layout gptq --group 48 --check m
    [[ $stderr == *"group 48 (14 such of 14): no known loader takes this group size in GPTQ"* ]]
    [[ $stderr != *GPTQ_TORCH* ]]
    run -0 --separate-stderr forge-pack --layout gptq --group 320 --check m
    [[ $stderr != *"no known loader"* ]] # one group for each row
    config 52 320
    refused 78 "model.layers.0.self_attn.q_proj is 52 x 52: awq needs outputs that are a multiple of 8" \
        --layout awq --group 32 --check m
    config 256 768
    # transformers leaves the experts of two layouts as they are, and says nothing
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make qwen3_moe plain moe
    for layout in awq gptq; do
        run -0 --separate-stderr forge-pack --layout $layout --group 16 --check moe
        [[ $stderr == *"transformers (5.23) leaves experts"* ]]
    done
    run -0 --separate-stderr forge-pack --group 16 --check moe
    [[ $stderr != *"leaves experts"* ]]
    refused 78 "use gptq_v2" --layout gptq --asymmetric --check m
    run -0 --separate-stderr forge-pack --layout gptq_v2 --asymmetric --check m
    [[ $stderr == *"vLLM refuses asymmetric GPTQ"* ]]
    refused 66 "nowhere" --check nowhere
}

@test "--check prints over how many devices the groups let a model be spread" {
    config 256 768
    [ "$(forge-pack --group 64 --check m)" = "\
linear            inputs  tensor-parallel sizes, group 64
self_attn.o_proj     256  1 2
mlp.down_proj        768  1 2 4
all                       1 2
all with group 128        1 2
all with group 32         1 2" ]
    for f in deepseek_v3 mixtral; do
        python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make $f plain $f
    done
    run -0 --separate-stderr forge-pack --group 32 --check deepseek_v3
    [[ $output == *"mlp.experts.*.down_proj           32  1"* ]]
    [[ $output == *"mlp.down_proj                    192  1 2"* ]]
    run --separate-stderr forge-pack --group 64 --check mixtral
    [ "$status" -eq 78 ]
    [[ $output == *"block_sparse_moe.experts.*.w2      32  none"* ]]
    run forge-pack --group 32 --check mixtral
    [ "$status" -eq 0 ]
    python3 - deepseek_v3/config.json <<'EOF'
import json, sys
c = json.load(open(sys.argv[1]))
c.update(hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_attention_heads=128,
         num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
         v_head_dim=128, n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4)
json.dump(c, open(sys.argv[1], "w"))
EOF
    run -0 --separate-stderr forge-pack --group 128 --check deepseek_v3
    [[ $output == *"mlp.experts.*.down_proj         2048  1 2 4 8 16
all                                   1 2 4 8 16
"* ]]
}

@test "tiles are those that torch made, at every capability" {
    run -0 python3 "$BATS_TEST_DIRNAME/../reference/int4pack.py" check
    [ "$output" = "18 shapes as torch has them" ]
    make_stream x.fts 24x32 --group 32
    refused 78 "m0 is 24 x 32: int4pack needs outputs that are a multiple of 16" --layout int4pack --capability avx2 x.fts
    refused 64 "is none of" --layout int4pack --capability sse x.fts
    make_stream x.fts 32x96 --group 48
    refused 78 "group 48: torch's CPU product takes 32, 64, 128 and 256" --layout int4pack --capability avx2 x.fts
    config 136 256
    refused 78 "is 136 x 136: int4pack needs outputs that are a multiple of 16" --layout int4pack --check m
}

@test "weights that nobody quantized, notes and ancillary frames pass through" {
    mkstream -o x.fts weight:a.b:BF16:2x3 note:a.b:'{"loss":1}' tensor:n:F32:3 \
        activation:z:F32:2x2:ancillary codes:m:U4:8x32:group=32 scales:m:F16:8x1:group=32:fill=1
    forge-pack -q x.fts >y.fts
    run -0 forge-ls y.fts
    [[ ${lines[0]} == *a.b.weight* ]]
    [[ $output == *tensor* && $output == *note* && $output == *activation* ]]
    # if none of the weights has codes, forge-solve is missing
    mkstream -o x.fts weight:a.b:BF16:2x3 tensor:n:F32:3
    refused 65 "no codes: is forge-solve missing?" x.fts
    mkstream tensor:n:F32:3 | forge-pack -q >y.fts
    run -0 forge-ls y.fts
    [[ ${#lines[@]} -eq 1 ]]
}

@test "modules that are not whole are refused" {
    mkstream -o x.fts codes:m:U4:8x32:group=32
    refused 65 "m: want codes with either qmeta or scales" x.fts
    mkstream -o x.fts qmeta:m:QMETA4:8x1:group=32
    refused 65 "m: a grid without codes" x.fts
    mkstream -o x.fts codes:m:U4:8x32:group=32 scales:m:F16:8x2:group=32:fill=1
    refused 65 "cannot have 2 scales" x.fts
    mkstream -o x.fts codes:m:U4:8x32:group=32 scales:m:F16:16x1:group=32:fill=1
    refused 65 "m: grid of 16 x 1 for 8 outputs" x.fts
    mkstream -o x.fts codes:m:U4:8x32 scales:m:F16:8x1:fill=1
    refused 65 "no frame says its group" x.fts
    mkstream -o x.fts codes:m:I8:8x32:group=32 scales:m:F16:8x1:fill=1
    refused 65 "m: codes are I8" x.fts
    mkstream -o x.fts codes:m:U8:8x32:group=32 scales:m:F16:8x1:fill=1 zeros:m:U4:8x1
    refused 65 "m: codes of 8 bits, and a grid of others" x.fts
    mkstream -o x.fts codes:m:U4:8x32:group=32 scales:m:F16:8x1:group=16:fill=1
    refused 65 "scales says groups of 16" x.fts
    mkstream -o x.fts codes:m:U4:8x32:group=32 scales:m:F16:8x1:fill=inf
    refused 65 "m: the scale of output 0, group 0 is not finite in F16" x.fts
}

@test "the same input gives the same bytes, on any number of threads" {
    make_stream x.fts 144x160 272x544 --group 32
    for layout in compressed-tensors awq gptq int4pack int4pack-xpu; do
        forge-pack -q -j 1 --layout $layout x.fts >a.fts
        forge-pack -q -j 2 --layout $layout x.fts >b.fts
        cmp a.fts b.fts
        forge-pack -q --layout $layout -o c.fts x.fts
        cmp a.fts c.fts
    done
}

@test "a stream cut anywhere is exit 65, and the output is no valid stream" {
    make_stream x.fts 8x32 --group 32
    size=$(stat -c %s x.fts)
    for ((n = 0; n < size; n += 97)); do
        run -65 bash -c "head -c $n x.fts | forge-pack -q >y.fts"
        run ! forge-ls --verify -q y.fts
    done
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    make_stream x.fts 64x96 --group 32
    run -74 bash -c 'forge-pack -q x.fts >/dev/full'
}

@test "no GPU: --device cuda is exit 69, auto and cpu work" {
    make_stream x.fts 8x32 --group 32
    refused 69 "no usable device" --device cuda x.fts
    refused 64 "none of" --device cuda:x x.fts
    refused 64 "no size" --gpu-memory lots x.fts
    forge-pack -q --device auto x.fts >a.fts
    forge-pack -q --device cpu x.fts >b.fts
    cmp a.fts b.fts
}

@test "wrong command lines are exit 64 and one line" {
    refused 64 "is none of" --layout marlin
    refused 64 "exclude each other" --symmetric --asymmetric
    refused 64 "one operand too many" a b
    refused 64 "one operand too many" --check m a
    refused 66 "nowhere.fts" nowhere.fts
}

@test "--key is stored, --expect-key refuses another" {
    make_stream x.fts 8x32 --group 32
    forge-pack -q --key one x.fts >y.fts
    python3 "$FTS" check y.fts
    run -65 forge-pack -q --expect-key two y.fts
    run -0 forge-pack -q --expect-key one -o z.fts y.fts
}
