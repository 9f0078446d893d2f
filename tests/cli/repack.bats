#!/usr/bin/env bats
# forge repack: a 4-bit checkpoint in another layout is what quantizing into that
# layout writes, to the bit (tests/reference/layouts.py, but for the recipe).

bats_require_minimum_version 1.5.0

load ../helper/edit

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    M=$FORGE_TREE/examples/llama-4m
    forge-weights -q "$M" | forge-grid -q | forge-solve -q -o sym
    forge-weights -q "$M" | forge-grid -q --group 32 --asymmetric | forge-solve -q -o asym
    for l in compressed-tensors awq gptq gptq_v2; do
        forge-pack -q --layout $l sym | forge-shard -q --from "$M" sym-$l
        [ $l = gptq ] || forge-pack -q --layout $l asym | forge-shard -q --from "$M" asym-$l
    done
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
    rm -rf out
    reference=$BATS_TEST_DIRNAME/../reference/layouts.py
}

@test "from every layout into every other, to the bit" {
    for kind in sym asym; do
        for from in compressed-tensors awq gptq gptq_v2; do
            [ -d $kind-$from ] || continue
            for to in compressed-tensors awq gptq gptq_v2; do
                [ -d $kind-$to ] || continue
                rm -rf out
                run -0 --separate-stderr forge repack -q $kind-$from out --layout $to
                [ -z "$output$stderr" ]
                /usr/bin/python3 "$reference" same out $kind-$to
                forge verify out >/dev/null
            done
        done
    done
}

@test "torch's tiles of every capability, and back, to the bit" {
    for c in avx512 avx2 default xpu; do
        layout=(int4pack --capability "$c")
        [ $c != xpu ] || layout=(int4pack-xpu)
        for kind in sym-compressed-tensors asym-awq; do
            rm -rf tiles out
            forge repack -q $kind tiles --layout "${layout[@]}"
            forge repack -q tiles out --layout ${kind#*sym-}
            /usr/bin/python3 "$reference" same out $kind
            forge verify tiles >/dev/null
        done
        [ $c = xpu ] || [ "$(jq -r .quantization_config.capability tiles/config.json)" = $c ]
        forge-tokens -q -n 2 -t 64 tiles "$FORGE_TREE/examples/eval.txt" |
            forge-eval -q --json asym-awq tiles >report
        [ "$(jq '.kl_max' report)" = 0 ]
    done
    run -0 forge-ls tiles
    [[ $output == *"o_proj.weight_int4pack"*"I32"* && $output == *"o_proj.zeros"*"I8"* ]]
    rm -rf tiles
}

@test "the capability of the tiles is in the file, by default this machine's" {
    forge repack -q sym-awq tiles --layout int4pack --capability avx2
    head -c 400 tiles/model.safetensors >header
    grep -q '"capability":"avx2"' header
    rm -rf tiles
    [ "$(uname -m)" = x86_64 ] || skip "torch's tiles are known on x86-64 alone"
    want=default
    ! grep -q ' avx2 .*' /proc/cpuinfo || want=avx2
    ! grep -q ' avx512dq .* avx512bw avx512vl' /proc/cpuinfo || want=avx512
    forge repack -q sym-awq tiles --layout int4pack
    [ "$(jq -r .quantization_config.capability tiles/config.json)" = $want ]
    rm -rf tiles
}

@test "what torch's product does not take is refused before any work" {
    M=$FORGE_TREE/examples/llama-4m
    forge-weights -q "$M" | forge-grid -q --group 16 | forge-solve -q |
        forge-pack -q --layout gptq | forge-shard -q --from "$M" small
    run -78 --separate-stderr forge repack small out --layout int4pack
    [[ $stderr == *"group 16: torch's CPU product takes 32, 64, 128 and 256" ]]
    run -78 --separate-stderr forge repack small out --layout int4pack-xpu
    [[ $stderr == *"group 16: torch's XPU product takes multiples of 32" ]]
    run -64 forge repack sym-awq out --layout int4pack --capability sse
    for layout in awq int4pack-xpu gguf; do
        run -64 --separate-stderr forge repack sym-compressed-tensors out --layout $layout --capability avx2
        [ "$stderr" = "forge: --capability is for --layout int4pack" ]
    done
    run -64 --separate-stderr forge repack sym-awq out --layout int4pack --rest stored
    [ "$stderr" = "forge: --rest is for --layout gguf" ]
    run -64 --separate-stderr forge repack sym-awq out --layout gguf --shard-size 1MB
    [ "$stderr" = "forge: --shard-size: --layout gguf is one file" ]
    run -64 forge quantize "$M" out --layout int4pack --method rtn
    # scales near F16's end: 8 - zero times one of them is beyond it
    cp -r asym-awq large
    edit large 't = head["model.layers.2.mlp.up_proj.scales"]["data_offsets"][0]; z = head["model.layers.2.mlp.up_proj.qzeros"]["data_offsets"][0]; data[t:t + 2] = struct.pack("<H", 0x7bff); data[z] &= 0xf0'
    run -78 --separate-stderr forge repack large out --layout int4pack
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"'model.layers.2.mlp.up_proj': of output 0, group 0, the scale times 8 less the zero, 0, is beyond F16"* ]]
    [ ! -e out ]
    rm -rf small large
}

