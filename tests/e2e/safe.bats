#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# Nothing of the user's is lost or executed, and no refusal comes after work.

load e2e

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    PATH=$PATH:$tree/scripts
}

quick=(--method rtn --quiet)

# COMMAND... must be refused with STATUS in a moment, and one line.
at_once() { # STATUS COMMAND...
    local before=$SECONDS
    refused "$1" timeout 10 "${@:2}"
    [ $((SECONDS - before)) -lt 5 ]
}

@test "an OUT.work of the user's is refused, and stays as it is" {
    mkdir out.work
    echo precious >out.work/notes.txt
    at_once 73 forge quantize "$model" out "${quick[@]}"
    [[ $stderr == *"'$PWD/out.work': is not empty, and no work directory"* ]]
    [ "$(cat out.work/notes.txt)" = precious ]
    [ "$(ls out.work)" = notes.txt ]
}

@test "an empty OUT.work of the user's is used, and stays" {
    mkdir out.work
    forge quantize "$model" out "${quick[@]}"
    [ -d out.work ]
    [ -e out/config.json ]
}

@test "files that others put into OUT.work survive its removal" {
    forge quantize "$model" first "${quick[@]}" --work out.work
    rm -r first
    # as if it had been made without --work and then been written into
    sed -i 's/.*/This is a temporary work directory of forge(1), removed when all is done./' \
        out.work/forge-work
    echo precious >out.work/notes.txt
    echo precious >"$(echo out.work/solve-*)/thesis.fts"
    mkdir out.work/solve-mine
    forge quantize "$model" out "${quick[@]}"
    [ "$(cat out.work/notes.txt)" = precious ]
    [ "$(cat out.work/solve-*/thesis.fts)" = precious ]
    [ -d out.work/solve-mine ]
    [ ! -e out.work/settings.json ]
    [ -z "$(find out.work -name 'codes-*')" ]
}

@test "--work of somebody else is refused: nothing below it is touched" {
    mkdir -p home/sub
    echo precious | tee home/sub/thesis.tmp.docx >home/sub/codes-0.fts.tmp.1.abcdef
    at_once 73 forge quantize "$model" out "${quick[@]}" --work home
    (cd home && at_once 73 forge quantize "$model" ../out "${quick[@]}" --work .)
    [ "$(cat home/sub/*)" = $'precious\nprecious' ]
    [ ! -e out ]
}

@test "of a work directory only the temporaries that forge makes are collected" {
    forge quantize "$model" out "${quick[@]}" --work work
    S=$(basename work/solve-*)
    mkdir -p work/sub work/solve-mine
    mine=(work/thesis.tmp.docx work/sub/codes-0.fts.tmp.1.abcdef
        "work/$S/thesis.tmp.docx" "work/$S/codes-0.fts.tmp.x.abcdef"
        "work/$S/codes-a.fts.tmp.1.abcdef" work/solve-mine/codes-0.fts.tmp.1.abcdef
        work/codes-0.fts.tmp.1.abcdef "work/$S/codes-0.fts.tmp.1.abcdefg")
    touch "${mine[@]}"
    touch "work/$S/codes-0.fts.tmp.999999999.abcdef" work/settings.json.tmp.999999999.abc234 \
        "work/.status.tmp.$HOSTNAME.999999999.AbCdEf"
    ln -s ../home work/tokens-0123456789abcdef
    mkdir home
    touch home/tokens.fts.tmp.999999999.abcdef
    run -0 forge gc --settings work
    [ "$output" = "3 removed" ]
    ls "${mine[@]}" home/tokens.fts.tmp.999999999.abcdef >/dev/null
}

