#!/usr/bin/env bats
# forge-shard(1) as a user meets it, on the example model, rounded to nearest.
# shellcheck disable=SC2154 # run sets stderr

load cli

PY="$BATS_TEST_DIRNAME/../reference/layouts.py"

setup_file() {
    export MODEL="$BATS_TEST_DIRNAME/../../examples/llama-4m"
    cd "$BATS_FILE_TMPDIR" || return 1
    forge-weights -q "$MODEL" -o weights
    for grid in symmetric asymmetric; do
        forge-grid -q --$grid <weights | forge-solve -q --method rtn -o $grid
        for layout in compressed-tensors awq gptq_v2; do
            forge-pack -q --layout $layout -o $grid.$layout $grid
        done
    done
    forge-pack -q --layout gptq -o symmetric.gptq symmetric
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    in=$BATS_FILE_TMPDIR
}

shard() {
    forge-shard -q --from "$MODEL" "$@"
}

# Exit status, one line that says this, and neither OUT nor a temporary.
refused() { # STATUS TEXT COMMAND...
    fails "$1" "$2" "${@:3}"
    nothing_left
}

nothing_left() {
    run ! compgen -G 'out*'
}

@test "every layout: written, verified, read back as what was quantized" {
    for i in symmetric.compressed-tensors symmetric.awq symmetric.gptq \
        symmetric.gptq_v2 asymmetric.compressed-tensors asymmetric.awq \
        asymmetric.gptq_v2; do
        shard out "$in/$i"
        forge-shard -q --verify out --from "$MODEL" --sample 28
        forge-shard -q --verify out
        # the codes that forge-weights reads are those that were packed
        forge-weights -q out |
            forge-pack -q --layout "${i#*.}" "--${i%%.*}" -o again
        shard back again
        python3 "$PY" same out back
        rm -rf out back again
    done
}

@test "one run for all files, a pipe and parts in any order give equal bytes" {
    shard one "$in/symmetric.awq"
    forge-pack -q --layout awq <"$in/symmetric" | shard two
    for part in "--layer 1" "--rest" "--layer 3" "--layer 0" "--layer 2"; do
        # shellcheck disable=SC2086
        forge-weights -q $part "$MODEL" | forge-grid -q --symmetric |
            forge-solve -q --method rtn | forge-pack -q --layout awq \
            -o "p${part// /}"
    done
    shard three p--layer3 p--rest p--layer0 p--layer2 p--layer1
    diff -r one two
    python3 "$PY" same one three # which was made in parts, as its card says
    shard three-again p--layer1 p--layer2 p--rest p--layer0 p--layer3
    diff -r three three-again
    shard -j 1 four "$in/symmetric.awq"
    diff -r one four
}

