#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-prune, and the --expert-map of forge-weights and forge-shard.

PY="$BATS_TEST_DIRNAME/../reference/prune.py"
MOE="$BATS_TEST_DIRNAME/../reference/moe.py"
load cli

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
}

make_model() { # FAMILY [STORAGE]: directory m and its hit maps h
    python3 "$MOE" make "$1" "${2:-plain}" m
    python3 "$PY" hitmaps m h
}

# The tool fails with this status and one line that says this.
refused() { # STATUS TEXT COMMAND...
    fails "$1" "$2" "${@:3}"
}

@test "the kept experts are those that rank highest, as many in each group" {
    for family in deepseek_v3 qwen3_moe mixtral; do
        make_model $family
        for by in tokens mass scores weight reap random; do
            for keep in 4 6 8; do
                forge-prune -q --from m --keep $keep --by $by h >map
                python3 "$PY" map h map m $keep $by
            done
        done
    done
}

@test "random is another choice with another seed, and the same with the same" {
    make_model qwen3_moe
    for seed in 1 2 3 4; do
        forge-prune -q --from m --keep 4 --by random --seed $seed h | forge-ls --head model.layers.1.mlp - >map.$seed
    done
    forge-prune -q --from m --keep 4 --by random --seed 2 <h | forge-ls --head model.layers.1.mlp - | cmp - map.2
    [ "$(sort -u map.1 map.2 map.3 map.4 | wc -l)" -gt "$(sort -u map.1 | wc -l)" ]
}

@test "the checkpoint without the others: experts, router, bias, the layer behind the last, config" {
    for pair in deepseek_v3:plain deepseek_v3:fp8 deepseek_v3:fused-io qwen2_moe:plain mixtral:fused-oi; do
        make_model "${pair%:*}" "${pair#*:}"
        forge-prune -q --from m --keep 4 h -o map
        for mode in prune remap; do
            forge-weights -q m --expert-map map --mode $mode |
                forge-shard -q --from m --expert-map map --mode $mode $mode
            python3 "$PY" pruned m $mode map $mode
        done
        forge-shard -q --verify prune --from m --expert-map map
        [ ! -e prune/expert_map.safetensors ]
        rm -r prune remap
    done
}

@test "--mode remap: the router is whole, and choices of pruned experts count for nothing" {
    while read -r family scale; do
        make_model $family
        for keep in 4 8; do
            forge-prune -q --from m --keep $keep --by mass h -o map
            rm -rf out
            forge-weights -q m --expert-map map --mode remap |
                forge-shard -q --from m --expert-map map --mode remap out
            python3 "$PY" routing m out map $scale
        done
    done <<'END'
deepseek_v3 2.5
qwen3_moe 1
qwen2_moe 0
mixtral 1
END
}

@test "hit maps of a remapped checkpoint count no choice of a pruned expert, experts run or not" {
    python3 "$BATS_TEST_DIRNAME/../reference/forward.py" tokens t 50
    for family in deepseek_v3 qwen3_moe; do
        make_model $family
        forge-prune -q --from m --keep 4 --by mass h -o map
        rm -rf out
        forge-weights -q m --expert-map map --mode remap | forge-shard -q --from m --expert-map map --mode remap out
        forge-calib -q --dtype f32 --hitmap m t >whole
        forge-calib -q --dtype f32 --hitmap out t >full
        forge-calib -q --dtype f32 --hitmap --skip-experts out t >quick
        python3 "$PY" counted whole map full quick
    done
}

@test "forge-eval runs both modes, and says what the map took away" {
    make_model deepseek_v3
    forge-prune -q --from m --keep 4 h -o map
    python3 "$BATS_TEST_DIRNAME/../reference/forward.py" tokens t 50
    for mode in prune remap; do
        forge-weights -q m --expert-map map --mode $mode | forge-shard -q --from m --expert-map map --mode $mode $mode
        run --separate-stderr forge-eval --json m $mode t
        [ "$status" -eq 0 ] || { echo "$stderr"; return 1; }
        [[ $mode == prune || $stderr == *" choices of pruned experts in 100 tokens of all layers, "*" of which lost all"* ]]
    done
    rm remap/expert_map.safetensors
    refused 66 "expert_map.safetensors" forge-eval m remap t
}