# Whoever makes a work directory for others may put anything there under forge's names.
@test "links, FIFOs and directories under names of a work directory's files are refused, and not followed" {
    forge quantize "$model" whole "${quick[@]}" --work work
    S=$(basename work/solve-*)
    echo precious >precious
    for name in lock make.log meter.json settings.json "$S"/{stages.jsonl,codes-1.fts,report-1.jsonl,made}; do
        for kind in link fifo directory; do
            rm -rf "work/${name:?}"
            case $kind in
            link) ln -s "$PWD/precious" "work/$name" ;;
            fifo) mkfifo "work/$name" ;;
            directory) mkdir "work/$name" ;;
            esac
            at_once 73 forge quantize "$model" out "${quick[@]}" --work work
            [[ $stderr == "forge: "*"work/$name': "* ]]
            [[ $kind == directory || $stderr == *": not a regular file" ]]
        done
        rmdir "work/$name"
        [ "$(cat precious)" = precious ]
    done
    # a step by itself does not follow them, either
    rm -r whole
    forge quantize "$model" whole "${quick[@]}" --work work
    rm -r whole "work/$S/stages.jsonl"
    ln -s "$PWD/precious" "work/$S/stages.jsonl"
    make -s -f "$tree/scripts/pipeline.mk" -C work
    [ -e whole ]
    [ "$(cat precious)" = precious ]
}

@test "what lies in a work directory is never executed" {
    forge quantize "$model" out "${quick[@]}" --work good
    good=$(cat good/settings.json)
    mkdir -p evil/bin
    printf '#!/bin/sh\ntouch %q\n' "$PWD/pwned" | tee evil/bin/forge-report evil/bin/forge-tokens >evil/run
    chmod +x evil/bin/*
    cp good/forge-work evil/
    i=0
    while IFS= read -r change; do
        jq "$change" <<<"$good" >evil/settings.json
        for command in "forge status" "forge report" "forge gc --settings" \
            "make -f $tree/scripts/pipeline.mk -C"; do
            # shellcheck disable=SC2086
            run $command evil </dev/null
            [[ $command != make* || $status -ne 0 ]]
        done
        i=$((i + 1))
    done <<'END'
.out = "$(shell touch pwned)" | .S = "solve-$(shell touch pwned)"
.T = "tokens-`touch pwned`0000000"
.C = "calib-0000000000000000;touch pwned"
.S = "../../../tmp/solve"
.model = "$(touch pwned)"
.model = "; touch pwned"
.device = "$(shell touch pwned)"
.layers = "0) $(shell touch pwned"
.bindir = "evil/bin"
.method = "rtn RUN=touch"
.format = "x"
.layout = "awq\ninclude evil/run"
.weights[0].name = "../../etc/passwd"
END
    [ "$i" -eq 13 ]
    echo 'touch pwned' >evil/settings.json
    run -65 forge status evil
    [ -z "$(find . -name pwned)" ]
}

@test "make by itself, on what a run has planned" {
    forge quantize "$model" whole "${small[@]}" --work work
    out=$(jq -r .out work/settings.json)
    [ "$out" = "$PWD/whole" ]
    mv whole kept
    rm work/solve-*/codes-[123].fts
    make -s -f "$tree/scripts/pipeline.mk" -C work -j >lines
    same kept whole
    [ "$(grep -c '^{"module"' lines)" -eq 21 ]
    rm -r whole # and as it is installed, where no PATH leads to the tools
    mkdir -p prefix/lib/4bit-forge
    cp "$tree"/scripts/{pipeline.mk,forge-run} prefix/lib/4bit-forge
    ln -s "$(dirname "$(command -v forge)")" prefix/bin
    PATH=/usr/bin:/bin make -s -f "$PWD/prefix/lib/4bit-forge/pipeline.mk" -C work -j
    same kept whole
    run make -s -f "$tree/scripts/pipeline.mk" -C "$tree/examples" -j
    [ "$status" -ne 0 ]
}