@test "shards of a size, an index, the same tensors" {
    shard one "$in/symmetric.gptq"
    [ -e one/model.safetensors ]
    [ ! -e one/model.safetensors.index.json ]
    shard --shard-size 1MB out "$in/symmetric.gptq"
    [ ! -e out/model.safetensors ]
    n=$(find out -name 'model-*.safetensors' | wc -l)
    [ "$n" -gt 2 ]
    for i in out/model-*.safetensors; do
        [ "$(stat -c %s "$i")" -lt $((1200 * 1024)) ]
        [[ $i == *-of-$(printf %05d "$n").safetensors ]]
    done
    python3 - <<'END'
import json, struct, glob
index = json.load(open("out/model.safetensors.index.json"))
total, seen = 0, {}
def header(f):
    n, = struct.unpack("<Q", open(f, "rb").read(8))
    assert n % 8 == 0
    h = json.loads(open(f, "rb").read(8 + n)[8:])
    assert h.pop("__metadata__")["format"] == "pt"
    return h
for f in glob.glob("out/*.safetensors"):
    for name, t in header(f).items():
        seen[name] = f[4:]
        b, e = t["data_offsets"]
        total += e - b
        assert b % {"I64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2}[t["dtype"]] == 0
assert seen == index["weight_map"]
assert total == index["metadata"]["total_size"]
assert set(seen) == set(header("one/model.safetensors"))
END
    forge-shard -q --verify out --from "$MODEL"
    run -64 forge-shard --shard-size 5parsec --from "$MODEL" x
    run -64 forge-shard --shard-size 0 --from "$MODEL" x
}

# Whether some of what the process keeps of its pipe is given back.
gives_back() { # PID
    for fd in /proc/"$1"/fd/*; do
        [[ $(readlink "$fd") == *"/stdin (deleted)" ]] || continue
        read -r blocks size < <(stat -Lc '%b %s' "$fd")
        ((blocks < size / 512 * 7 / 8))
        return
    done
    false
}

has_shards() { # N
    [ "$(find . -path './piped.tmp.*/model-*' | wc -l)" -ge "$1" ]
}

within_30_s() { # COMMAND...
    for ((k = 0; k < 3000; k++)); do
        ! "$@" || return 0
        sleep 0.01
    done
    false
}

@test "the shards of a pipe are written while it goes on" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain experts
    for MODEL in "$MODEL" experts; do
        # in the order of layers, as forge-quantize(1) has it
        for ((i = 0; i < $(jq .num_hidden_layers "$MODEL/config.json"); i++)); do
            forge-weights -q --linears --layer $i "$MODEL"
        done | cat - <(forge-weights -q --others "$MODEL") |
            forge-grid -q --symmetric --group 32 | forge-solve -q --method rtn |
            forge-pack -q --layout awq -o in
        size=$(stat -c %s in)
        shard --shard-size $((size / 32)) files in
        n=$(find files -name 'model-*-of-*' | wc -l)
        [ "$n" -gt 8 ]
        mkfifo pipe
        forge-shard -q --from "$MODEL" --in-order --shard-size $((size / 32)) \
            piped <pipe &
        pid=$!
        exec 9>pipe
        head -c $((size - 4096)) in >&9
        # not those of the last layer, and of what lies outside the layers
        within_30_s has_shards 5
        if fallocate -l 64K hole && fallocate -p -l 64K hole; then
            within_30_s gives_back $pid
        fi
        tail -c 4096 in >&9
        exec 9>&-
        wait $pid
        diff -r files piped
        rm -r files piped pipe
    done
}

@test "--others: what is no linear is the source's, with the same bytes" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain experts
    for MODEL in "$MODEL" experts; do
        for choice in '' --skip=*.o_proj; do
            for ((i = 0; i < $(jq .num_hidden_layers "$MODEL/config.json"); i++)); do
                forge-weights -q ${choice:+"$choice"} --linears --layer $i "$MODEL"
            done | forge-grid -q --symmetric --group 32 | forge-solve -q --method rtn -o codes
            forge-weights -q ${choice:+"$choice"} --others "$MODEL" -o others
            cat codes others | forge-pack -q --layout awq -o whole
            forge-pack -q --layout awq codes -o linears
            bytes=$(stat -c %s whole)
            # in one file, in two, in many
            for size in $((4 * bytes)) $((bytes * 9 / 10)) $((bytes / 24)); do
                shard --shard-size "$size" all whole
                shard --shard-size "$size" --others ${choice:+"$choice"} file linears
                cat linears | shard --shard-size "$size" --others ${choice:+"$choice"} --in-order pipe
                diff -r all file
                diff -r all pipe
                forge-verify -q pipe
                rm -r all file pipe
            done
        done
    done
}

@test "--others of the source are written while the linears come" {
    forge-weights -q --linears "$MODEL" | forge-grid -q --symmetric | forge-solve -q --method rtn |
        forge-pack -q --layout awq -o in
    embedding=$(jq '.vocab_size * .hidden_size * 2' "$MODEL/config.json")
    mkfifo pipe
    forge-shard -q --from "$MODEL" --others --in-order --shard-size "$embedding" piped <pipe &
    pid=$!
    exec 9>pipe
    # not the last layer: what fills a shard with the others is enough
    head -c $(($(stat -c %s in) * 3 / 4)) in >&9
    written() { [ -n "$(find . -path './piped.tmp.*/model-*' -size +$((embedding - 1))c)" ]; }
    within_30_s written
    tail -c +$(($(stat -c %s in) * 3 / 4 + 1)) in >&9
    exec 9>&-
    wait $pid
    # numbered last, whenever they were written
    jq -r '.weight_map["model.embed_tokens.weight"]' piped/model.safetensors.index.json >where
    jq -r '.weight_map["model.layers.3.mlp.up_proj.qweight"]' piped/model.safetensors.index.json >before
    [[ $(cat before) < $(cat where) ]]
}