@test "a checkpoint that is not what was written is refused" {
    cp -r sym-gptq bad
    edit bad 'data[-1] ^= 1'
    [ -e bad/forge_checksums.json ]
    run -65 --separate-stderr forge repack bad out --layout awq
    [[ $stderr == *"' is not what was written: if that is wanted, remove forge_checksums.json" ]]
    [ ! -e out ]
    rm bad/forge_checksums.json
    forge repack -q bad out --layout awq
    rm -r bad
}

@test "tiles that are spoilt are refused" {
    run -0 --separate-stderr forge repack sym-awq unmoved --layout int4pack
    [[ $stderr != *"rounded to the scale's type"* ]]
    run -0 --separate-stderr forge repack asym-awq tiles --layout int4pack
    [[ $stderr == *"rounded to the scale's type, as torch's conversion does: weights of "*" linears change"* ]]
    cp -r tiles bad
    edit bad 't = head["model.layers.0.mlp.up_proj.scales_and_zeros"]["data_offsets"][0]; data[t + 2] ^= 1'
    run -65 --separate-stderr forge repack bad out --layout awq
    [[ $stderr == *"what stands for the zero of output 0, group 0 is no multiple of its scale" ]]
    rm -r bad
    cp -r tiles bad
    sed -i 's/"capability": "[a-z0-9]*"/"capability": "sve"/' bad/config.json
    run -78 --separate-stderr forge repack bad out --layout awq
    [[ $stderr == *"capability 'sve' is not supported" ]]
    sed -i 's/"capability": "sve"/"capability": "avx2"/; s/"group_size": 32/"group_size": 48/' bad/config.json
    run -65 forge repack bad out --layout awq
    rm -rf tiles bad
}

@test "what comes out says what came in: KL 0, perplexity equal" {
    forge repack -q asym-awq out --layout compressed-tensors
    forge-tokens -q -n 2 -t 64 asym-awq "$FORGE_TREE/examples/eval.txt" |
        forge-eval -q --json asym-awq out >report
    [ "$(jq '.kl_max' report)" = 0 ]
    [ "$(jq '.ppl == .ppl_original' report)" = true ]
}