@test "work with another map beside the weights is not reused" {
    make_model deepseek_v3
    for i in {1..8}; do echo "{\"input_ids\": [$(seq -s, "$i" $((i + 31)))]}"; done >ids.jsonl
    forge prune m r --keep 4 --mode remap --hitmap h --quiet
    quantized() { # OUT OPTION...
        forge quantize r "$@" --group 16 --effort fast --text ids.jsonl --sequences 8 --quiet
    }
    quantized one --work w
    python3 - r/expert_map.safetensors <<'END'
import struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
at = len(b) - 4 * 8  # the last layer's
row = list(struct.unpack("<8i", b[at:]))
first, second = [i for i, x in enumerate(row) if x >= 0][-2:]
row[first], row[second] = row[second], row[first]
b[at:] = struct.pack("<8i", *row)
open(sys.argv[1], "wb").write(b)
END
    quantized two --work w
    quantized fresh
    cmp two/model.safetensors fresh/model.safetensors
    run ! cmp -s one/model.safetensors two/model.safetensors
}

@test "a map beside the weights that no runtime could apply is refused before any work" {
    make_model deepseek_v3
    printf '{"input_ids": [1, 2, 3, 4]}\n' >ids.jsonl
    forge prune m r --keep 4 --mode remap --hitmap h --quiet
    forge quantize r rq --method rtn --group 16 --quiet
    for dir in r rq; do
        cp -r $dir good
        for damage in cut range twice missing; do
            status=65
            case $damage in
            cut)
                truncate -s -5 $dir/expert_map.safetensors
                text=$dir/expert_map.safetensors
                ;;
            missing)
                rm $dir/expert_map.safetensors
                status=66 text=$dir/expert_map.safetensors
                ;;
            *)
                value=99 text="expert_map.safetensors': layer 2: expert 7 becomes 99 of 4"
                [ $damage = range ] || value=0 text="expert_map.safetensors': layer 2: two experts become 0"
                python3 - $dir/expert_map.safetensors $value <<'END'
import struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
b[-4:] = struct.pack("<i", int(sys.argv[2]))  # the last expert of the last layer
open(sys.argv[1], "wb").write(b)
END
                ;;
            esac
            if [ $dir = rq ]; then
                refused $status "$text" forge repack rq out --layout awq --quiet
            else
                for method in "rtn" "gptq --text ids.jsonl"; do
                    # shellcheck disable=SC2086 # words
                    refused $status "$text" forge quantize r out --group 16 --quiet --method $method
                done
                refused $status "$text" forge-pack -q --check r --group 16
            fi
            [ ! -e out ]
            [ ! -e out.work ]
            rm -r $dir
            cp -r good $dir
        done
        rm -r good
    done
    forge repack rq out --layout awq --quiet
    cmp r/expert_map.safetensors out/expert_map.safetensors
}

@test "pruned and quantized at once" {
    make_model deepseek_v3
    forge-prune -q --from m --keep 4 --by reap h -o map
    for layout in awq gptq compressed-tensors; do
        forge-weights -q m --expert-map map | forge-grid -q --group 32 | forge-solve -q --method rtn |
            forge-pack -q --layout $layout | forge-shard -q --from m --expert-map map --sample 1000 out-$layout
        forge-weights -q out-$layout -o back # config and tensors agree
        refused 65 "" forge-shard --verify out-$layout --from m
    done
}

@test "counts that the router cannot work with are refused" {
    make_model deepseek_v3 # 8 experts in 2 groups, 1 of them used; 2 of a token
    refused 78 "do not make 2 groups of one size: want 4 or 6" forge-prune --from m --keep 5 h
    refused 78 "the 1 groups that a token may use have 1 together, and it wants 2" forge-prune --from m --keep 2 h
    refused 78 "each token wants 2" forge-prune --from m --keep 1 h
    refused 78 "there are 8" forge-prune --from m --keep 9 h
    sed -i 's/"first_k_dense_replace": [0-9]*/"first_k_dense_replace": 9/' m/config.json
    refused 78 "the model has no experts: all its layers are dense" forge-prune --from m --keep 4 h
    python3 "$BATS_TEST_DIRNAME/../reference/checkpoints.py" make single llama
    refused 78 "the model has no experts" forge-prune --from llama --keep 4 h
}

@test "hit maps that are missing, of other experts, or without norms are refused" {
    make_model deepseek_v3
    python3 "$PY" hitmaps m part 1 2
    refused 65 "layer 2 has no hit map" forge-prune --from m --keep 4 part
    sed -i 's/"n_routed_experts": 8/"n_routed_experts": 12/' m/config.json
    refused 65 "a hit map of 8 experts, the model has 12" forge-prune --from m --keep 6 h
    sed -i 's/"n_routed_experts": 12/"n_routed_experts": 8/' m/config.json
    python3 - "$PY" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import fts
t = []
for x in fts.load("h").values():
    a = x.array().copy()
    a[:, 4] = 0
    t.append(fts.Tensor("hitmap", x.name, a))
fts.write(open("cheap", "wb"), t)
END
    refused 78 "--by reap wants the norms" forge-prune --from m --keep 4 --by reap cheap
    python3 - "$PY" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import fts
fts.write(open("old", "wb"), [fts.Tensor("hitmap", x.name, x.array()[:, :5].copy()) for x in fts.load("h").values()])
END
    refused 78 "--by mass wants the scores of all tokens" forge-prune --from m --keep 4 --by mass old
    forge-prune -q --from m --keep 4 --by scores old >got
    forge-prune -q --from m --keep 4 --by scores h >want
    cmp got want
    forge-prune -q --from m --keep 4 --by mass cheap >map
}