@test "--others of pruned experts: routers are cut as forge-weights cuts them" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain experts
    MODEL=experts
    forge-tokens -q --sequences 2 --seqlen 32 "$MODEL" "$BATS_TEST_DIRNAME/../../examples/calib.jsonl" |
        forge-calib -q --hitmap "$MODEL" | forge-prune -q --from "$MODEL" --keep 4 -o map
    forge-weights -q --expert-map map --linears "$MODEL" | forge-grid -q --symmetric --group 32 |
        forge-solve -q --method rtn -o codes
    forge-weights -q --expert-map map --others "$MODEL" -o others
    cat codes others | forge-pack -q --layout awq -o whole
    forge-pack -q --layout awq codes -o linears
    shard --expert-map map all whole
    shard --expert-map map --others file linears
    diff -r all file
}

@test "--others of a 4-bit source, or with them in the stream, are refused" {
    shard four "$in/symmetric.awq"
    forge-weights -q --linears --modules '*mlp*' four | forge-pack -q --layout awq -o some
    fails 78 "not among those to be packed" forge-shard -q --from four --others --modules '*mlp*' out some
    refused 65 "came twice" forge-shard -q --from "$MODEL" --others out "$in/symmetric.awq"
    refused 64 "are for --others" forge-shard -q --from "$MODEL" --skip '*.o_proj' out "$in/symmetric.awq"
}

@test "layers in another order: the same shards; --in-order: the same tensors" {
    for part in "--layer 3" "--layer 0" "--rest" "--layer 2" "--layer 1"; do
        # shellcheck disable=SC2086
        forge-weights -q $part "$MODEL" | forge-grid -q --symmetric |
            forge-solve -q --method rtn | forge-pack -q --layout awq
    done >parts
    cat parts | shard --shard-size 200KB out
    cat parts | shard --shard-size 200KB --in-order other
    shard --shard-size 200KB files "$in/symmetric.awq"
    python3 "$PY" same files out # made in parts, as its card says
    run ! cmp -s other/model.safetensors.index.json files/model.safetensors.index.json
    cmp other/forge_checksums.json files/forge_checksums.json
    forge-shard -q --verify other --from "$MODEL"
}

@test "a pipe that fails behind written shards leaves nothing" {
    size=$(stat -c %s "$in/symmetric.awq")
    for n in $((size / 2)) $((size - 4096)) $((size - 1)); do
        run -65 bash -c "head -c $n '$in/symmetric.awq' |
            forge-shard -q --from '$MODEL' --shard-size 200KB out"
        nothing_left
    done
    # one that is there twice, in shards that are written
    run -65 --separate-stderr bash -c "cat '$in/symmetric.awq' '$in/symmetric.awq' |
        forge-shard -q --from '$MODEL' --shard-size 200KB out"
    [[ $stderr == *"came twice"* ]]
    nothing_left
}

