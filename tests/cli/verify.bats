#!/usr/bin/env bats
# What a finished checkpoint says of itself - digests, metadata, card - and
# forge-verify(1), which checks it.
# shellcheck disable=SC2154 # run sets stderr

bats_require_minimum_version 1.5.0

setup_file() {
    local tree="$BATS_TEST_DIRNAME/../.."
    cd "$BATS_FILE_TMPDIR" || return 1
    cp -r "$tree/examples/llama-4m" model
    cp "$tree/examples/calib.jsonl" text
    printf -- '---\nlicense: other\nlicense_name: own\nlanguage:\n- de\n- fr\ntags:\n- old\nmodel-index:\n- name: x\n---\nOld words.\n' \
        >model/README.md
    printf 'Terms.\n' >model/LICENSE
    forge-tokens -q -n 4 -t 64 model text -o tokens
    forge-calib -q model tokens | forge-hessian -q -o H
    forge-weights -q model | forge-grid -q --hessian H |
        forge-solve -q --hessian H --report report -o codes
    forge-pack -q --layout awq codes -o packed
    forge-shard -q --from model --shard-size 1200KB whole packed
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    in=$BATS_FILE_TMPDIR
    cp -r "$in/whole" out
}

# forge-verify says no, and names this file and thing.
found() { # FILE TEXT [ARGUMENT...]
    run -1 --separate-stderr forge-verify "${@:3}" out
    grep -qF "'$1': " <<<"$output" || { echo "said: $output"; return 1; }
    grep -qF "$2" <<<"$output" || { echo "said: $output"; return 1; }
    [[ $stderr == *"not as it was written" ]]
}