# The sizes and time stamps of a file stay; its content does not.
@test "weights that change with size and time stamp kept are other weights" {
    cp -rp "$model" m
    chmod -R u+w m
    forge quantize m before "${small[@]}" --work work
    cp -rp m copy
    python3 - <<'PYTHON'
import os
p = "m/model.safetensors"
s = os.stat(p)
with open(p, "r+b") as f:
    f.seek(s.st_size // 2)
    b = f.read(4096)
    f.seek(s.st_size // 2)
    f.write(bytes(x ^ 1 for x in b))
os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))
assert os.stat(p).st_mtime_ns == s.st_mtime_ns and os.stat(p).st_size == s.st_size
PYTHON
    forge quantize m after "${small[@]}" --work work
    forge quantize m alone "${small[@]}"
    same alone after
    run ! same before after
    # ... and a copy of the same bytes is the same weights.
    ls -d work/*-* >stages
    forge quantize copy again "${small[@]}" --work work
    ls -d work/*-* | cmp - stages
    rm {before,again}/{README.md,SHA256SUMS} # these name the model's directory
    same before again
}

@test "weights that change while it runs are refused, not mixed" {
    cp -rp "$model" m
    chmod -R u+w m
    forge quantize m out "${small[@]}" --work work
    rm -r out
    rm work/solve-*/codes-3.fts
    touch m/model.safetensors
    # Another host may see other inodes and times of change, not another age.
    jq -c '.host = "elsewhere"' work/settings.json >elsewhere
    cp work/settings.json here
    cp elsewhere work/settings.json
    run -2 make -s -f "$tree/scripts/pipeline.mk" -C work
    touch -r "$model/model.safetensors" m/model.safetensors
    make -s -f "$tree/scripts/pipeline.mk" -C work >/dev/null
    rm -r out work/solve-*/codes-3.fts
    cp here work/settings.json
    run -2 make -s -f "$tree/scripts/pipeline.mk" -C work
    [[ $output == *"error 65 forge: "*"has changed since the run began"* ]]
    [ ! -e out ]
}

# Start a run of model m to OUT in the background, and wait for a file of the work directory.
begun() { # OUT FILE OPTION...
    forge quantize m "$1" --text calib --sequences 24 --seqlen 256 -q --work work "${@:3}" 2>err &
    pid=$!
    until compgen -G "work/$2" >/dev/null; do
        kill -0 $pid
        sleep 0.01
    done
}

ends() { # STATUS
    wait $pid || [ $? -eq "$1" ]
    grep "has changed since the run began" err
}

@test "weights overwritten in the middle are in nothing that is published" {
    cp -r "$model" m
    chmod -R u+w m
    cp "$text" calib
    begun out 'solve-*/codes-0.fts'
    cp m/model.safetensors before
    tr '\000-\377' '\001-\377\000' <before | tail -c 1000000 |
        dd of=m/model.safetensors bs=4k seek=$((($(stat -c %s before) - 1000000) / 4096)) conv=notrunc status=none
    ends 65
    [ ! -e out ]
    cp before m/model.safetensors
    forge quantize m out --text calib --sequences 24 --seqlen 256 -q --work work
    forge quantize m alone --text calib --sequences 24 --seqlen 256 -q
    same out alone
}

@test "a config.json or a text that changes in the middle is refused, too" {
    cp -r "$model" m
    chmod -R u+w m
    cp "$text" calib
    begun out 'solve-*/codes-0.fts'
    sed -i 's/"rope_theta": *[0-9.]*/"rope_theta": 77777.0/' m/config.json
    ends 65
    [ ! -e out ]
    cp "$model/config.json" m
    rm -r work
    begun out 'solve-*/codes-0.fts' --tune 20 --tune-batch 2 --effort fast
    head -n 20 "$text" >calib
    ends 65
    [ ! -e out ]
    [ -z "$(find work/tuned-* -name '*.fts')" ]
    run -2 make -s -f "$tree/scripts/pipeline.mk" -C work
    [[ $output == *"error 65 forge: "*"calib': has changed since"* ]]
}