@test "a checkpoint that has a map already is refused before a text runs through it" {
    make_model deepseek_v3
    printf '{"input_ids": [1, 2, 3, 4]}\n' >ids.jsonl
    forge-prune -q --from m --keep 4 h -o map
    forge prune m r --keep 6 --mode remap --hitmap h --quiet
    said="has been pruned with a map (expert_map.safetensors)"
    for keep in 4 6; do
        for mode in prune remap; do
            refused 78 "$said" forge prune r out --keep $keep --mode $mode --text ids.jsonl --quiet
            refused 78 "$said" forge prune r out --keep $keep --mode $mode --hitmap h --quiet
            refused 78 "$said" forge quantize r out --keep $keep --mode $mode --text ids.jsonl --group 16 --quiet
        done
        refused 78 "$said" forge-prune --check --from r --keep $keep
        refused 78 "$said" forge-prune --from r --keep $keep h
    done
    refused 78 "$said" forge-weights r --expert-map map -o out
    [ ! -e out ]
    [ ! -e out.work ]
}

@test "a 4-bit checkpoint is refused before a text runs through it" {
    make_model qwen3_moe
    forge-weights -q m | forge-grid -q --group 16 | forge-solve -q | forge-pack -q | forge-shard -q --from m four
    refused 78 "'four': has 4 bits already" forge-prune --check --from four --keep 4
    printf '{"input_ids": [1, 2, 3, 4]}\n' >ids.jsonl
    refused 78 "'four': is quantized to 4 bits already" forge prune four out --keep 4 --text ids.jsonl
    [ ! -e out ]
    forge-prune --check --from m --keep 4
}

@test "maps that do not fit the model are refused" {
    make_model deepseek_v3
    forge-prune -q --from m --keep 4 h -o map
    change() { # PYTHON: m is the map of a layer, i its number
        python3 - "$PY" "$1" <<'END'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import fts, numpy as np
t = []
for x in fts.load("map").values():
    m, i, name = x.array().copy(), int(x.name.split(".")[2]), x.name
    exec(sys.argv[2])
    if m is not None:
        t.append(fts.Tensor("map", name, m))
fts.write(open("bad", "wb"), t)
END
    }
    while IFS='|' read -r status text python; do
        change "$python"
        refused "$status" "$text" forge-weights m --expert-map bad -o out
    done <<'END'
78|layer 2 has experts, but no map|m = None if i == 2 else m
78|layer 0 has a map, but no experts|name = name.replace('.1.', '.0.')
78|the same number in each of 2 groups|m[:] = [0, 1, 2, -1, 3, -1, -1, -1]
65|expert 1 becomes 0, want -1 or 1|m[:] = [0, 0, 1, -1, 2, 3, -1, -1]
65|expert 0 becomes 1, want -1 or 0|m[:] = [1, 0, -1, -1, 2, 3, -1, -1]
65|4 of 6 experts, in other layers 4 of 8|m = m if i == 1 else np.int32([0, 1, 2, 3, -1, -1])
78|the map is of 4 experts, the model has 8|m = np.int32([0, 1, 2, 3])
65|no map of experts in there|m = None
END
    refused 66 "nowhere" forge-weights m --expert-map nowhere -o out
    forge-weights -q m --expert-map map -o w
    refused 65 "" forge-shard --from m out w # without the map it is another model
    refused 65 "" forge-shard --from m --expert-map map --mode remap out w
    [ ! -e out ]
}

@test "equal input gives equal bytes; a cut stream is exit 65, a full disk 74" {
    make_model deepseek_v3
    forge-prune -q --from m --keep 4 h >a
    forge-prune -q --from m --keep 4 - <h | cmp - a
    head -c -20 h >cut
    refused 65 "" forge-prune --from m --keep 4 cut
    refused 65 "" forge-weights m --expert-map cut -o out
    run -74 bash -c 'forge-prune -q --from m --keep 4 h >/dev/full'
    run -0 --separate-stderr forge-prune --from m --keep 4 h -o map
    [[ $stderr == *"4 of 8 experts kept, with "*" % of the choices"* ]]
}

