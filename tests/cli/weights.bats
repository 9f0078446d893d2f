#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-weights as a user meets it.

PY="$BATS_TEST_DIRNAME/../reference/checkpoints.py"
MOE="$BATS_TEST_DIRNAME/../reference/moe.py"

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
}

make_model() { # KIND [DIR]
    python3 "$PY" make "$1" "${2:-m}"
}

# The tool fails with this status and one line that says this.
refused() { # STATUS TEXT ARGUMENT...
    fails "$1" "$2" forge-weights "${@:3}"
}

load cli

@test "safetensors, single and sharded: every tensor, bit for bit" {
    for kind in single sharded; do
        make_model $kind $kind
        forge-weights $kind -o $kind.fts
        python3 "$PY" stream $kind.fts $kind plain
        python3 "$PY" check $kind all
        python3 "$PY" check $kind linear
        python3 "$PY" check $kind bf16
    done
}

@test ".bin, single and sharded: views made contiguous, bit for bit" {
    for kind in bin bin-sharded; do
        make_model $kind $kind
        forge-weights $kind -o $kind.fts
        python3 "$PY" stream $kind.fts $kind plain
        python3 "$PY" check $kind all
        python3 "$PY" check $kind linear
    done
}

@test "4-bit checkpoints: exact parts, and dequantized" {
    for kind in awq gptq gptq_v2 gptq-short gptq-8bit ct-sym ct-asym ct-channel ct-short ct-8bit ct-asym-8bit; do
        make_model $kind $kind
        forge-weights $kind -o $kind.fts
        python3 "$PY" stream $kind.fts $kind parts
        forge-weights --dequantize $kind -o $kind.deq
        python3 "$PY" stream $kind.deq $kind dequantized
        python3 "$PY" check $kind parts
        python3 "$PY" check $kind linear
    done
}

@test "8-bit floats: value times scale, in f32 and rounded once to bf16; no scale shows" {
    for kind in fp8 fp8-bf16 fp8-e8m0 fp8-tensor fp8-ct-tensor fp8-ct-channel fp8-ct-block; do
        python3 "$MOE" make deepseek_v3 $kind $kind
        for how in all linear bf16; do
            python3 "$MOE" check $kind $how
        done
    done
}

@test "experts in one tensor come apart, outputs first or inputs first" {
    for pair in deepseek_v3:fused-oi deepseek_v3:fused-io deepseek_v3:fused-fp8 mixtral:fused-oi mixtral:fused-io; do
        d=${pair/:/-}
        python3 "$MOE" make "${pair%:*}" "${pair#*:}" "$d"
        for how in all linear bf16; do
            python3 "$MOE" check "$d" $how
        done
    done
}