# What the config says of groups: of most, of others, and what its name begins with.
groups() { # CHECKPOINT
    jq -c '.quantization_config | if .config_groups then [.config_groups[].weights | .strategy, .group_size]
        else [.group_size, (.dynamic // {} | to_entries[] | .value)] end' "$1/config.json"
}

@test "one group for each row: -1 or a strategy, which loaders take for any number of inputs" {
    M=$FORGE_TREE/examples/llama-4m
    forge quantize -q "$M" rows --method rtn --group 256 --grid '*.down_proj=768' --layout compressed-tensors
    for to in compressed-tensors awq gptq gptq_v2; do
        rm -rf out back again
        forge repack -q rows out --layout $to
        says="[-1]"
        [ $to != compressed-tensors ] || says='["channel",null]'
        [ "$(groups out)" = "$says" ]
        grep -q AutoModelForCausalLM out/README.md
        /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/actorder.py" same rows out
        forge verify out >/dev/null
        forge-shard -q --from "$M" --verify out
        forge-tokens -q -n 2 -t 64 rows "$FORGE_TREE/examples/eval.txt" | forge-eval -q --json rows out >report
        [ "$(jq -c '[.kl_max, .ppl == .ppl_original]' report)" = "[0,true]" ]
        forge repack -q out back --layout compressed-tensors
        /usr/bin/python3 "$reference" same back rows
        forge repack -q out again --layout $to
        [ "$(groups again)" = "$says" ]
    done
    [ "$(groups rows)" = '["channel",null]' ]
    # a row that lost a group is no longer what the config says
    edit out 'head["model.layers.0.mlp.up_proj.scales"]["shape"] = [2, 384]'
    run -65 forge-shard -q --from "$M" --verify out
    rm -rf rows back again
}

@test "one group for each row of some: -1 for those whose number loaders refuse" {
    M=$FORGE_TREE/examples/llama-4m
    of() { # WANT ARGUMENT...
        rm -rf out
        forge quantize -q "$M" out --method rtn --layout gptq "${@:2}"
        [ "$(groups out)" = "$1" ] || { groups out; return 1; }
        forge verify -q out
        forge-shard -q --from "$M" --verify out
    }
    of '[64,{"bits":4,"group_size":-1}]' --group 64 --grid '*.down_proj=768'
    of '[64,{"bits":4,"group_size":-1}]' --group 64 --grid '*.o_proj=256' # Marlin kernels take no 256
    of '[64,{"bits":4,"group_size":128}]' --group 64 --grid '*.o_proj=128'
    of '[256]' --group 256
    of '[-1]' --group 768
    of '[-1,{"bits":8,"group_size":-1}]' --group 256 --grid '*.down_proj=768,8bit'
    of '[-1,{"bits":4,"group_size":64}]' --group 768 --grid '*.o_proj=64'
    of '["group",64,"channel",null]' --group 64 --grid '*.down_proj=768' --layout compressed-tensors
    of '["channel",null,"group",64]' --group 256 --grid '*.down_proj=768' --grid '*.o_proj=64' \
        --layout compressed-tensors
    of '[-1]' --group 256 --grid '*.down_proj=768' --layout awq
    forge quantize -q "$M" some --method rtn --group 64 --grid '*.down_proj=768' --layout gptq
    rm -rf out
    run -78 --separate-stderr forge repack some out --layout awq
    [[ $stderr == *" has groups of "*": a checkpoint in layout awq has one group size; "* ]]
    [ ! -e out ]
    rm -rf some
}

@test "zeros that the first version of GPTQ does not hold are refused before any work" {
    run -78 --separate-stderr forge repack asym-awq out --layout gptq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"model.layers.0."*"vLLM refuses it asymmetric: use gptq_v2, compressed-tensors or, for 4 bits, awq" ]]
    [ ! -e out ]
}

@test "scales that F16 does not hold are refused by module, output and group" {
    cp -r sym-compressed-tensors bf16
    edit bf16 '[t.update(dtype="BF16") for k, t in head.items() if k.endswith("weight_scale")]'
    run -78 --separate-stderr forge repack bf16 out --layout awq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"the scale of output 0, group 0 is "*", which F16 does not hold: awq would change it; compressed-tensors and int4pack have BF16 scales" ]]
    [ ! -e out ]
    forge repack -q bf16 out --layout compressed-tensors
    rm -rf bf16
}