@test "config: everything kept, quantization_config replaced" {
    cp -r "$MODEL" m
    python3 - <<'END'
import json
c = json.load(open("m/config.json"))
c["quantization_config"] = {"old": [1, "}", {"a": "\\\""}]}
c["compression_config"] = {}
c["odd \" name"] = [1e-5, {"nested": "a, b: {"}, None]
c["zz_last"] = 1.0
json.dump(c, open("m2.json", "w"), indent=None)
END
    shard a "$in/symmetric.compressed-tensors"
    python3 - a/config.json "$MODEL/config.json" compressed-tensors <<'END'
import json, sys
new, old = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
q = new.pop("quantization_config")
assert list(new.items()) == list(old.items())
assert q["quant_method"] == sys.argv[3] and q["quantization_status"] == "compressed"
assert q["ignore"] == ["lm_head"]
w = q["config_groups"]["group_0"]["weights"]
assert w["group_size"] == 128 and w["symmetric"] is True
END
    rm m/config.json
    cp m2.json m/config.json
    run -78 forge-weights m
    for f in tokenizer.json tokenizer_config.json generation_config.json; do
        cmp "$MODEL/$f" a/$f
    done
    shard g "$in/symmetric.gptq"
    python3 - <<'END'
import json
c = json.load(open("g/config.json"))["quantization_config"]
assert c == json.load(open("g/quantize_config.json"))
assert c["checkpoint_format"] == c["format"] == "gptq" and c["sym"] is True
assert c["bits"] == 4 and c["group_size"] == 128 and c["desc_act"] is False
END
}

@test "linears that stay plain are listed" {
    for layout in awq gptq compressed-tensors; do
        { forge-weights -q "$MODEL" --exclude '*.down_proj' |
            forge-grid -q --symmetric | forge-solve -q --method rtn |
            forge-pack -q --layout $layout -o a
          forge-weights -q "$MODEL" --match '*.down_proj' -o b; }
        shard $layout a b
        forge-shard -q --verify $layout --from "$MODEL"
    done
    python3 - <<'END'
import json
names = ["lm_head"] + [f"model.layers.{i}.mlp.down_proj" for i in range(4)]
def q(d):
    return json.load(open(d + "/config.json"))["quantization_config"]
assert q("awq")["modules_to_not_convert"] == names
assert q("compressed-tensors")["ignore"] == ["lm_head", r"re:.*\.mlp\.down_proj$"]
g = q("gptq")
assert list(g["dynamic"]) == [r"-:^model\.layers\.[0-9]+\.mlp\.down_proj$"]
assert g["dynamic"] == q("awq")["dynamic"]
assert len(g["modules_in_block_to_quantize"]) == 6
END
}

@test "mixtures: all layouts, every storage; what stays plain is said to each loader" {
    moe="$BATS_TEST_DIRNAME/../reference/moe.py"
    round() { # MODEL LAYOUT OUT
        forge-weights -q "$1" | forge-grid -q --symmetric --group 32 |
            forge-solve -q --method rtn | forge-pack -q --layout "$2" |
            forge-shard -q --from "$1" "$3"
    }
    for pair in deepseek_v3:plain deepseek_v3:fp8 deepseek_v3:fused-io mixtral:fused-oi qwen2_moe:plain qwen3_moe:plain; do
        d=${pair/:/-}
        python3 "$moe" make "${pair%:*}" "${pair#*:}" "$d"
        for layout in awq gptq compressed-tensors; do
            round "$d" $layout "$d-$layout"
            forge-shard -q --verify "$d-$layout" --from "$d" --sample 1000
        done
    done
    for layout in awq gptq compressed-tensors; do # one model, three storages
        cmp deepseek_v3-plain-$layout/model.safetensors deepseek_v3-fused-io-$layout/model.safetensors
    done
    python3 - <<'END'
import json
def q(d):
    return json.load(open(d + "/config.json"))["quantization_config"]
for d in ("deepseek_v3-plain", "deepseek_v3-fp8"):
    assert q(d + "-compressed-tensors")["ignore"] == [
        "lm_head", r"re:.*\.self_attn\.kv_b_proj$", r"re:.*\.mlp\.gate$", r"re:model\.layers\.3\..*"], q(d + "-compressed-tensors")
    assert q(d + "-awq")["modules_to_not_convert"] == ["lm_head", "model.layers.0.self_attn.kv_b_proj",
        "model.layers.1.mlp.gate", "model.layers.1.self_attn.kv_b_proj",
        "model.layers.2.mlp.gate", "model.layers.2.self_attn.kv_b_proj", "model.layers.3."]
    want = [r"-:^model\.layers\.[0-9]+\.self_attn\.kv_b_proj$", r"-:^model\.layers\.[0-9]+\.mlp\.gate$",
            r"-:^model\.layers\.3(\..*)?$"]
    assert list(q(d + "-gptq")["dynamic"]) == list(q(d + "-awq")["dynamic"]) == want
    assert "modules_in_block_to_quantize" not in q(d + "-gptq")
b = open("deepseek_v3-fp8-awq/model.safetensors", "rb").read()
head = json.loads(b[8:8 + int.from_bytes(b[:8], "little")])
assert not [k for k in head if "weight_scale" in k]
assert {v["dtype"] for k, v in head.items() if k != "__metadata__"} == {"I32", "F16", "BF16", "F32"}
assert "model.layers.2.block_sparse_moe.experts.7.w2.qweight" in str(open("mixtral-fused-oi-awq/model.safetensors", "rb").read(1 << 18))
END
}