@test "sidecars that could not be copied are refused in the first second" {
    for kind in fifo zero outside; do
        for name in tokenizer.json generation_config.json chat_template.jinja LICENSE; do
            rm -rf m
            cp -r "$model" m
            chmod -R u+w m
            rm -f "m/$name"
            case $kind in
            fifo) mkfifo "m/$name" ;;
            zero) ln -s /dev/zero "m/$name" ;;
            outside)
                echo '{}' >secret
                ln -s "$PWD/secret" "m/$name"
                ;;
            esac
            at_once 65 forge quantize m out "${small[@]}"
            [[ $stderr == *"/m/$name'"* ]]
            [ ! -e out.work ]
        done
    done
}

@test "sizes are one thing in all tools, and refused before anything is done" {
    for size in 0 1.2.3GiB 99999999999999999999G 5X -1 1e9 .5G 5. '5 GB' 5GiBB; do
        at_once 64 forge quantize "$model" out "${quick[@]}" --shard-size "$size"
        at_once 64 forge quantize "$model" out "${quick[@]}" --gpu-memory "$size"
        at_once 64 forge prune "$model" out --keep 4 --text "$text" --shard-size "$size"
        at_once 64 forge-shard --from "$model" --shard-size "$size" out
        at_once 64 forge-grid -o out --gpu-memory "$size" /dev/null
        [ ! -e out.work ]
    done
    for size in 5G 5GB 5GiB 1.5M 1500000 1500kB 2MiB 1T; do
        forge quantize "$model" "out-$size" "${quick[@]}" --shard-size "$size" --dry-run >said
        forge quantize "$model" "out-$size" "${quick[@]}" --shard-size "$size" --work work
    done
    # 1.5M is binary, 1500kB decimal
    limit() { find "out-$1" -name '*.safetensors' -printf '%s\n' | sort -n | tail -n 1; }
    [ "$(limit 1.5M)" -gt 1500000 ]
    [ "$(limit 1500kB)" -le 1510000 ]
    same out-1500000 out-1500kB
    same out-5G out-5GB
}

@test "OUT and WORK keep out of MODEL and of each other" {
    cp -r "$model" m
    chmod -R u+w m
    at_once 73 forge quantize m m/out "${quick[@]}"
    at_once 73 forge quantize m m/../m/sub/../out "${quick[@]}"
    ln -s m link
    at_once 73 forge quantize m link/out "${quick[@]}"
    at_once 73 forge quantize m out "${quick[@]}" --work out
    at_once 73 forge quantize m out "${quick[@]}" --work out/work
    at_once 73 forge quantize m out "${quick[@]}" --work ./out/../out
    at_once 73 forge quantize m out "${quick[@]}" --work m
    at_once 73 forge quantize m out "${quick[@]}" --work m/work
    python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain moe
    at_once 73 forge prune moe moe/out --keep 4 --text "$text"
    [ ! -e moe/out ]
    diff -r "$model" m
    # A name that only begins as another does is no directory of it.
    forge quantize m mout "${quick[@]}" --work outwork
}

@test "an option is no value: --work --quiet" {
    at_once 64 forge quantize "$model" out --method rtn --work --quiet
    [[ $stderr == "forge: --work wants DIR, not '--quiet'" ]]
    [ ! -e ./--quiet ]
    at_once 64 forge-solve -o out --report --quiet
    # ... unless it is said to be one.
    forge quantize "$model" out --method rtn --quiet --work=--quiet
    [ -e ./--quiet/settings.json ]
}

# One weight of TENSOR, by default of the last layer, has VALUE.
with_weight() { # VALUE [TENSOR]
    rm -rf m
    cp -r "$model" m
    chmod -R u+w m
    python3 - "$1" "${2:-model.layers.3.mlp.up_proj.weight}" <<'PYTHON'
import json, struct, sys
with open("m/model.safetensors", "r+b") as f:
    n, = struct.unpack("<Q", f.read(8))
    at = json.loads(f.read(n))[sys.argv[2]]["data_offsets"][0]
    f.seek(8 + n + at + 2 * 77)
    f.write(struct.pack("<f", float(sys.argv[1]))[2:])  # bf16
PYTHON
}