@test "scales in F32 become F16 where that is exact" {
    /usr/bin/python3 - "$BATS_TEST_DIRNAME/../reference" asym-awq wide <<'P'
import json, shutil, struct, sys
sys.path.insert(0, sys.argv[1])
import actorder
shutil.copytree(sys.argv[2], sys.argv[3])
with open(sys.argv[2] + "/model.safetensors", "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
t = {k: (head[k]["dtype"], a) for k, a in actorder.load(sys.argv[2]).items()}
for k, (_, a) in list(t.items()):
    if k.endswith(".scales"):
        t[k] = ("F32", a.astype("<f4"))
actorder.save(sys.argv[3] + "/model.safetensors", t)
P
    rm wide/forge_checksums.json
    for to in awq compressed-tensors int4pack; do
        rm -rf out
        forge repack -q wide out --layout $to
        actorder same out asym-awq
    done
    edit wide 't = head["model.layers.0.mlp.up_proj.scales"]["data_offsets"][0]; data[t] ^= 1'
    rm -rf out
    run -78 --separate-stderr forge repack wide out --layout compressed-tensors
    [[ $stderr == *"which F16 does not hold: compressed-tensors would change it" ]]
    rm -rf wide
}

@test "AutoRound's config around words of GPTQ and AWQ" {
    while read -r kind format method; do
        rm -rf round out
        cp -r $kind round
        rm -f round/forge_checksums.json round/SHA256SUMS round/quantize_config.json
        jq --arg f "$format" --arg m "$method" '.quantization_config |= {quant_method: $m, packing_format: $f, bits: 4,
            group_size, sym: true, data_type: "int", act_bits: 16, block_name_to_quantize: "model.layers",
            extra_config: {lm_head: {bits: 16}}}' $kind/config.json >round/config.json
        forge repack -q round out --layout ${kind#*sym-}
        actorder same out $kind
        forge-tokens -q -n 2 -t 64 $kind "$FORGE_TREE/examples/eval.txt" |
            forge-eval -q --json round out >report
        [ "$(jq '.kl_max' report)" = 0 ]
    done <<'EOF'
sym-gptq auto_round:auto_gptq auto-round
sym-gptq auto_round:auto_gptq intel/auto-round
asym-gptq_v2 auto_round:gptqmodel auto-round
asym-gptq_v2 auto_round auto-round
asym-awq auto_round:auto_awq auto-round
EOF
    while read -r change; do
        jq ".quantization_config += $change" round/config.json >x
        mv round/config.json y
        mv x round/config.json
        rm -rf out
        run -78 --separate-stderr forge repack round out --layout awq
        [ "${#stderr_lines[@]}" = 1 ]
        mv y round/config.json
    done <<'EOF'
{"packing_format":"auto_round:exllamav2"}
{"act_bits":8}
{"data_type":"mx_fp"}
{"bits":3}
EOF
    rm -rf round x
}

# sym-compressed-tensors as others' tools write it: its config changed by jq, its tensors by edit.
foreign() { # JQ [CODE]
    rm -rf foreign out
    cp -r sym-compressed-tensors foreign
    rm foreign/forge_checksums.json foreign/SHA256SUMS
    jq "$1" sym-compressed-tensors/config.json >foreign/config.json
    [ $# = 1 ] || edit foreign "$2"
}

@test "the config of compressed-tensors: names of older tools, and what is no grid of ours" {
    for change in '.compression_config = .quantization_config | del(.quantization_config)' \
        '.quantization_config |= {quant_method: "compressed-tensors", quantization_config: ., sparsity_config: {}}' \
        '.quantization_config.config_groups.group_0 |= del(.format)'; do
        foreign "$change"
        forge repack -q foreign out --layout awq
        actorder same out sym-awq
        [ "$(jq -c '[has("compression_config"), .quantization_config.quant_method]' out/config.json)" = '[false,"awq"]' ]
    done
    foreign '.quantization_config.config_groups.group_0.weights |= (.strategy = "tensor" | .group_size = null)'
    run -78 --separate-stderr forge repack foreign out --layout awq
    [[ $stderr == *"weights.strategy 'tensor' is not supported" ]]
    rm -rf foreign
}

@test "what engines round beside weights is not in OUT, and a warning says so" {
    scales='for k in "k", "v": head[f"model.layers.0.self_attn.{k}_scale"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}; data += struct.pack("<f", 0.5)'
    foreign '.quantization_config.kv_cache_scheme = {num_bits: 8, type: "float"} |
        .quantization_config.config_groups.group_0.input_activations = {num_bits: 8, type: "float"}' "$scales"
    for to in awq compressed-tensors gguf; do
        rm -rf out
        run -0 --separate-stderr forge repack foreign out --layout $to
        [[ $stderr == *"round activations, too (input_activations)"* ]]
        [[ $stderr == *"round keys and values (kv_cache_scheme)"* ]]
        [ $to = gguf ] || [ "$(forge-ls out | grep -c 'self_attn.[kv]_scale')" = 2 ]
    done
    run -0 /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/ggufs.py" same sym-compressed-tensors out
    [ "$output" = "28 linears and 12 other tensors agree" ]
    rm -rf foreign out
}

@test "a quantized head is refused before any work, and goes into GGUF" {
    rm -rf foreign out
    cp -r sym-gptq foreign
    rm foreign/forge_checksums.json foreign/SHA256SUMS
    /usr/bin/python3 - foreign/model.safetensors <<'P'
import json, struct, sys
b = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", b[:8])
head, data = json.loads(b[8:8 + n]), bytearray(b[8 + n:])
rows, cols = head.pop("lm_head.weight")["shape"]
for name, dtype, shape, byte in (("qweight", "I32", [cols // 8, rows], 0x79), ("qzeros", "I32", [cols // 128, rows // 8], 0x77),
                                 ("scales", "F16", [cols // 128, rows], 0x20), ("g_idx", "I32", [cols], 0)):
    size = shape[0] * (shape[1] if len(shape) > 1 else 1) * (2 if dtype == "F16" else 4)
    head["lm_head." + name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
    data += struct.pack("<%di" % cols, *(k // 128 for k in range(cols))) if name == "g_idx" else bytes([byte]) * size
packed = bytearray()
for name in sorted((k for k in head if k != "__metadata__"), key=lambda k: head[k]["data_offsets"]):
    x, y = head[name]["data_offsets"]
    head[name]["data_offsets"] = [len(packed), len(packed) + y - x]
    packed += data[x:y]
h = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(h)) + h + packed)
P
    for to in compressed-tensors awq gptq int4pack; do
        run -78 --separate-stderr forge repack foreign out --layout $to
        [ "${#stderr_lines[@]}" = 1 ]
        [[ $stderr == "forge: 'lm_head.qweight': is quantized, which OUT holds of the layers' linears alone; of a head too in --layout gguf" ]]
        [ ! -e out ]
    done
    forge repack -q foreign out --layout gguf
    rm -rf foreign out
}

# Groups of inputs that lie apart, from NumPy: tests/reference/actorder.py.
actorder() {
    /usr/bin/python3 "$BATS_TEST_DIRNAME/../reference/actorder.py" "$@"
}

@test "act-order: every layout that holds an order of inputs has it, weight by weight" {
    M=$FORGE_TREE/examples/llama-4m
    actorder make "$M" act
    actorder make "$M" acts --sym
    actorder=.quantization_config.config_groups.group_0.weights.actorder
    for kind in act acts; do
        for to in gptq_v2 gptq compressed-tensors int4pack int4pack-xpu; do
            [ $kind$to != actgptq ] || continue
            rm -rf out back
            forge repack -q $kind out --layout $to
            run -0 actorder same $kind out
            [ "$output" = "28 linears agree in every weight" ]
            forge repack -q out back --layout gptq_v2
            actorder same $kind back
            forge verify out >/dev/null
            forge-tokens -q -n 2 -t 64 act "$FORGE_TREE/examples/eval.txt" |
                forge-eval -q --json $kind out >report
            [ "$(jq '.kl_max' report)" = 0 ]
            [ $to != compressed-tensors ] || [ "$(jq -r "$actorder" out/config.json)" = group ]
        done
        [ "$(jq .quantization_config.desc_act back/config.json)" = true ]
    done
    rm -rf back out acts
}

@test "act-order: a layout of runs of inputs is refused by module, before any work" {
    [ -d act ] || actorder make "$FORGE_TREE/examples/llama-4m" act
    run -78 --separate-stderr forge repack act out --layout awq
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *"'model.layers.0.mlp.down_proj': its g_idx mixes groups (desc_act)"*"awq"*"gptq_v2 and int4pack keep an order" ]]
    run -78 --separate-stderr bash -c 'forge-weights -q act | forge-pack -q --layout awq >x'
    [[ $stderr == *"model.layers.0.mlp.down_proj: inputs of a group lie apart (act-order)"* ]]
    # one module of all: the others have no order until --act-order says so
    cp -r sym-gptq one
    rm one/forge_checksums.json
    edit one 't = head["model.layers.1.mlp.down_proj.g_idx"]["data_offsets"][0]; data[t:t + 4], data[t + 512:t + 516] = data[t + 512:t + 516], data[t:t + 4]'
    run -78 --separate-stderr bash -c 'forge-weights -q one | forge-pack -q >x'
    [[ $stderr == *"model.layers.1.mlp.down_proj: "*"pack all of it with --act-order" ]]
    for to in compressed-tensors int4pack gptq; do
        rm -rf out
        forge repack -q one out --layout $to
        actorder same one out
    done
    edit one 't = head["model.layers.1.mlp.down_proj.g_idx"]["data_offsets"][0]; data[t:t + 4] = struct.pack("<i", 0)'
    rm -rf out
    run -78 --separate-stderr forge repack one out --layout int4pack
    [[ $stderr == *"'model.layers.1.mlp.down_proj': its groups have not 128 inputs each, which int4pack needs" ]]
    [ ! -e out ]
    forge repack -q one out --layout compressed-tensors
    actorder same one out
    rm -rf one out act x
}

@test "act-order: groups that are runs of inputs go into every layout" {
    actorder make "$FORGE_TREE/examples/llama-4m" act --trivial
    for to in awq gptq_v2 compressed-tensors int4pack; do
        rm -rf out
        forge repack -q act out --layout $to
        actorder same act out
    done
    run -0 forge-ls out
    [[ $output != *input_perm* ]]
    rm -rf act out
}

@test "a disk without room is refused before any work" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    mkdir -p disk
    size=$(stat -c %s sym-awq/model.safetensors)
    mount -t tmpfs -o size=$((size * 9 / 10)) forge-test disk || skip "no tmpfs"
    for to in compressed-tensors gguf; do
        run -74 --separate-stderr forge repack sym-awq disk/out --layout $to || { umount disk; false; }
        # shellcheck disable=SC2154 # of run
        [[ ${#stderr_lines[@]} -eq 1 && $stderr == "forge: 'disk/out': needs "*" MiB, "*" are free" ]] ||
            { umount disk; echo "$stderr"; false; }
    done
    run -0 forge repack -q sym-awq disk/out --layout gguf --rest q8_0 || { umount disk; false; }
    umount disk
    mount -t tmpfs -o size=$((size * 17 / 10)) forge-test disk # linears are there twice
    run -0 forge repack -q sym-awq disk/out --layout gptq_v2 || { umount disk; false; }
    umount disk
}

# What OUT says of how IN was made: FROM is IN's layout, "" where OUT must say nothing.
told() { # OUT IN FROM STEP...
    /usr/bin/python3 - "$@" <<'P'
import glob, json, struct, sys
out, src, origin, *steps = sys.argv[1:]

def metadata(d):
    said = set()
    for path in glob.glob(d + "/*.safetensors"):
        with open(path, "rb") as f:
            said.add(json.dumps(json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"]))
    one, = said
    return json.loads(one)

def card(d):
    with open(d + "/README.md") as f:
        text = f.read()
    rows = [line.split("|")[1:3] for line in text.split("\n") if line.startswith("| ")]
    return {a.strip(): b.strip() for a, b in rows}, text.split("## How it was made\n\n```\n")[1].split("\n```\n")[0].split("\n")

m, (rows, made) = metadata(out), card(out)
assert m["recipe"].split("; ") == made
facts = ["calibration_text_sha256", "calibration_sequences", "calibration_tokens"]
if origin:
    was, (before, first) = metadata(src), card(src)
    assert all(k in was and m[k] == was[k] for k in facts), m
    assert all(before[k] == rows[k] for k in ("method", "loss", "calibration", "made of")), rows
    assert made == first + steps, made
    assert m["repacked_from"] == origin and rows["repacked"].startswith("from layout " + origin)
else:
    assert not set(m) & {*facts, "repacked_from"} and not set(rows) & {"method", "loss", "calibration", "repacked"}, (m, rows)
    assert made == steps, made
P
}

@test "how the codes were made goes along: recipe, text, method and losses, from layout to layout" {
    M=$FORGE_TREE/examples/llama-4m
    forge quantize -q "$M" q --text "$FORGE_TREE/examples/eval.txt" --sequences 4 --seqlen 64 --effort fast \
        --skip '*.3.mlp.*' --shard-size 1MB
    weights="forge-weights --linears --modules=*"
    forge repack -q q one --layout awq --shard-size 1MB
    told one q compressed-tensors "$weights" "forge-pack --layout=awq"
    grep -qF "$(sha256sum <"$FORGE_TREE/examples/eval.txt" | cut -c1-64)" one/README.md
    forge repack -q one two --layout gptq_v2
    told two one awq "$weights" "forge-pack --layout=gptq_v2"
    # a pipe by hand, and the rest from the original model
    forge-weights -q two | forge-pack -q --layout compressed-tensors | forge-shard -q --from "$M" three
    told three two gptq_v2 forge-weights "forge-pack --layout=compressed-tensors"
    # without the card what is in the files stays
    rm q/README.md
    forge repack -q q four --layout gptq
    [[ "$(head -c 3000 four/model.safetensors | tr -d '\0')" == *"forge-solve --method=gptq --effort=fast"*"calibration_text_sha256"* ]]
    grep -q '^| calibration | 4 sequences, 256 tokens' four/README.md
    run ! grep -q '^| loss' four/README.md
    # new codes of an old checkpoint are not made of its text
    forge-weights -q --dequantize two | forge-grid -q | forge-solve -q | forge-pack -q | forge-shard -q --from "$M" five
    run ! grep -q 'calibration\|repacked' five/README.md
    rm -rf q one two three four five
}

@test "what others say of their codes is not taken for ours, and is text" {
    steps=("forge-weights --linears --modules=*" "forge-pack --layout=awq")
    cp -r sym-gptq foreign
    edit foreign 'head["__metadata__"] = {"format": "pt", "recipe": "forge-x", "calibration_text_sha256": "0" * 64}'
    rm foreign/README.md
    forge repack -q foreign out --layout awq
    told out foreign "" "${steps[@]}"
    edit foreign 'del head["__metadata__"]'
    rm -rf out
    forge repack -q foreign out --layout awq
    told out foreign "" "${steps[@]}"
    # as if it were ours
    edit foreign 'head["__metadata__"] = {"producer": "4bit-forge 9", "layout": "`id`", "recipe": "forge-a --b=1; forge-$(id); forge-c", "calibration_text_sha256": "0" * 63 + "`", "calibration_tokens": "-1"}'
    printf 'Made by 4bit-forge\n\n| method | [x](http://y) |\n| loss | %0300d |\n' 0 >foreign/README.md
    rm -rf out
    forge repack -q foreign out --layout awq
    told out foreign "" "forge-a --b=1" "${steps[@]}"
    edit foreign 'head["__metadata__"]["recipe"] = "; ".join("forge-%d --x=%s" % (i, "y" * 4000) for i in range(5000))'
    rm -rf out foreign/README.md
    forge repack -q foreign out --layout awq
    [ "$(grep -c '^forge-[0-9]' out/README.md)" = 16 ] # 64 KiB
    mkdir foreign/README.md
    forge-weights -q foreign >x
    rm -rf foreign out x
}

@test "wrong use, a model that is not in 4 bits, an output that is there" {
    run -64 forge repack sym-awq out
    run -64 forge repack sym-awq --layout awq
    run -78 --separate-stderr forge repack "$FORGE_TREE/examples/llama-4m" out --layout awq
    [[ $stderr == *"is not in 4 bits; 'forge quantize' makes it so" ]]
    run -66 forge repack nowhere out --layout awq
    mkdir out
    run -73 forge repack sym-awq out --layout awq
    : >model.gguf
    run -66 --separate-stderr forge repack model.gguf out --layout awq
    [ "$stderr" = "forge: 'model.gguf': a file: want a checkpoint's directory" ]
}

@test "names that begin with a dash, behind --" {
    cp -r sym-awq ./-in
    forge repack -q --layout gptq -- -in -out
    forge repack -q --layout gguf -- -in -out.gguf
    forge verify ./-out
    [ -s ./-out.gguf ]
    rm -r -- -in -out -out.gguf
}

@test "forge quantize of a 4-bit checkpoint says forge repack" {
    run -78 --separate-stderr forge quantize sym-awq out --method rtn
    [[ $stderr == *"is quantized to 4 bits already; 'forge repack sym-awq OUT --layout NAME' stores it in another layout" ]]
}