# Change the header and the data of a model's tensors, or its config.
edit() { # DIR PYTHON: sees t (tensors of all files), conf; writes one file
    python3 - "$1" "$2" "$PY" <<'EOF'
import glob, json, os, struct, sys
sys.path.insert(0, os.path.dirname(sys.argv[3]))
import moe, checkpoints as c, numpy as np
d, t = sys.argv[1], {}
for f in glob.glob(d + "/*.safetensors"):
    b = open(f, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    for k, v in json.loads(b[8:8 + n]).items():
        if k != "__metadata__":
            x, y = v["data_offsets"]
            t[k] = (v["dtype"], v["shape"], b[8 + n + x:8 + n + y])
    os.remove(f)
conf = json.load(open(d + "/config.json"))
exec(sys.argv[2])
if os.path.exists(d + "/model.safetensors.index.json"):
    os.remove(d + "/model.safetensors.index.json")
json.dump(conf, open(d + "/config.json", "w"))
c.save_safetensors(d + "/model.safetensors", t)
EOF
}

open_refused() { # STATUS TEXT DIR
    run "-$1" ckdump "$3" /dev/null
    [[ $output == *"$2"* ]] || { echo "said: $output"; return 1; }
    [ "${#lines[@]}" -eq 1 ]
}

@test "8-bit floats whose scale is missing, of another shape or type are refused" {
    python3 "$MOE" make deepseek_v3 fp8 m
    x="model.layers.0.mlp.gate_proj.weight"
    while IFS='|' read -r status text change; do
        rm -rf n
        cp -r m n
        edit n "x = '$x'; s = x + '_scale_inv'; $change"
        open_refused "$status" "$text" n
    done <<'EOF'
65|8-bit floats without a scale (weight_scale_inv or weight_scale)|del t[s]
65|are no scales of 192x160 weights|t[s] = ('F32', [2, 3], bytes(24))
65|are no scales of 192x160 weights|t[s] = ('F32', [4], bytes(16))
65|scales of type I32|t[s] = ('I32', [2, 2], bytes(16))
65|there is no weight of 8-bit floats for it|t[x] = ('BF16', [192, 160], bytes(61440))
78|fmt 'e3m4' is not supported|conf['quantization_config']['fmt'] = 'e3m4'
65|'weight_block_size' is no pair of sizes|conf['quantization_config']['weight_block_size'] = [128]
EOF
    python3 "$MOE" make deepseek_v3 fp8-ct-channel m
    edit m "conf['quantization_config']['config_groups']['group_0']['weights']['num_bits'] = 4"
    open_refused 78 "floats of 4 bits are not read" m
}

@test "8-bit floats without any configuration: the scale decides, or there is none" {
    python3 "$MOE" make deepseek_v3 fp8 m
    edit m "del conf['quantization_config']"
    python3 "$MOE" check m linear
    edit m "t = {k: v for k, v in t.items() if 'scale' not in k}"
    ckdump m out linear model.layers.0.mlp.gate_proj
    python3 - "$PY" <<'EOF'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import moe, checkpoints as c, numpy as np
b = open("m/model.safetensors", "rb").read()
import json, struct
n = struct.unpack("<Q", b[:8])[0]
x, y = json.loads(b[8:8 + n])["model.layers.0.mlp.gate_proj.weight"]["data_offsets"]
want = moe.E4M3[np.frombuffer(b[8 + n + x:8 + n + y], np.uint8)]
assert open("out", "rb").read() == want.tobytes()
EOF
}

@test "experts in one tensor that do not fit each other are refused" {
    python3 "$MOE" make deepseek_v3 fused-oi m
    x="model.layers.1.mlp.experts."
    while IFS='|' read -r text change; do
        rm -rf n
        cp -r m n
        edit n "up, down = '${x}gate_up_proj', '${x}down_proj'; $change"
        open_refused 65 "$text" n
    done <<'EOF'
not both experts.gate_up_proj and experts.down_proj are there|del t[down]
not both experts.gate_up_proj and experts.down_proj are there|del t[up]
are no experts|t[down] = ('BF16', [8, 160, 31], bytes(8*160*31*2))
are no experts|t[down] = ('BF16', [7, 160, 32], bytes(7*160*32*2))
is twice in there|t['model.layers.1.mlp.experts.3.up_proj.weight'] = ('BF16', [1], bytes(2))
EOF
    python3 "$MOE" make deepseek_v3 fused-fp8 m
    edit m "conf['quantization_config']['weight_block_size'] = [48, 32]"
    open_refused 65 "does not fall into the experts' parts" m
}

@test "GPTQ in activation order: with the group of each input, and dequantized" {
    make_model gptq-act
    python3 "$PY" check m linear
    forge-weights --dequantize m -o m.deq
    python3 "$PY" stream m.deq m dequantized
    forge-weights m -o m.fts
    python3 "$PY" stream m.fts m parts
    python3 "$PY" check m parts
}

@test "--layer, --rest, --match and --exclude choose" {
    make_model sharded
    forge-weights --rest m | cat >rest.fts
    [ "$(python3 "$PY" names rest.fts | sort)" = "tensor lm_head.weight
tensor model.embed_tokens.weight
tensor model.norm.weight" ]
    forge-weights --layer 1 m >one.fts
    [ "$(python3 "$PY" names one.fts | wc -l)" -eq 9 ]
    [ "$(python3 "$PY" names one.fts | grep -c 'model\.layers\.1\.')" -eq 9 ]
    forge-weights --layer 0 --rest m >both.fts
    [ "$(python3 "$PY" names both.fts | wc -l)" -eq 12 ]
    forge-weights -l 0 --match '*.q_proj' --match '*norm*' --exclude '*post*' m >some.fts
    [ "$(python3 "$PY" names some.fts | sort)" = "tensor model.layers.0.input_layernorm.weight
weight model.layers.0.self_attn.q_proj" ]
}

@test "--linears and --others divide a model in two" {
    for family in deepseek_v3 mixtral; do
        python3 "$MOE" make $family plain m
        forge-weights -q m -o all
        forge-weights -q --linears m -o a
        forge-weights -q --others m -o b
        forge-ls all >all.list
        forge-ls a >a.list
        forge-ls b >b.list
        run -1 grep -v ^weight a.list
        run -1 grep ^weight b.list
        sort -o all.list all.list
        sort a.list b.list | diff all.list -
    done
}

@test "--share and --shares choose experts" {
    for family in deepseek_v3 mixtral; do
        python3 "$MOE" make $family plain m
        for k in 0 1 2; do
            forge-weights -q --share $k --shares 3 m -o share
            forge-ls share >share.$k
            run ! grep -v '\.experts\.' share.$k
        done
        cut -f 2 share.1 | sed -n 's/.*\.experts\.\([0-9]*\)\..*/\1/p' | sort -u | paste -sd ' ' | grep -x '1 4 7'
        forge-weights -q m -o all
        forge-ls all | grep '\.experts\.' | sort >want
        sort share.? >got
        cmp want got
    done
    run -64 forge-weights --share 3 --shares 3 m
    run -64 forge-weights --share 1 m
}

@test "choosing nothing, or a layer that is not there, is an error" {
    make_model single
    refused 78 "no tensor of the model is chosen" --match '*.nothing' m
    refused 78 "no layer 2 in a model of 2 layers" --layer 2 m
}

@test "rotary tables are left out, and the summary says so" {
    make_model single
    run --separate-stderr forge-weights m -o out.fts
    [ "$status" -eq 0 ]
    [[ $stderr == *"2 rotary tables left out"* ]]
    run ! grep -a inv_freq out.fts
}

@test "equal input gives equal bytes; another checkpoint another fingerprint" {
    make_model single a
    cp -r a b
    forge-weights a -q -o a.fts
    forge-weights b -q -o b.fts
    cmp a.fts b.fts
    make_model awq c
    forge-weights c -q -o c.fts
    [ "$(grep -ao 'xxh3:[0-9a-f]*' a.fts)" != "$(grep -ao 'xxh3:[0-9a-f]*' c.fts)" ]
}

@test "a closed or full output is exit 74, and no file is left" {
    make_model single
    refused 74 "" m -o /dev/full
    run -74 bash -c 'forge-weights m >/dev/full'
    run -73 forge-weights m -o nowhere/out.fts
    [ ! -e nowhere ]
}

@test "an output that is an input, by whatever name, is refused, and stays" {
    cp -r "$FORGE_TREE/examples/llama-4m" in
    ln in/config.json hard
    ln -s in/model.safetensors soft
    cp -r in before
    for out in in/model.safetensors in/config.json hard soft; do
        run -73 --separate-stderr forge-weights -q in -o $out
        [[ $stderr == "forge-weights: 'in/"*"': is the output and an input" ]]
    done
    forge-weights -q in -o w
    cp w before
    run -73 --separate-stderr forge-grid -q -o w w
    [ "$stderr" = "forge-grid: 'w': is the output and an input" ]
    run -73 --separate-stderr forge-grid -q -o w <w
    run -73 --separate-stderr forge-weights -q --join -o w in w
    printf '%s\n' {a..z}{a..z} >before/text
    cp before/text .
    run -73 --separate-stderr forge-tokens -q -n 1 -t 8 in text -o text
    [ "$stderr" = "forge-tokens: 'text': is the output and an input" ]
    run -73 --separate-stderr forge-solve -q --method rtn --report w -o codes w
    [ "$stderr" = "forge-solve: 'w': is the output and an input" ]
    forge-tokens -q -n 1 -t 8 in text -o ids
    for out in in/config.json ids; do
        run -73 --separate-stderr forge-eval -q --report $out in in ids
        [ "$stderr" = "forge-eval: '$out': is the output and an input" ]
    done
    cmp w before/w
    cmp text before/text
    rm before/w before/text
    diff -r in before
    forge-weights -q in -o w # no input: replaced
}

@test "wrong command lines are exit 64" {
    run -64 forge-weights
    run -64 forge-weights a b
    run -64 forge-weights --no-such-option m
    run -64 forge-weights --layer -1 m
    run -64 --separate-stderr forge-weights nowhere -o ''
    [ "$stderr" = "forge-weights: --output: '' is no file" ]
}

@test "what is missing is exit 66, with the names looked for" {
    refused 66 "'nowhere': cannot open" nowhere
    make_model single
    rm m/model.safetensors
    refused 66 "none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json" m
    make_model sharded s
    rm s/model-00002-of-00003.safetensors
    refused 66 "s/model-00002-of-00003.safetensors" s
}

@test "a linear that is missing or has another shape is exit 65" {
    make_model sharded
    sed -i 's/"intermediate_size": 96/"intermediate_size": 112/' m/config.json
    refused 65 "its shape is not 64x112, as config.json says" m
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' m/config.json
    refused 65 "the checkpoint has no 'model.layers.2.self_attn.q_proj.weight'" m
}

@test "4-bit linears of another shape than config.json's are exit 65" {
    make_model awq
    sed -i 's/"intermediate_size": 96/"intermediate_size": 128/' m/config.json
    refused 65 "packed weights, config.json says" m
    refused 65 "packed weights, config.json says" --dequantize m
}

@test "safetensors goes before .bin when both are there" {
    make_model single
    echo rubbish >m/pytorch_model.bin
    forge-weights m -q -o out.fts
    python3 "$PY" stream out.fts m plain
}

@test "a file cut short or with more than it says is exit 65" {
    make_model single
    cp m/model.safetensors whole
    truncate -s -1 m/model.safetensors
    refused 65 "cut short" m
    { cat whole; printf x; } >m/model.safetensors
    refused 65 "more" m
    head -c 7 whole >m/model.safetensors
    refused 65 "no safetensors file" m
    head -c 100 whole >m/model.safetensors
    refused 65 "header of" m
}

@test "headers with wrong offsets, dtypes and shapes are exit 65" {
    make_model single
    f=m/model.safetensors
    python3 "$PY" file $f '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
    refused 65 "'a': the shape is too large" m
    python3 "$PY" file $f '{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}@@@'
    refused 65 "begins at 1" m
    python3 "$PY" file $f '{"a":{"dtype":"Q8","shape":[2],"data_offsets":[0,2]}}@@'
    refused 65 "dtype 'Q8' is not supported" m
    python3 "$PY" file $f '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}@'
    refused 65 "" m
}

@test "an index cannot lead out of the directory, nor lie" {
    make_model sharded
    cp m/model.safetensors.index.json good.json
    for name in ../x.safetensors /etc/x.safetensors sub/x.safetensors -x.safetensors .x.safetensors x.bin .safetensors; do
        sed "s|model-00002-of-00003.safetensors|$name|" good.json >m/model.safetensors.index.json
        refused 65 "is not allowed as the name of a shard" m
    done
    sed 's/"lm_head.weight"/"lm_tail.weight"/' good.json >m/model.safetensors.index.json
    refused 65 "'lm_tail.weight' is not in" m
    sed 's/"lm_head.weight": "model-00001/"lm_head.weight": "model-00002/' good.json >m/model.safetensors.index.json
    refused 65 "tensor 'lm_head.weight' is not in 'model-00002-of-00003.safetensors'" m
    echo '{"weight_map": {}}' >m/model.safetensors.index.json
    refused 65 "weight_map" m
    echo '[' >m/model.safetensors.index.json
    refused 65 "index.json" m
}

@test "tensors that the index does not list are read; twice the same is refused" {
    make_model sharded
    cp m/model.safetensors.index.json good.json
    sed 's/"lm_head.weight": "[^"]*", //' good.json >m/model.safetensors.index.json
    run ! grep -q lm_head m/model.safetensors.index.json
    forge-weights m -q -o out.fts
    python3 "$PY" stream out.fts m plain
    cp good.json m/model.safetensors.index.json
    cp m/model-00001-of-00003.safetensors m/more.safetensors
    sed 's/{"lm_head.weight"/{"x": "more.safetensors", "lm_head.weight"/' good.json >m/model.safetensors.index.json
    refused 65 "is twice in there" m
}

@test "Hugging Face's cache and a link to the directory work" {
    make_model single
    mkdir -p cache/blobs cache/snapshots/1234
    for f in config.json model.safetensors; do
        hash=$(sha256sum m/$f | cut -c1-64)
        cp m/$f cache/blobs/"$hash"
        ln -s ../../blobs/"$hash" cache/snapshots/1234/$f
    done
    ln -s cache/snapshots/1234 link
    forge-weights link -q -o out.fts
    python3 "$PY" stream out.fts m plain
    forge-weights link/ -q | cmp - out.fts
}

@test "links inside the directory work, links that leave it are refused" {
    make_model single
    mv m/model.safetensors m/real
    ln -s real m/model.safetensors
    forge-weights m -q -o out.fts
    python3 "$PY" stream out.fts m plain
    mv m/real outside
    for target in ../outside "$PWD/outside" ../../blobs/../outside /proc/self/fd/0; do
        ln -sf "$target" m/model.safetensors
        refused 65 "out of the directory" m
    done
    ln -sf nothing m/model.safetensors
    refused 66 "what it links to" m
    ln -sf ../../blobs/0123456789012345678901234567890123456789 m/model.safetensors
    refused 66 "what it links to" m
}

@test "what is no regular file is refused and never waited for" {
    make_model single
    rm m/model.safetensors
    mkfifo m/model.safetensors
    refused 65 "not a regular file" m
    rm m/model.safetensors
    mkdir m/model.safetensors
    refused 65 "not a regular file" m
}

@test ".bin files that are refused, and why" {
    make_model bin
    f=m/pytorch_model.bin
    while read -r kind text; do
        python3 "$PY" bin "$kind" $f
        refused 65 "$text" m
    done <<'EOF'
system refuses to run posix.system
big byte order 'big' is not supported
deflated is compressed
beyond reaches beyond the end of its storage
far reaches beyond the end of its storage
huge is much larger than its storage
wide its storage has 16 bytes, 20 are announced
lost its storage is not in the file
legacy the old format of torch.save
tar the oldest format of torch.save
nopickle without data.pkl
EOF
    python3 "$PY" bin good $f
    run -65 forge-weights m
    [[ $output == *"the checkpoint has no"* ]]
    truncate -s -30 $f
    run -65 forge-weights m
    : >$f
    refused 65 "no file of torch.save" m
}

@test "quantizations that are not read are refused by name" {
    make_model gptq
    cp m/config.json good.json
    while read -r from to text; do
        sed "s/$from/$to/" good.json >m/config.json
        refused 78 "$text" m
    done <<'EOF'
"gptq",.*"bits" "bitsandbytes","bits" quant_method 'bitsandbytes' is not supported
"bits":.4 "bits":3 3-bit weights are not read
"checkpoint_format":."gptq" "checkpoint_format":"marlin" checkpoint_format 'marlin' is not supported
EOF
}

@test "quantize_config.json and quant_config.json are read when config.json says nothing" {
    for pair in gptq:quantize_config awq:quant_config; do
        kind=${pair%:*}
        file=${pair#*:}.json
        make_model "$kind" "$kind"
        python3 - "$kind" "$file" <<'EOF'
import json, sys
kind, name = sys.argv[1:]
c = json.load(open(kind + "/config.json"))
q = c.pop("quantization_config")
del q["quant_method"]  # AutoGPTQ and AutoAWQ did not write it
json.dump(q, open(kind + "/" + name, "w"))
json.dump(c, open(kind + "/config.json", "w"))
EOF
        forge-weights "$kind" -q -o out.fts
        python3 "$PY" stream out.fts "$kind" parts
        rm "$kind/$file"
        refused 78 "is packed, but config.json has no quantization_config" "$kind"
    done
}

@test "4-bit parts that are missing or do not fit are exit 65" {
    make_model gptq
    python3 - "$PY" <<'EOF'
import os, pickle, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import checkpoints as c, numpy as np
t, _ = pickle.load(open("m.truth", "rb"))
p = "model.layers.0.self_attn.q_proj."
def put(d, **change):
    os.makedirs(d, exist_ok=True)
    u = dict(t)
    for k, v in change.items():
        u.pop(p + k)
        if v is not None:
            u[p + k] = v
    c.save_safetensors(d + "/model.safetensors", u)
    open(d + "/config.json", "w").write(open("m/config.json").read())
put("zeros", qzeros=None)
put("scales", scales=c.tensor(np.ones((3, 64), np.float16)))
put("shape", qzeros=c.tensor(np.ones((2, 7), np.int32)))
put("index", g_idx=c.tensor(np.full(64, 2, np.int32)))
put("some", g_idx=c.tensor(np.array([-1] * 60 + [0] * 4, np.int32)))
put("length", g_idx=c.tensor(np.zeros(63 - 8, np.int32)))
EOF
    refused 65 "has qweight, but no qzeros" zeros
    refused 65 "do not fit 64x64 weights in groups of 32" scales
    refused 65 "not the zeros of 64 rows in 2 groups" shape
    refused 65 "input 0 in group 2 of 2" index
    refused 65 "input 0 in group -1 of 2" some
    refused 65 "55 entries for 64 inputs" length
}

each_call_fails() {
    for dir in m q; do
        forge-weights -q $dir -o good.fts
        for what in malloc read pread write fsync rename; do
            n=1
            while run --separate-stderr env FAIL=$what:$n LD_PRELOAD="$FAIL_SO" forge-weights -q $dir -o out.fts
            [ "$status" -ne 0 ]; do
                case $what$status in
                malloc75 | *read74 | write74 | fsync74 | rename7[34]) ;;
                *) echo "$what $n: exit $status: $stderr" && return 1 ;;
                esac
                [ "$(wc -l <<<"$stderr")" -eq 1 ]
                # after the rename the directory is synced, which may fail too
                [ ! -e out.fts ] || cmp good.fts out.fts
                rm -f out.fts
                n=$((n + (n < 60 ? 1 : 10)))
            done
            cmp good.fts out.fts
            rm out.fts
        done
    done
}

@test "the n-th read, write or allocation that fails is one clean line" {
    [ -n "$FAIL_SO" ] || skip "not with sanitizers"
    make_model bin-sharded
    make_model gptq q
    (trap - DEBUG; each_call_fails) # as in fail_each
}

@test "--join writes the rows that a hessian names" {
    M=$BATS_TEST_DIRNAME/../../examples/llama-4m
    forge quantize "$M" four --method rtn --quiet
    rows=model.layers.1.mlp.gate_proj.rows-48-144-of-768
    for m in "$M" four; do # as stored; of codes
        mkstream hessian:model.layers.1.mlp_in:F32:3:modules=$rows,model.layers.1.mlp.up_proj.rows-0-48-of-768:samples=3 |
            forge-weights -q --join "$m" >rows.fts
        mkstream hessian:model.layers.1.mlp_in:F32:3:modules=model.layers.1.mlp.gate_proj,model.layers.1.mlp.up_proj:samples=3 |
            forge-weights -q --join "$m" >whole.fts
        python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
whole, rows = ([t for t in fts.read(open(name, "rb")) if t.role == "weight"] for name in ("whole.fts", "rows.fts"))
assert [t.name.rsplit(".", 1)[1] for t in rows] == ["rows-48-144-of-768", "rows-0-48-of-768"]
for a, b, at in zip(whole, rows, (slice(48, 144), slice(0, 48))):
    row = len(a.payload) // 768
    assert tuple(b.shape) == (at.stop - at.start, 256) and a.dtype == b.dtype
    assert bytes(b.payload) == bytes(a.payload)[at.start * row:at.stop * row]
PYTHON
    done
    run -65 --separate-stderr bash -c "mkstream hessian:x:F32:3:modules=model.layers.1.mlp.gate_proj.rows-0-48-of-700:samples=3 |
        forge-weights -q --join '$M' >/dev/null"
    [[ $stderr == *"gate_proj.rows-0-48-of-700': the linear has 768 rows"* ]]
}

@test "--join puts weights behind the hessians of their modules" {
    M=$BATS_TEST_DIRNAME/../../examples/llama-4m
    mkstream tensor:a:F32:2 \
        hessian:model.layers.1.mlp_in:F32:3:modules=model.layers.1.mlp.gate_proj,model.layers.1.mlp.up_proj:samples=3 \
        tensor:b:F32:2 hessian:model.layers.1.mlp_mid:F32:3:modules=model.layers.1.mlp.down_proj:samples=3 -o h.fts
    forge-weights -q --join "$M" h.fts >j.fts
    [ "$(forge-ls j.fts | cut -f 1-2 | tr '\t\n' ' ,')" = "tensor a,hessian model.layers.1.mlp_in,weight model.layers.1.mlp.gate_proj,weight model.layers.1.mlp.up_proj,tensor b,hessian model.layers.1.mlp_mid,weight model.layers.1.mlp.down_proj," ]
    forge-weights -q -l 1 "$M" >w.fts
    for n in gate up down; do
        forge-ls --stats model.layers.1.mlp.${n}_proj w.fts >a
        forge-ls --stats model.layers.1.mlp.${n}_proj j.fts | cmp a
    done
    forge-weights -q --join --exclude '*.up_proj' "$M" <h.fts >j.fts
    [ "$(forge-ls j.fts | grep -c ^weight)" -eq 2 ]
    run -65 --separate-stderr bash -c "mkstream hessian:x:F32:3:modules=m.q:samples=3 |
        forge-weights -q --join '$M' >/dev/null"
    [[ $stderr == *"m.q"* ]]
    run -64 forge-weights --expect-key k "$M"
    run -64 forge-weights "$M" h.fts
}
