#!/usr/bin/env bats
# Models for embeddings: the modules of sentence-transformers go along with the
# weights (forge-shard(1)).
# shellcheck disable=SC2154 # run sets stderr

load cli

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    forge-weights -q "$BATS_TEST_DIRNAME/../../examples/llama-4m" | forge-grid -q | forge-solve -q --method rtn |
        forge-pack -q --layout awq -o packed
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    packed=$BATS_FILE_TMPDIR/packed
    embedder
}

# m: the model as one for embeddings; DIRECTORY is the third module's.
embedder() { # [DIRECTORY]
    rm -rf m
    cp -r "$BATS_TEST_DIRNAME/../../examples/llama-4m" m
    chmod -R u+w m
    mkdir m/1_Pooling m/2_Dense
    echo '{"word_embedding_dimension": 256, "pooling_mode_lasttoken": true}' >m/1_Pooling/config.json
    echo '{"in_features": 256, "out_features": 64}' >m/2_Dense/config.json
    head -c 100000 /dev/urandom >m/2_Dense/model.safetensors
    echo '{"max_seq_length": 512}' >m/sentence_bert_config.json
    echo '{"prompts": {"query": "Query:"}}' >m/config_sentence_transformers.json
    jq -n --arg third "${1-2_Dense}" '["", "1_Pooling", $third, "2_Normalize"] |
        [to_entries[] | {idx: .key, name: "\(.key)", path: .value, type: "sentence_transformers.models.X"}]' >m/modules.json
}

shard() { # OUT
    forge-shard -q --from m "$1" "$packed"
}

# Exit status, one line that says this, and neither OUT nor a temporary.
refused() { # STATUS TEXT COMMAND...
    fails "$1" "$2" "${@:3}"
    run ! compgen -G 'out*'
}