@test "a file that cannot be read is not called missing" {
    [ "$(id -u)" -eq 0 ] || skip "not root"
    cp -r out denied
    chmod a+rx . denied
    chmod 000 denied/model*.safetensors
    run -66 --separate-stderr setpriv --reuid 65534 --clear-groups "$(command -v forge)" verify denied
    [[ $stderr == *": Permission denied" && ${#stderr_lines[@]} -eq 1 ]]
    rm -rf denied
}

@test "sha256sum reads the digests; every tensor's hash is its bytes'" {
    (cd out && sha256sum --quiet --strict -c SHA256SUMS)
    [ "$(wc -l <out/SHA256SUMS)" -eq "$(($(ls out | wc -l) - 1))" ]
    python3 - <<'PYTHON'
import glob, json, struct, xxhash
said = json.load(open("out/forge_checksums.json"))["tensors"]
for f in glob.glob("out/*.safetensors"):
    b = open(f, "rb").read()
    n, = struct.unpack("<Q", b[:8])
    h = json.loads(b[8:8 + n])
    assert all(isinstance(v, str) for v in h.pop("__metadata__").values())
    for name, t in h.items():
        begin, end = t["data_offsets"]
        assert said.pop(name) == "%016x" % xxhash.xxh3_64_intdigest(b[8 + n + begin:8 + n + end]), name
assert not said
PYTHON
    run -0 --separate-stderr forge-verify out
    [[ $stderr == *"$(ls out | wc -l) files, "*" tensors: as they were written" ]]
    [ -z "$output" ]
}

@test "metadata and card say what was done, of which text, and how it went" {
    hash=$(sha256sum <"$in/text" | cut -c1-64)
    python3 - "$hash" <<'PYTHON'
import glob, json, struct, sys
for f in glob.glob("out/*.safetensors"):
    b = open(f, "rb").read()
    m = json.loads(b[8:8 + struct.unpack("<Q", b[:8])[0]])["__metadata__"]
    recipe = m.pop("recipe").split("; ")
    assert {"forge-tokens --sequences=4 --seqlen=64", "forge-calib", "forge-hessian", "forge-weights",
            "forge-grid --hessian=FILE", "forge-solve --hessian=FILE"} == set(recipe[:-1]), recipe
    assert recipe[-1] == "forge-pack --layout=awq"
    assert m == {"format": "pt", "producer": m["producer"], "layout": "awq", "bits": "4",
                 "group_size": "128", "symmetric": "true", "scale_dtype": "F16",
                 "calibration_text_sha256": sys.argv[1],
                 "calibration_sequences": "4", "calibration_tokens": "256"}, m
PYTHON
    grep -qF "$hash" out/README.md
    # the front matter: the licence goes along, what is of other weights does not
    python3 - "$in/report" <<'PYTHON'
import json, re, sys
card = open("out/README.md").read()
_, front, body = card.split("---\n", 2)
assert "base_model: model\nbase_model_relation: quantized\n" in front
assert "license: other\nlicense_name: own\nlanguage:\n- de\n- fr\n" in front
assert "model-index" not in front and "- old" not in front and "Old words" not in body
lines = [json.loads(x) for x in open(sys.argv[1])]
ratio = sum(x["loss"] for x in lines)/sum(x["loss_rtn"] for x in lines)
assert "| loss | %.3f of" % ratio in body, (ratio, body)
assert "4 sequences, 256 tokens" in body and "vllm serve" in body
PYTHON
    cmp out/LICENSE "$in/model/LICENSE"
}

@test "equal inputs give equal bytes, and no date, host or path" {
    forge-shard -q --from "$in/model" --shard-size 1200KB again "$in/packed"
    diff -r out again
    run ! grep -rlaE "$HOSTNAME|$PWD|$(date +%Y)" again/README.md again/SHA256SUMS again/forge_checksums.json
}

@test "one changed byte, anywhere in any file, is found and named" {
    for file in out/*; do
        file=${file#out/}
        size=$(stat -c %s "out/$file")
        for at in 0 7 8 9 40 $((size / 3)) $((size / 2)) $((size * 3 / 4)) $((size - 2)) $((size - 1)); do
            [ "$at" -lt "$size" ] || continue
            python3 - "out/$file" "$at" <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2]))
    b = f.read(1)[0]
    f.seek(int(sys.argv[2]))
    f.write(bytes([b ^ 1]))
PYTHON
            run -1 --separate-stderr forge-verify out
            [ "$file" = SHA256SUMS ] || grep -qF "'$file': " <<<"$output" ||
                { echo "$file at $at: $output"; return 1; }
            [ -n "$output" ]
            cp "$in/whole/$file" "out/$file"
        done
    done
    forge-verify -q out
}

@test "the tensor that is damaged is said" {
    python3 - <<'PYTHON'
import glob, json, struct
for f in sorted(glob.glob("out/*.safetensors")):
    b = bytearray(open(f, "rb").read())
    n, = struct.unpack("<Q", b[:8])
    t = json.loads(b[8:8 + n]).get("model.layers.2.mlp.up_proj.qweight")
    if t:
        b[8 + n + t["data_offsets"][1] - 1] ^= 16
        open(f, "wb").write(b)
        open("name", "w").write(f[4:])
PYTHON
    found "$(<name)" "tensor 'model.layers.2.mlp.up_proj.qweight' is not what was written"
    [ "${#lines[@]}" -eq 1 ]
    found "$(<name)" "tensor 'model.layers.2.mlp.up_proj.qweight'" --tensors
}

@test "forge-shard and forge-ls --verify find what is damaged, too" {
    forge-shard -q --verify out
    forge-ls -q --verify out
    file=$(ls out/*.safetensors | head -n 1)
    printf '\125\125' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 100)) conv=notrunc status=none
    run -65 --separate-stderr forge-shard -q --verify out
    [[ $stderr == "forge-shard: 'out': '${file#out/}': tensor '"*"' is not what was written" ]]
    run -1 --separate-stderr forge-ls -q --verify out
    [[ $stderr == "forge-ls: 'out': '${file#out/}': tensor '"*"' is not what was written" ]]
    [ -z "$output" ]
    rm out/forge_checksums.json # as of others, that have none
    forge-ls -q --verify out
}

@test "files that are missing, too many, cut, links out or pipes" {
    shard=$(basename out/model-00002*)
    rm "out/$shard"
    found "$shard" "is missing"
    found forge_checksums.json "is in no file" --tensors
    ln -s "$in/whole/$shard" "out/$shard"
    found "$shard" "no regular file of this directory"
    rm "out/$shard"
    mkfifo "out/$shard"
    run -1 timeout 20 forge-verify -q out
    rm "out/$shard"
    head -c 5000 "$in/whole/$shard" >"out/$shard"
    found "$shard" "header is damaged"
    cp "$in/whole/$shard" out
    echo '{}' >out/adapter_config.json
    found adapter_config.json "is not in SHA256SUMS"
    rm out/adapter_config.json
    mkdir out/.git
    touch out/.gitattributes
    forge-verify -q out
    rm out/SHA256SUMS
    found SHA256SUMS "No such file"
    rm out/forge_checksums.json
    run -66 --separate-stderr forge-verify out
    [[ $stderr == *"no SHA256SUMS and no forge_checksums.json"* ]]
    run -64 forge-verify
    run -66 forge-verify nothing
    [ "$output" = "forge-verify: 'nothing': cannot open: No such file or directory" ]
}

@test "files of a module's directory are checked as those beside it; lists name nothing else" {
    cp -r "$in/model" m
    mkdir m/1_Pooling m/2_Dense
    echo '[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]' >m/modules.json
    echo '{}' | tee m/1_Pooling/config.json >m/2_Dense/config.json
    head -c 5000 /dev/urandom >m/2_Dense/model.safetensors # no tensors of the model
    forge-shard -q --from m whole "$in/packed"
    begin() { rm -rf out && cp -r whole out; }
    begin
    mkdir out/2_Dense/deep out/3_Other
    touch out/2_Dense/.hidden out/3_Other/x
    run -0 --separate-stderr forge-verify out
    [[ $stderr == *"$(find whole -type f | wc -l) files, "* ]]
    forge-verify -q --tensors out
    forge-shard -q --verify out
    printf x >>out/2_Dense/model.safetensors
    found 2_Dense/model.safetensors "does not have the digest"
    [ "${#lines[@]}" -eq 1 ]
    begin
    echo x >out/2_Dense/pytorch_model.bin
    found 2_Dense/pytorch_model.bin "is not in SHA256SUMS"
    [ "${#lines[@]}" -eq 1 ]
    begin
    ln -sf ../2_Dense/config.json out/1_Pooling
    found 1_Pooling/config.json "no regular file of this directory"
    begin
    rm -r out/1_Pooling
    found 1_Pooling/config.json "is missing"
    ln -s ../m/1_Pooling out
    found 1_Pooling/config.json "no regular file of this directory"
    begin
    for name in ../m/config.json "$PWD/m/config.json" 2_Dense/../config.json 2_Dense/./config.json a/b/c 2_Dense/ //x \
        .git/config 2_Dense/.hidden; do
        { cat whole/SHA256SUMS; printf '%064d  %s\n' 0 "$name"; } >out/SHA256SUMS
        found SHA256SUMS "is not the digest of another file"
    done
}

@test "a list of checksums without tensors is said, not followed" {
    for tensors in '' ',"tensors":null'; do
        echo '{"format":"4bit-forge checksums 1","hash":"XXH3-64"'"$tensors}" >out/forge_checksums.json
        found forge_checksums.json "not 4bit-forge checksums 1" --tensors
        run -65 --separate-stderr forge-shard -q --verify out
        [ "$stderr" = "forge-shard: 'out': 'forge_checksums.json': not 4bit-forge checksums 1" ]
        run -1 --separate-stderr forge-ls -q --verify out
        [ "$stderr" = "forge-ls: 'out': 'forge_checksums.json': not 4bit-forge checksums 1" ]
    done
}

@test "--tensors follows them into other files" {
    forge-shard -q --from "$in/model" other "$in/packed"
    cp out/forge_checksums.json other
    forge-verify -q --tensors other
}

@test "a model that this program made is named by what that was made of" {
    mkdir -p cache/models--Org--Some--Name/blobs cache/models--Org--Some--Name/snapshots
    cp -r "$in/model" cache/models--Org--Some--Name/snapshots/0123
    from=cache/models--Org--Some--Name/snapshots/0123
    forge-shard -q --from $from one "$in/packed"
    grep -qx 'base_model: Org/Some--Name' one/README.md
    forge-weights -q one | forge-pack -q --layout gptq | forge-shard -q --from one two
    grep -qx 'base_model: Org/Some--Name' two/README.md
    forge-verify -q two
}

@test "forge eval --card: what was found goes into the card, and its digest with it" {
    text=$BATS_TEST_DIRNAME/../../examples/eval.txt
    small=(--text "$text" --sequences 2 --seqlen 64 -q)
    forge eval "$in/model" out "${small[@]}" --json >plain
    cp -r out again
    forge eval "$in/model" out "${small[@]}" --json --card >said
    cmp plain said
    forge-verify -q out
    (cd out && sha256sum --quiet -c SHA256SUMS)
    python3 - "$text" <<'PYTHON'
import hashlib, json, sys
found = json.load(open("said"))
card = open("out/README.md").read()
before, section = card.split("## Evaluation\n")
section, behind = section.split("## How it was made\n")
assert open("again/README.md").read() == before + "## How it was made\n" + behind
rows = dict([c.strip() for c in line.split("|")[1:4:2]] for line in section.splitlines() if line.startswith("| "))
assert rows["perplexity"].startswith("%.4f" % found["ppl"])
assert "| %.4f |" % found["ppl_original"] in section
assert rows["KL divergence, mean"].startswith("%.6f" % found["kl_mean"])
assert rows["the same most likely token"] == "%.2f %%" % (100 * found["top1"])
assert "%d tokens in 2 sequences" % found["tokens"] in section
assert hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() in section
PYTHON
    # Equal inputs, equal bytes; another result takes the place of the first.
    forge eval "$in/model" again "${small[@]}" --card >/dev/null
    diff -r out again
    forge eval "$in/model" out --text "$text" --sequences 1 --seqlen 64 -q --card >/dev/null
    [ "$(grep -c '^## Evaluation' out/README.md)" -eq 1 ]
    grep -q 'in 1 sequences' out/README.md
    forge-verify -q out
    # Where there is no card of ours nothing is begun, and nothing is touched.
    cp -r "$in/model" plain-model
    cp -r plain-model kept
    run -78 --separate-stderr forge eval "$in/model" plain-model "${small[@]}" --card
    [[ -z $output && $stderr == *"has no model card of this program" ]]
    diff -r kept plain-model
}

@test "forge eval --card of a model without a head: its states, nothing of predictions" {
    python3 "$BATS_TEST_DIRNAME/../reference/families.py" bare "$in/model" headless headless
    forge-weights -q headless | forge-grid -q | forge-solve -q | forge-pack -q --layout gptq | forge-shard -q --from headless small
    forge eval headless small --text "$BATS_TEST_DIRNAME/../../examples/eval.txt" --sequences 2 --seqlen 64 -q --card --json >said
    forge-verify -q small
    sed -n '/^## Evaluation/,/^## How/p' small/README.md >section
    {
        jq '.cosine_mean, .cosine_sem' said | xargs printf '| cosine, mean | %.6f ± %.6f |\n'
        jq '.cosine_min' said | xargs printf '| cosine, smallest | %.6f |\n'
        jq '.cosine_last, .cosine_last_sem' said | xargs printf '| cosine, last tokens of sequences | %.6f ± %.6f |\n'
        jq '.error_rms, .error_sem' said | xargs printf '| relative error, RMS | %.6f ± %.6f |\n'
    } >want
    grep '^| [cr]' section | diff - want
    grep -q 'on 128 tokens in 2 sequences' section
    run -1 grep -iE 'perplexity|KL|likely' section
}

@test "what a model was made of by pruning, or in another layout, is in the recipe" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain mixture
    printf '{"input_ids": [1, 2, 3, 4, 7, 9]}\n' >ids.jsonl
    few=(--text ids.jsonl --sequences 1 --seqlen 6 --quiet)
    steps() { # DIRECTORY: the tools of its card's recipe
        sed -n '/^## How it was made/,/^## Check/s/^\(forge-[a-z]*\).*/\1/p' "$1/README.md" | tr '\n' ' '
    }
    recipe() { # DIRECTORY: as the file of weights has it
        python3 - "$1" <<'PYTHON'
import json, struct, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    n, = struct.unpack("<Q", f.read(8))
    steps = json.loads(f.read(n))["__metadata__"]["recipe"].split("; ")
card = open(sys.argv[1] + "/README.md").read()
assert "## How it was made\n\n```\n%s\n```\n" % "\n".join(steps) in card
PYTHON
    }
    forge prune mixture pruned --keep 4 "${few[@]}"
    pruning="forge-tokens forge-calib forge-prune forge-weights "
    [ "$(steps pruned)" = "$pruning" ]
    recipe pruned
    grep -q '^forge-prune --keep=4 --by=tokens$' pruned/README.md
    forge quantize mixture q --keep 4 --group 16 "${few[@]}"
    [[ "$(steps q)" == "$pruning"*"forge-solve forge-split forge-pack " ]]
    recipe q
    forge quantize pruned q2 --group 16 "${few[@]}"
    [ "$(steps q2)" = "$(steps q)" ]
    forge-weights -q q | forge-pack -q --layout awq | forge-shard -q --from q r
    [ "$(steps r)" = "$(steps q)forge-weights forge-pack " ]
    recipe r
    # A card that says it is ours is text of others all the same.
    printf 'Made by 4bit-forge\n\n## How it was made\n\n```\nforge-x --a=`touch pwned`\nforge-y\n```\n' >pruned/README.md
    forge quantize pruned q3 --group 16 "${few[@]}"
    ! grep -q 'pwned\|forge-y' q3/README.md
}