@test "an expert whose output is not finite is named, in one line" {
    python3 "$MOE" make mixtral plain m
    python3 - <<'END'
import json
name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
file = json.load(open("m/model.safetensors.index.json"))["weight_map"][name]
with open("m/" + file, "r+b") as f:
    n = int.from_bytes(f.read(8), "little")
    f.seek(8 + n + json.loads(f.read(n))[name]["data_offsets"][0])
    f.write(bytes.fromhex("c07fc07f"))  # NaNs, of bf16 and f32
END
    printf '%s\n' {a..z}{a..z} >text
    refused 65 "'model.layers.1.mlp.experts.3': its output is not finite" \
        forge prune m x --keep 4 --text text --sequences 2 --seqlen 64 --quiet
    [ ! -e x ]
}

@test "a disk that has no room for what is kept is refused before a text runs through the model" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    make_model deepseek_v3
    forge prune -q m whole --keep 4 --hitmap h
    size=$(cat whole/*.safetensors | wc -c)
    mkdir disk
    mount -t tmpfs -o size=$((size * 19 / 10)) forge-test disk || skip "no tmpfs"
    run -74 --separate-stderr forge prune m disk/out --keep 4 --text m/config.json || { umount disk; false; }
    umount disk
    [[ ${#stderr_lines[@]} -eq 1 && $stderr == "forge: 'disk/out': needs "*"iB, "*" are free" ]]
    mount -t tmpfs -o size=$((size * 2 + (1 << 19))) forge-test disk
    run -0 forge prune -q m disk/out --keep 4 --hitmap h || { umount disk; false; }
    umount disk
}

@test "wrong command lines are exit 64" {
    run -64 forge-prune
    run -64 forge-prune --keep 4
    run -64 forge-prune --from m
    run -64 forge-prune --from m --keep 4 --by beauty
}

@test "forge prune, and forge quantize --keep" {
    make_model deepseek_v3
    forge prune m out --keep 4 --by weight --hitmap h --quiet
    forge-prune -q --from m --keep 4 --by weight h -o map
    python3 "$PY" pruned m out map prune
    forge prune m remap --keep 6 --mode remap --hitmap h --quiet
    [ -e remap/expert_map.safetensors ]
    forge quantize m small --keep 4 --hitmap h --method rtn --group 32 --layout awq --quiet
    grep -q '"n_routed_experts": 4' small/config.json
    [ ! -e small.work ]
    [ "$(echo ./*.map.*)" = "./*.map.*" ]
    # --progress json: of the tools; of quantize its own alone
    forge prune m json --keep 4 --hitmap h --progress json 2>lines
    jq -es '[.[] | select(.event == "end") | .tool] == ["forge-prune", "forge-shard"]' lines
    forge quantize m quantized --keep 4 --hitmap h --method rtn --group 32 --progress json 2>lines >said
    grep -v '^forge: warning: ' lines >objects
    jq -es '([.[] | select(.event)] | length) == 1 and .[-1].status == 0 and .[-1].total == length - 1' objects
    head -c 100 h >cut
    run -65 --separate-stderr forge quantize m x --keep 4 --hitmap cut --method rtn --group 32 --progress json
    jq -e --arg said "${stderr_lines[-1]}" '.status == 65 and $said == "forge: " + .error' <<<"${stderr_lines[-2]}"
    [ ! -e x.work ]
    printf '%s\n' {a..z}{a..z} >text
    forge prune m by-text --keep 4 --by reap --text text --sequences 2 --seqlen 64 --quiet
    forge-tokens -q --sequences 2 --seqlen 64 m text | forge-calib -q m | forge-prune -q --from m --keep 4 --by reap -o map
    python3 "$PY" pruned m by-text map prune
    refused 64 "want --keep K" forge prune m x --hitmap h
    refused 64 "want --text FILE" forge prune m x --keep 4
    refused 66 "no such file" forge prune m x --keep 4 --hitmap nothing
    refused 73 "cannot be created" forge prune m no/where --keep 4 --hitmap h
    refused 73 "exists already" forge prune m out --keep 4 --hitmap h
    refused 78 "do not make 2 groups" forge prune m x --keep 5 --hitmap h
    refused 78 "do not make 2 groups" forge prune m x --keep 5 --text text
    refused 78 "do not make 2 groups" forge-prune --check --from m --keep 5
    run -0 forge-prune --check --from m --keep 4 nothing
    [ -z "$output" ]
    refused 64 "--by: 'luck' is none of" forge quantize m x --keep 4 --by luck --text h
    [ ! -e x ]
    [ ! -e x.work ]
}