@test "a weight that no scale reaches is refused at the start, or gets a scale that does" {
    for value in inf nan -inf; do
        with_weight $value
        at_once 65 forge quantize m out "${small[@]}" --work work
        [[ $stderr == *"'model.layers.3.mlp.up_proj.weight': a weight is not finite" ]]
        [ -z "$(compgen -G 'work/*-????????????????')" ] # no step has begun
    done
    for tensor in model.embed_tokens lm_head; do # what stays as it is, too
        with_weight nan $tensor.weight
        at_once 65 forge quantize m out "${small[@]}" --work work
        [[ $stderr == *"'$tensor.weight': a weight is not finite" ]]
        [ -z "$(compgen -G 'work/*-????????????????')" ]
    done
    for grid in "--sym 491520" "--asym -983040"; do
        read -r sym value <<<"$grid"
        with_weight "$value"
        at_once 78 forge quantize m out "${small[@]}" "$sym" --layout awq --work work
        [[ $stderr == *"'model.layers.3.mlp.up_proj.weight': has a weight of"*"compressed-tensors"* ]]
        [ -z "$(compgen -G 'work/*-????????????????')" ]
    done
    with_weight 1e6
    run -0 --separate-stderr forge quantize m out --text "$text" --sequences 4 --seqlen 64 --progress never --work work
    [[ $stderr == *"'model.layers.3.mlp.up_proj.weight': has a weight of"*"scales are BF16"* ]]
    forge-ls out | grep -q $'layers.3.mlp.up_proj.weight_scale\tBF16'
    jq -e '.bf16_scales and .most > 9.9e5' work/settings.json
    # What is known of the weights is not looked for again, and decides the same.
    mv out first
    forge quantize m out "${small[@]}" --work work
    same first out
    # The largest that F16 scales reach, and what rounding makes of its group.
    with_weight 490000
    forge quantize m edge "${small[@]}" --layout awq
}