@test "mixtures: the experts of a layer are of one kind; all plain is one entry" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make qwen3_moe plain m
    some() { # --exclude or --match GLOB: quantize the rest
        { forge-weights -q m --exclude "$1" | forge-grid -q --group 32 |
            forge-solve -q --method rtn | forge-pack -q --layout "$2" -o a
          forge-weights -q m --match "$1" -o b; }
    }
    some '*.experts.3.*' awq
    run --separate-stderr forge-shard --from m out a b
    [ "$status" -eq 65 ]
    [[ $stderr == *"no runtime loads experts of two kinds"* ]]
    some '*.2.mlp.experts.*' gptq
    forge-shard -q --from m gptq a b
    some '*.2.mlp.experts.*' awq
    forge-shard -q --from m awq a b
    some '*.k_proj' compressed-tensors
    run --separate-stderr forge-shard --from m ct a b
    [ "$status" -eq 0 ]
    [[ $stderr == *"q_proj and model.layers.0.self_attn.k_proj: one is quantized and the other is not"* ]]
    python3 - <<'END'
import json
def q(d):
    return json.load(open(d + "/config.json"))["quantization_config"]
assert q("awq")["modules_to_not_convert"][-1] == "model.layers.2.mlp.experts"
assert list(q("gptq")["dynamic"])[-1] == r"-:^model\.layers\.2\.mlp\.experts(\..*)?$"
END
}

@test "nothing quantized: a plain checkpoint, with the source's tensors" {
    shard out "$in/weights"
    run ! grep -q quantization_config out/config.json
    forge-shard -q --verify out --from "$MODEL"
    forge-weights -q out | forge-ls - | sort >a
    forge-weights -q "$MODEL" | forge-ls - | sort >b
    [ -s a ]
    diff a b
}

@test "what was packed wrongly is found, and not published" {
    for good in symmetric.awq symmetric.gptq asymmetric.compressed-tensors; do
        python3 "$PY" spoil nibbles "$in/$good" bad
        refused 65 "the codes are not those of these weights" shard out bad
        python3 "$PY" spoil scales "$in/$good" bad
        refused 65 "the scales are not those of these weights" shard out bad
        python3 "$PY" spoil groups "$in/$good" bad
        refused 65 "the scales are not those of these weights" shard out bad
        python3 "$PY" spoil nan "$in/$good" bad
        refused 65 "has a value that is not finite" shard out bad
        python3 "$PY" spoil drop "$in/$good" bad
        refused 65 "is missing" shard out bad
        python3 "$PY" spoil extra "$in/$good" bad
        refused 65 "'model.layers.0.extra' is extra" shard out bad
        case $good in
        *compressed*|*gptq) ;;
        *) python3 "$PY" spoil zeros "$in/$good" bad
            refused 65 "the zero points are off" shard out bad ;;
        esac
    done
}