@test "the directories of modules.json are copied, listed and checked" {
    mkdir m/3_Other m/2_Dense/deep
    touch m/3_Other/config.json m/2_Dense/.hidden m/2_Dense/deep/x
    shard out
    for name in modules.json config_sentence_transformers.json sentence_bert_config.json 1_Pooling 2_Dense/config.json \
        2_Dense/model.safetensors; do
        diff -r m/$name out/$name
    done
    [ "$(cd out && echo */)" = "1_Pooling/ 2_Dense/" ]
    [ "$(ls -A out/2_Dense)" = $'config.json\nmodel.safetensors' ]
    [ "$(stat -c %a out/2_Dense)" = "$(stat -c %a m/2_Dense)" ]
    (cd out && sha256sum --quiet --strict -c SHA256SUMS)
    [ "$(cut -c67- out/SHA256SUMS)" = "$(cd out && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort)" ]
    forge-verify -q out
    forge-shard -q --verify out --from m
    run -0 --separate-stderr forge-shard --from m again "$packed"
    [[ ${stderr_lines[0]} == "forge-shard: warning: 'm/2_Dense/deep': will not be copied"* && ${#stderr_lines[@]} -eq 2 ]]
    diff -r out again
    # and on to the next
    forge-weights -q out | forge-pack -q --layout gptq | forge-shard -q --from out next
    diff -r out/2_Dense next/2_Dense
}

@test "a file that is too long stays where it is, and is named" {
    truncate -s $(((256 << 20) + 1)) m/2_Dense/pytorch_model.bin
    run -0 --separate-stderr forge-shard --from m out "$packed"
    [ "${stderr_lines[0]}" = "forge-shard: warning: 'm/2_Dense/pytorch_model.bin': will not be copied: 268435457 bytes, more than 268435456" ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    [ "$(ls out/2_Dense)" = $'config.json\nmodel.safetensors' ]
    forge-verify -q out
}

@test "files of Hugging Face's cache are followed from a directory, too; no other link out of it" {
    mkdir -p cache/snapshots
    mv m cache/snapshots/0123
    mkdir cache/blobs
    ln -s cache/snapshots/0123 m
    hash=$(sha256sum m/2_Dense/model.safetensors | cut -c1-64)
    mv m/2_Dense/model.safetensors "cache/blobs/$hash"
    ln -s "../../../blobs/$hash" m/2_Dense/model.safetensors
    ln -s config.json m/2_Dense/inside.json
    shard out
    cmp out/2_Dense/model.safetensors "cache/blobs/$hash"
    cmp out/2_Dense/inside.json m/2_Dense/config.json
    [ -z "$(find out -type l)" ]
    rm -r out
    touch secret
    for target in "../../blobs/$hash" "../../../blobs/../../secret" ../config.json ../../secret "$PWD/secret" /dev/zero; do
        ln -sf "$target" m/2_Dense/model.safetensors
        refused 65 "out of the directory" shard out
        refused 65 "out of the directory" forge-pack -q --check m
    done
    ln -sf "../../../blobs/${hash//[0-9]/f}" m/2_Dense/model.safetensors
    refused 66 "what it links to" shard out
    rm m/2_Dense/model.safetensors
    mkfifo m/2_Dense/model.safetensors
    refused 65 "'m/2_Dense/model.safetensors': not a regular file" timeout 20 forge-shard -q --from m out "$packed"
    rm -r m/2_Dense
    for target in 1_Pooling ../../.. "$PWD" /; do
        ln -sfn "$target" m/2_Dense
        refused 65 "'m/2_Dense': not a directory" shard out
    done
    rm m/2_Dense
    echo x >m/2_Dense
    refused 65 "'m/2_Dense': not a directory" shard out
}

@test "a modules.json that names what it must not is refused, before any work" {
    mkdir secret
    touch secret/x
    for path in .. ../secret "$PWD/secret" / ../m a/b 1_Pooling/ ./1_Pooling 1_Pooling/.. -x .hidden $'a\nb' SHA256SUMS \
        model.safetensors README.md "$(printf 'x%.0s' {1..256})"; do
        embedder "$path"
        refused 65 "' is not allowed as the directory of a module" shard out
        refused 65 "' is not allowed as the directory of a module" forge-pack -q --check m
    done
    for text in '' '[' '{"path": "1_Pooling"}' '[{}]' '[1]' '["1_Pooling"]' '[{"path": 1}]' '[{"path": null}]' 'null' \
        '[{"path": "1_Pooling\u0000"}]' '[{"path": "1_Pooling", "path": ".."}]' "$(printf '%70000s' '[]')"; do
        printf %s "$text" >m/modules.json
        refused 65 "modules.json'" shard out
    done
    for text in '[]' '[{"path": ""}]' '[{"path": "."}]' '[{"path": "absent"}]' '[{"path": "1_Pooling"}, {"path": "1_Pooling"}]'; do
        printf %s "$text" >m/modules.json
        shard out
        (cd out && sha256sum --quiet --strict -c SHA256SUMS)
        cmp m/modules.json out/modules.json
        rm -r out
    done
}

@test "killed at any time: no OUT, or a whole one; the next run removes what it left" {
    for ((n = 1; n <= 30; n++)); do
        forge-shard -q --from m out "$packed" &
        pid=$!
        sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
        kill -KILL $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        [ ! -e out ] || forge-verify -q out
        rm -rf out
    done
    mkdir -p out.tmp.999999999.AbCdE{f,g}/2_Dense mine
    touch out.tmp.999999999.AbCdE{f,g}/.forge-unfinished out.tmp.999999999.AbCdE{f,g}/2_Dense/config.json mine/file
    ln -s ../mine out.tmp.999999999.AbCdEf/link
    ln -s ../../mine out.tmp.999999999.AbCdEf/2_Dense/link
    mkdir out.tmp.999999999.AbCdEg/2_Dense/deep # not of ours
    touch out.tmp.999999999.AbCdEg/2_Dense/deep/file
    mkdir -p out.tmp.999999999.AbCdEh/2_Dense
    touch out.tmp.999999999.AbCdEh/2_Dense/.forge-unfinished # no mark of the directory itself
    shard out
    [ "$(echo out.tmp.*)" = "out.tmp.999999999.AbCdEg out.tmp.999999999.AbCdEh" ]
    [ -e out.tmp.999999999.AbCdEg/2_Dense/deep/file ]
    [ -e out.tmp.999999999.AbCdEh/2_Dense/.forge-unfinished ]
    [ -e mine/file ]
}

@test "whichever call fails: one line, nothing published" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "no fail.so in this mode"
    for kind in malloc write fsync rename; do
        for ((n = 1; n <= 20000; n += 1 + n / 32)); do
            rc=0
            FAIL=$kind:$n LD_PRELOAD=$FAIL_SO forge-shard -q -j 1 --sample 1 --from m out "$packed" 2>err || rc=$?
            [ "$rc" -ne 0 ] || break
            [[ $rc =~ ^(73|74|75)$ ]] || { echo "$kind:$n: exit $rc"; cat err; return 1; }
            [ "$(wc -l <err)" -eq 1 ]
            # of the parent, after the rename: whole, but perhaps not for good
            [ ! -e out ] || { [ $kind = fsync ] && forge-verify -q out; }
            rm -rf out
            run ! compgen -G 'out*'
        done
        [ "$rc" -eq 0 ] || { echo "$kind: exit $rc"; cat err; return 1; }
        rm -r out
    done
}