# A layer whose output is thousands of times the others': what its codes are off by
# asks later layers for targets that no weights reach.
@test "extreme weights of one linear do not move the targets of others out of reach" {
    for kind in "512 1e4 fast" "512 1e4 default" "1 1e6 default" "1 1e6 best"; do
        read -r every value effort <<<"$kind"
        rm -rf m
        cp -rL "$model" m
        python3 - "$every" "$value" <<'PYTHON'
import json, struct, sys
with open("m/model.safetensors", "r+b") as f:
    n, = struct.unpack("<Q", f.read(8))
    at, end = json.loads(f.read(n))["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    f.seek(8 + n + at)
    bf16 = bytearray(f.read(end - at))
    for i in range(0, len(bf16), 2 * int(sys.argv[1])):
        bf16[i:i + 2] = struct.pack("<f", float(sys.argv[2]))[2:]
    f.seek(8 + n + at)
    f.write(bf16)
PYTHON
        forge quantize m "out-$every-$effort" --text "$text" --sequences 8 --seqlen 128 \
            --progress json --effort "$effort" 2>lines >said
        # rows that stayed are counted, and said
        rows=$(grep '^{' lines | jq -s '[.[].rows_kept // 0] | add')
        if [ "$effort" = fast ]; then
            [ "$rows" = 0 ]
            run ! grep -q '^targets' said
        else
            grep -q "^targets   $rows rows of [1-9][0-9]* modules stayed, too far to correct: model.layers" said
        fi
    done
    for effort in fast default; do
        forge eval m out-512-$effort --json --quiet --sequences 8 --seqlen 128 \
            --text "$tree/examples/eval.txt" >$effort.json
    done
    awk -v a="$(figure kl_mean default.json)" -v b="$(figure kl_mean fast.json)" \
        'BEGIN { print a, b; exit !(a < b) }'
}

@test "a checkpoint that is 4-bit already is refused at once, with the way to go" {
    forge quantize "$model" q "${quick[@]}" --layout awq
    at_once 78 forge quantize q out "${small[@]}"
    [[ $stderr == *"quantized to 4 bits already"*"forge repack q OUT"* ]]
    [ ! -e out.work ]
    python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain moe
    forge quantize moe moe-q --method rtn --quiet --group 32
    at_once 78 forge quantize moe-q out --method rtn # not a word about the group
    [[ $stderr == *"4 bits already"* ]]
    at_once 78 forge prune moe-q out --keep 4 --text "$text"
    [[ $stderr == *"4 bits already"* ]]
    # The way that is named works.
    forge-weights -q q | forge-pack -q --layout gptq | forge-shard -q --from q out
    forge-ls --verify out >/dev/null
}

@test "tools of another version are refused before they are run" {
    make -s -C "$tree" install DESTDIR="$PWD/root" PREFIX=/opt >/dev/null
    bin=$PWD/root/opt/bin
    what=$(tr '\0' '\n' <"$bin/forge-solve" | grep -ao '@(#)4bit-forge [0-9.]*')
    sed -i "s/$what/${what%?}9/" "$bin/forge-solve"
    at_once 78 "$bin/forge" quantize "$model" out "${quick[@]}"
    [[ $stderr == *"forge-solve': is not of version"* ]]
    rm "$bin/forge-solve"
    at_once 66 "$bin/forge" quantize "$model" out "${quick[@]}"
}

@test "a control group with too little memory is refused at the start" {
    group=/sys/fs/cgroup/memory file=memory.limit_in_bytes
    [ -d $group ] || group=/sys/fs/cgroup file=memory.max
    group=$group/forge-test-$$
    mkdir "$group" 2>/dev/null || skip "no control group of our own"
    if [ ! -e "$group/$file" ]; then
        rmdir "$group"
        skip "no limits of memory"
    fi
    echo 64M >"$group/$file"
    run -75 --separate-stderr bash -c "echo \$\$ >$group/cgroup.procs && exec \"\$@\"" - \
        forge quantize "$model" out "${small[@]}"
    rmdir "$group"
    # without what is in use there
    [[ $stderr =~ ^"forge: needs ".*" of memory, "(5[0-9]|6[0-3])\.[0-9]" MiB are available"$ ]]
    [ ! -e out.work ]
}

@test "a name of OUT that is too long is refused at once" {
    long=$(printf '%0240d' 1)
    at_once 73 forge quantize "$model" "$long" "${quick[@]}" --work work
    [[ $stderr == *"': the name is too long" ]]
    [ ! -e work ]
    forge quantize "$model" "${long:4}" "${quick[@]}" --work work
}

@test "a start that is refused leaves no OUT.work that has nothing in it" {
    refused 74 bash -c 'exec "$@" <&-' - forge quantize "$model" out --text - --quiet
    [ ! -e out.work ]
    refused 65 forge quantize "$model" out --text - --quiet </dev/null
    [ ! -e out.work ]
    with_weight inf
    refused 65 forge quantize m out --text - --sequences 4 --seqlen 64 --quiet <"$text"
    [ ! -e out.work ]
    # of the user's own they take nothing away
    refused 65 forge quantize m out "${small[@]}" --work work
    [ -e work/forge-work ]
    mkdir out.work
    refused 65 forge quantize m out "${small[@]}"
    [ -d out.work ]
    # and of an earlier run's, which was stopped, neither
    rm -r out.work
    forge quantize "$model" out "${quick[@]}" --work out.work
    rm -r out
    sed -i 's/.*/This is a temporary work directory of forge(1), removed when all is done./' \
        out.work/forge-work
    refused 65 forge quantize m out "${small[@]}"
    [ -e "$(echo out.work/solve-*/codes-0.fts)" ]
}

@test "sequences longer than the model was made for are warned of, once" {
    cp -r "$model" m
    chmod -R u+w m
    sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 40/' m/config.json
    long=(forge quantize m out --text "$text" --sequences 2 --progress never)
    for more in "" --dry-run; do
        run -0 --separate-stderr "${long[@]}" --seqlen 41 ${more:+"$more"}
        [ "$stderr" = "forge: warning: a sequence of 41 tokens, the model was made for up to max_position_embeddings 40" ]
        rm -rf out
        run -0 --separate-stderr "${long[@]}" --seqlen 40 ${more:+"$more"}
        [ -z "$stderr" ]
        rm -rf out
    done
    run -0 --separate-stderr "${long[@]}" --seqlen 41 --quiet
    [ -z "$stderr" ]
}

# ---- what a killed run leaves, and who removes it ----

@test "half an OUT of a killed forge-shard is removed by the next, and no other" {
    mkdir out.tmp.999999999.AbCdEf out.tmp.999999999.mineee out.tmp.999999999.emptyy \
        out.tmp.999999999.AbCdEfg other.tmp.999999999.AbCdEf out.tmp.999999999.making \
        out.tmp.999999999.behind
    for d in AbCdEf making; do touch out.tmp.999999999.$d/{.forge-unfinished,model.safetensors}; done
    touch other.tmp.999999999.AbCdEf/.forge-unfinished out.tmp.999999999.AbCdEfg/.forge-unfinished
    touch out.tmp.999999999.behind/{SHA256SUMS,forge_checksums.json,model.safetensors}
    mkdir -m 1700 out.tmp.999999999.beginn
    echo precious >out.tmp.999999999.mineee/notes.txt
    exec 8<out.tmp.999999999.making # as somebody who is at it
    flock 8
    forge quantize "$model" out "${quick[@]}" 8<&-
    run -0 compgen -G 'o*.tmp.*'
    [ "$(sort <<<"$output")" = "$(printf '%s\n' other.tmp.999999999.AbCdEf \
        out.tmp.999999999.{AbCdEfg,behind,emptyy,making,mineee} | sort)" ]
    [ "$(cat out.tmp.999999999.mineee/notes.txt)" = precious ]
    [ "$(ls out.tmp.999999999.behind | wc -l)" -eq 3 ]
}

@test "a forge-shard that is killed leaves a directory, which the same command removes" {
    forge-weights -q "$model" -o w.fts
    for call in fsync linkat rename; do # the last: whole, but for its name
        strace -qq -o /dev/null -e trace=$call -e "inject=$call:signal=KILL" \
            forge-shard -q --from "$model" out w.fts 2>/dev/null || true
        run -0 compgen -G 'out.tmp.*'
        [ ! -e out ]
    done
    forge-shard -q --from "$model" out w.fts
    [ -z "$(compgen -G 'out.tmp.*')" ]
    [ ! -e out/.forge-unfinished ]
}

@test "a forge that is killed before OUT.work has its mark leaves nothing behind" {
    for call in mkdir fsync linkat rename; do
        strace -qq -o /dev/null -e trace=$call -e "inject=$call:signal=KILL" \
            forge quantize "$model" out "${quick[@]}" 2>/dev/null || true
        [ ! -e out ]
        forge quantize "$model" out "${quick[@]}"
        [ -z "$(compgen -G 'out.*')" ] || { ls -a out.*; return 1; }
        rm -r out
    done
}

@test "gc removes the OUT.work of a run that was killed as it tidied up" {
    forge quantize "$model" out "${quick[@]}" --work out.work
    run -0 forge gc out.work # the user's: it stays
    [ -e out.work/settings.json ]
    sed -i 's/.*/This is a temporary work directory of forge(1), removed when all is done./' \
        out.work/forge-work
    mv out kept
    forge gc out.work # the run is not over
    [ -e out.work/settings.json ]
    mv kept out
    forge gc out.work
    [ ! -e out.work ]
    # ... also where the removal had begun, and where it was nearly over.
    mkdir out.work other.work
    run -66 forge gc other.work
    forge gc out.work
    [ ! -e out.work ]
    [ -d other.work ]
    mkdir out.work
    echo 'This is a temporary work directory of forge(1), removed when all is done.' >out.work/forge-work
    forge gc out.work
    [ ! -e out.work ]
}