@test "every tensor of the source has to come: the first that does not is named, and how many" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain experts
    local name order
    for MODEL in "$MODEL" experts; do
        without() { # GLOB TEXT
            cat linears <(forge-weights -q --others --exclude "$1" "$MODEL" | forge-pack -q --layout awq) >in
            refused 65 "$2" shard out in
        }
        forge-weights -q --linears "$MODEL" | forge-grid -q --symmetric --group 32 |
            forge-solve -q --method rtn | forge-pack -q --layout awq -o linears
        forge-weights -q --others "$MODEL" | forge-ls --json - | jq -r .name >names
        # one of each kind, of the first layer that has it and of the last
        for order in '' r; do
            sed 's/\.[0-9]*\./.#./g' names | paste - names | sort -k 1,1 -k "2,2V$order" | sort -us -k 1,1 | cut -f 2
        done | sort -u >kinds
        while read -r name; do
            without "$name" "'$name'"
            [[ $stderr == *" is missing"* && $stderr != *" more" ]]
        done <kinds
        without '*layernorm*' "' of the source is missing, and $(($(grep -c layernorm names) - 1)) more"
    done
}

@test "a few huge weights are no sign of wrong packing, and do not hide it" {
    cp -r "$MODEL" m
    python3 - <<'END'
import json, struct
import numpy as np
b = bytearray(open("m/model.safetensors", "rb").read())
n, = struct.unpack("<Q", b[:8])
t = json.loads(b[8:8 + n])["model.layers.1.mlp.down_proj.weight"]
lo, hi = (8 + n + x for x in t["data_offsets"])
w = np.frombuffer(bytes(b[lo:hi]), "<u2").reshape(t["shape"]).copy()
w[:, ::512] = 0x461c # 9984
b[lo:hi] = w.tobytes()
open("m/model.safetensors", "wb").write(b)
END
    forge-tokens -q -n 8 -t 128 m "$BATS_TEST_DIRNAME/../../examples/calib.jsonl" |
        forge-calib -q m | forge-hessian -q -o H
    forge-weights -q m | forge-grid -q --hessian H | forge-solve -q --hessian H -o codes
    for layout in awq compressed-tensors; do
        forge-pack -q --layout $layout codes -o packed
        forge-shard -q --from m --sample 28 out packed
        rm -r out
        for how in nibbles scales groups; do
            python3 "$PY" spoil $how packed bad
            refused 65 "are not those of these weights" forge-shard -q --from m --sample 28 out bad
        done
    done
}

@test "--verify finds damage in a directory" {
    shard out --shard-size 1MB "$in/symmetric.awq"
    cp -r out whole
    printf x >>out/model-00002-of-*.safetensors
    run -65 --separate-stderr forge-shard --verify out
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    rm -r out
    cp -r whole out
    sed -i 's/"total_size": [0-9]*/"total_size": 5/' out/model.safetensors.index.json
    run -65 --separate-stderr forge-shard --verify out
    [[ $stderr == *"the index says 5 bytes"* ]]
    rm -r out
    cp -r whole out
    sed -i '/layers.2.mlp.up_proj.scales/d' out/model.safetensors.index.json
    run -65 --separate-stderr forge-shard --verify out
    [[ $stderr == *"layers.2.mlp.up_proj.scales"*"not in the index"* ]]
    rm -r out
    cp -r whole out
    rm out/model-00001-of-*.safetensors
    run ! forge-shard -q --verify out
    run -66 forge-shard --verify nowhere
    run -64 forge-shard --verify whole operand
}

@test "streams that do not belong together are refused" {
    forge-pack -q --layout gptq_v2 -o x "$in/symmetric"
    refused 65 "packed as gptq_v2" shard out "$in/symmetric.awq" x
    refused 65 "came twice" shard out "$in/symmetric.awq" "$in/symmetric.awq"
    refused 65 "run forge-pack first" shard out "$in/symmetric"
    forge-weights -q --layer 0 "$MODEL" -o x
    refused 65 "is missing" shard out x
    mkstream -o x hessian:h:F32:3:samples=1
    refused 65 "hessian has no place in a checkpoint" shard out x
}

@test "OUT must not be there, or be empty" {
    mkdir out full
    touch full/x file
    shard out "$in/symmetric.awq"
    [ -e out/config.json ]
    run -73 --separate-stderr shard full "$in/symmetric.awq"
    [[ $stderr == *"'full': exists and is not empty"* ]]
    run -73 --separate-stderr shard out "$in/symmetric.awq"
    run -73 --separate-stderr shard file "$in/symmetric.awq"
    run -73 --separate-stderr shard none/out "$in/symmetric.awq"
    run ! compgen -G '*.tmp.*'
    shard new/ "$in/symmetric.awq"
    [ "$(stat -c %a new)" = "$(stat -c %a full)" ]
    [ "$(ls new)" = "$(printf '%s\n' README.md SHA256SUMS config.json \
        forge_checksums.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json)" ]
}

@test "a stream cut anywhere leaves nothing" {
    size=$(stat -c %s "$in/symmetric.awq")
    for n in 0 63 1000 $((size / 2)) $((size - 4096)) $((size - 1)); do
        head -c "$n" "$in/symmetric.awq" >short
        refused 65 "" shard out short
        refused 65 "" shard out <short
    done
}

@test "a failure upstream is said, and leaves nothing" {
    run -78 --separate-stderr bash -c \
        "mkstream tensor:x:F32:3 'error:78:tool: why' | forge-shard --from '$MODEL' out"
    [ -z "$stderr" ] # it was said there
    nothing_left
    mkstream tensor:x:F32:3 'error:78:tool: why' >kept
    run -78 --separate-stderr forge-shard --from "$MODEL" out kept
    [[ $stderr == *"tool: why"* ]]
    rm kept
    nothing_left
}

@test "a full disk is exit 74 and leaves nothing" {
    run -74 bash -c "ulimit -f 1000; forge-shard -q --from '$MODEL' out '$in/symmetric.awq'"
    nothing_left
    run -74 bash -c "ulimit -f 1000; cat '$in/symmetric.awq' | forge-shard -q --from '$MODEL' out"
    nothing_left
}

@test "killed at any time: no OUT, or a whole one" {
    for ((n = 1; n <= 20; n++)); do
        forge-shard -q --from "$MODEL" out "$in/symmetric.awq" &
        pid=$!
        sleep "0.00$((RANDOM % 10))$((RANDOM % 10))"
        kill -KILL $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        if [ -e out ]; then
            forge-shard -q --verify out --from "$MODEL"
            rm -r out
        fi
        rm -rf out.tmp.*
    done
}

@test "SIGTERM removes what was written" {
    mkfifo pipe
    forge-shard -q --from "$MODEL" out <pipe &
    pid=$!
    exec 9>pipe
    head -c 100000 "$in/symmetric.awq" >&9
    until compgen -G 'out.tmp.*' >/dev/null; do sleep 0.01; done
    kill -TERM $pid
    rc=0
    wait $pid || rc=$?
    exec 9>&-
    [ "$rc" -eq 143 ]
    nothing_left
}

@test "whichever call fails: one line, nothing published" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "no fail.so in this mode"
    for kind in malloc write fsync rename; do
        for ((n = 1; n <= 20000; n += 1 + n / 16)); do
            rc=0
            FAIL=$kind:$n LD_PRELOAD=$FAIL_SO forge-shard -q -j 1 --sample 1 \
                --from "$MODEL" --shard-size 1MB out \
                < <(cat "$in/symmetric.awq") 2>err || rc=$?
            [ "$rc" -ne 0 ] || break
            [[ $rc =~ ^(73|74|75)$ ]] || { echo "$kind:$n: exit $rc"; cat err; return 1; }
            [ "$(wc -l <err)" -eq 1 ]
            # of the parent, after the rename: whole, but perhaps not for good
            if [ -e out ]; then
                [ $kind = fsync ]
                forge-shard -q --verify out
                rm -r out
            fi
            nothing_left
        done
        [ "$rc" -eq 0 ] || { echo "$kind: exit $rc"; cat err; return 1; }
        [ "$n" -gt 1 ]
        rm -r out
    done
}

@test "wrong command lines are exit 64 and one line" {
    refused 64 "want --from MODEL" forge-shard out x
    refused 64 "want OUT" forge-shard --from "$MODEL"
    refused 66 "nowhere" shard out nowhere
    refused 66 "nowhere" forge-shard -q --from nowhere out "$in/symmetric.awq"
}
