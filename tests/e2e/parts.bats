#!/usr/bin/env bats
# forge quantize --parts: the same bytes for the same parts, whatever the order in which
# steps run, what is killed, and which states are lost.

load e2e

MOE="$tree/tests/reference/moe.py"

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

work_of() { # a work directory of a run that was stopped: all names in it are forge's
    forge gc "$1" >/dev/null
    [ -z "$(find "$1" -name '*.tmp.*')" ]
}

# --jobs 1 is one pipe that goes through part after part, --jobs 5 the steps.
@test "equal bytes in a pipe and in steps, near those of one part, in every effort" {
    more=("${small[@]}" --sequences 16)
    for how in "--effort fast" "--effort default" "--effort best" "--propagate original" \
        "--propagate original --effort best"; do
        # shellcheck disable=SC2086
        for jobs in 1 5; do forge quantize "$model" p$jobs "${more[@]}" $how --parts 3 --jobs $jobs; done
        same p1 p5
        [ ! -e p5.work ]
        # shellcheck disable=SC2086
        forge quantize "$model" one "${more[@]}" $how
        run -1 same one p1
        for out in one p1; do
            forge eval "$model" $out --json --quiet --text "$text" --sequences 8 --seqlen 128 >$out.json
        done
        awk -v a="$(figure kl_mean one.json)" -v b="$(figure kl_mean p1.json)" 'BEGIN {
            print "KL", a, b; exit !(b < 1.1 * a && b > 0.9 * a) }'
        rm -r one p1 p5
    done
}

@test "more parts than sequences of the text are named, however many were asked for" {
    echo '{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}' >one.jsonl
    for way in "--sequences 1" "" "--jobs 5"; do
        # shellcheck disable=SC2086
        refused 64 forge quantize "$model" out --text one.jsonl --parts 2 --quiet $way
        [[ $stderr == *"--parts: 2 of 1 sequences" ]]
    done
}

# The routers' choices of both runs: the same counts, the same sums but for their order.
# Steps have them in a frame of each share.
hit_maps() { # WORK WORK
    python3 - "$tree/tests/reference" "$@" <<'PYTHON'
import glob, os, sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
def maps(work):
    found = {}
    for p in glob.glob(work + "/solve-*/codes-*.fts"):
        for t in fts.read(open(p, "rb")):
            if t.role == "hitmap":
                found[t.name] = found.get(t.name, 0) + t.array().reshape(t.shape).astype(float)
    return found
a, b = map(maps, sys.argv[2:])
assert a and a.keys() == b.keys(), (a.keys(), b.keys())
for name, x in a.items():
    y = b[name]
    assert (x[:, 0] == y[:, 0]).all() and x[:, 0].sum() > 0, name
    assert np.allclose(x, y, rtol=1e-5) and x[:, 4].sum() > 0, name
print(len(a), "hit maps")
PYTHON
}

@test "mixtures of experts, and linears that are left as they are" {
    for family in deepseek_v3:plain qwen2_moe:fused-oi mixtral:plain; do
        python3 "$MOE" make "${family%:*}" "${family#*:}" m
        way=("${small[@]}" --group 32 --sequences 6)
        for jobs in 1 4; do forge quantize m p$jobs "${way[@]}" --parts 3 --jobs $jobs --work w$jobs; done
        hit_maps w1 w4
        same p1 p4
        forge-shard -q --from m --sample 1000 --verify p1
        forge quantize m one "${way[@]}"
        for out in one p1; do
            forge eval m $out --json --quiet --text "$text" --sequences 8 --seqlen 64 >$out.json
        done
        awk -v a="$(figure kl_mean one.json)" -v b="$(figure kl_mean p1.json)" 'BEGIN {
            print "KL", a, b; exit !(b < 1.2 * a && b > 0.8 * a) }'
        rm -r m one p1 p4 w1 w4
    done
    # no linear of layer 1, no attention in the others
    forge quantize "$model" p "${small[@]}" --parts 2 --skip '*.self_attn.*' --skip 'model.layers.1.*' --work w
    [ "$(forge-ls p | grep -c 'layers.1.*qweight\|layers.1.*weight_packed')" -eq 0 ]
    [ "$(forge-ls p | grep -c 'self_attn.*weight_packed')" -eq 0 ]
    [ "$(forge-ls p | grep -c 'mlp.*weight_packed')" -eq 9 ]
}

# What forge-solve wrote of all linears, notes and grids, but for seconds and hit maps.
same_codes() { # WORK WORK
    python3 - "$tree/tests/reference" "$@" <<'PYTHON'
import glob, sys
sys.path.insert(0, sys.argv[1])
import fts
def frames(work):
    found = {}
    for path in sorted(glob.glob(work + "/solve-*/codes-*.fts")):
        for t in fts.read(open(path, "rb")):
            if t.role in ("codes", "qmeta") or (t.role == "note" and b"seconds" not in bytes(t.payload)):
                assert (t.role, t.name) not in found
                found[t.role, t.name] = (tuple(t.shape), bytes(t.payload))
    return found
a, b = map(frames, sys.argv[2:])
assert a.keys() == b.keys() and a, a.keys() ^ b.keys()
differ = [k for k in a if a[k] != b[k]]
assert not differ, differ[:3]
print(len(a), "frames")
PYTHON
}

shares_at() { # WORK POINT: of layer 1
    jq -r "select(.stage == \"share\" and .layer == 1 and .point == \"$2\") | .number" "$1"/solve-*/stages.jsonl | sort -u | wc -l
}

# A start that costs nothing: rows of small linears are shared, too.  1,920 outputs: losses
# of others are measured on a third of the rows.
@test "rows of a linear in shares: the codes and notes of the pipe, in every effort" {
    mkdir wide
    cp "$model"/tokenizer* wide
    sed -E 's/("hidden_size": )[^,]*/\1128/; s/("intermediate_size": )[^,]*/\11920/; s/("num_attention_heads": )[^,]*/\12/
        s/("num_key_value_heads": )[^,]*/\11/; s/("head_dim": )[^,]*/\164/; s/("num_hidden_layers": )[^,]*/\12/' \
        "$model/config.json" >wide/config.json
    mkmodel wide/model.safetensors "$(jq .vocab_size wide/config.json)" 128 1920 2 1 2
    export FORGE_STEP_COST=0
    for how in "--effort fast" "--effort default" "--effort best" "--propagate original"; do
        # shellcheck disable=SC2086
        for jobs in 1 3; do forge quantize wide p$jobs "${small[@]}" --parts 3 --jobs $jobs $how --work w$jobs; done
        same p1 p3
        same_codes w1 w3
        [ "$(shares_at w3 attn_out)" -eq "$(case $how in *fast) echo 3 ;; *original) echo 0 ;; *) echo 1 ;; esac)" ]
        [[ $how == *original ]] || [ "$(shares_at w3 mlp_in)" -eq 3 ]
        [ "$(forge status --json w3 | jq -c '[.percent, .done, .total]')" = '[100,14,14]' ]
        rm -r p1 p3 w1 w3
    done
    # every linear is reported once, when its rows are together
    forge quantize wide p "${small[@]}" --parts 3 --jobs 3 --progress json 2>events
    [ "$(jq -r 'select(.module) | .module' events | sort)" = \
        "$(forge-ls p | sed -nE 's/.*\t(model.layers.*)\.weight_packed.*/\1/p' | sort)" ]
    [ "$(jq -s '[.[] | select(.module) | .done] == [range(1; 15)]' events)" = true ]
}

@test "rows of a mixture's shared expert and attention in shares, whatever the storage" {
    export FORGE_STEP_COST=0
    for family in deepseek_v3:fp8 qwen2_moe:fused-oi; do
        python3 "$MOE" make "${family%:*}" "${family#*:}" m
        for jobs in 1 4; do
            forge quantize m p$jobs "${small[@]}" --effort fast --group 32 --parts 4 --jobs $jobs --work w$jobs
        done
        same p1 p4
        same_codes w1 w4
        [ "$(shares_at w4 attn_out)" -ge 2 ]
        rm -r m p1 p4 w1 w4
    done
}

@test "shares: one where the cores are those of one machine; a run goes on with another number of them" {
    forge quantize "$model" want "${small[@]}" --parts 2 --jobs 2 --work w
    for point in attn_in attn_out mlp_in mlp_mid; do [ "$(shares_at w $point)" -eq 1 ]; done
    rm -r w/solve-*/codes-[123].fts
    lib=$(dirname "$(dirname "$(readlink -f "$(command -v forge)")")")/lib/4bit-forge
    solve=$(basename w/solve-*)
    make -s -f "$lib/pipeline.mk" -C w -j2 "$solve/codes-1-mlp_in.share-0-of-1.fts"
    FORGE_STEP_COST=0 forge quantize "$model" p2 "${small[@]}" --parts 2 --jobs 2 --work w
    same want p2
    [ "$(ls -d w/solve-* | wc -l)" -eq 1 ]
    [ -z "$(find w -name '*.share-*' -o -name 'moments-*')" ]
    # what parts have computed is there: layer 1's shares alone came again
    count() { jq -s "[.[] | select(.stage == \"$1\" and .layer == 1 and .point == \"mlp_in\")] | length" w/solve-*/stages.jsonl; }
    [ "$(count moments)" -eq 4 ]
    [ "$(count share)" -eq 4 ]
    for bad in x -1 1e3 9999999; do
        FORGE_STEP_COST=$bad refused 64 forge quantize "$model" out "${small[@]}" --parts 2
    done
}

@test "make by hand does the same, with the work directory alone" {
    forge quantize "$model" want "${small[@]}" --parts 2 --jobs 2 --work w
    mv want first
    rm w/solve-*/codes-[13].fts
    run -0 forge status w
    [[ $output == *"layer 1 waits at attn_in: 0 of 2 parts have moments, 0 of 1 shares codes"* ]]
    [ "$(forge status --json w | jq -c .stop)" = \
        '{"layer":1,"point":"attn_in","parts":2,"moments":0,"pieces":0,"merged":0,"shares":1,"solved":0}' ]
    [ "$(jq -c 'select(.stage == "share" and .layer == 2) | [.point, .number, .host]' w/solve-*/stages.jsonl | sort | head -n 1)" = \
        "[\"attn_in\",0,\"$(hostname)\"]" ]
    steps=$(wc -l <"$(echo w/solve-*/stages.jsonl)")
    [[ $output == *$'\n'"$(hostname): $steps steps, "* ]]
    [ "$(forge status --json w | jq -c '[.hosts[] | [.host, .steps]]')" = "[[\"$(hostname)\",$steps]]" ]
    lib=$(dirname "$(dirname "$(readlink -f "$(command -v forge)")")")/lib/4bit-forge
    make -s -f "$lib/pipeline.mk" -C w -j3
    [ "$(forge status --json w | jq -c '[.percent, .stop]')" = '[100,null]' ]
    same first want
}

# Kill a run of many steps at random, again and again; what is left is used, by a pipe
# now and then.
kill_often() { # WORK OPTION...
    local work=$1 kills=0
    shift
    for ((i = 0; i < 12; i++)); do
        setsid forge quantize "$model" out "${small[@]}" --work "$work" --jobs $((i % 4 ? 2 : 1)) "$@" >said 2>&1 3>&- &
        victim=$!
        # the first two come in time, before a run of 0.3 s ends
        if [ $i -lt 2 ]; then sleep "0.0$((RANDOM % 9 + 1))"; else sleep "$((i / 6)).$((RANDOM % 9 + 1))"; fi
        ! kill -KILL -- "-$victim" 2>/dev/null || kills=$((kills + 1))
        wait "$victim" || true
        [ ! -e out ] || break
        # a part of the states is lost now and then
        [ $((i % 3)) -ne 0 ] || find "$work" scratch -name 'states-*.part-1.fts' -delete 2>/dev/null || true
        [ $((i % 5)) -ne 0 ] || rm -rf scratch/forge-*
    done
    [ -e out ] || forge quantize "$model" out "${small[@]}" --work "$work" "$@"
    echo "$kills kills"
    [ "$kills" -ge 2 ]
    work_of "$work"
}

@test "a run that is killed again and again, and loses states, ends with the same bytes" {
    forge quantize "$model" want "${small[@]}" --parts 3
    kill_often work --parts 3
    same want out
    rm -r out work
    mkdir scratch
    export FORGE_STEP_COST=0 # large moments, which are merged in pieces
    kill_often work --parts 3 --scratch scratch
    same want out
    # nothing is left on scratch, and in the work directory the codes alone
    forge quantize "$model" other "${small[@]}" --parts 3 --scratch scratch --work w2 --jobs 3
    same want other
    [ -z "$(find scratch -type f -name '*.fts' -newer other/config.json)" ]
    [ -z "$(find w2 -name 'states-*' -o -name 'moments-*' -o -name 'merged-*' -o -name '*.share-*')" ]
}

# Between the look for the states and their opening: the step is tried again.
@test "states that vanish when a step is about to read them are 75, and found or made again" {
    mkdir -p other/bin scratch
    bin=$(dirname "$(readlink -f "$(command -v forge)")")
    cp "$bin"/forge* other/bin
    ln -s "$(dirname "$bin")/lib" other/lib
    mv other/bin/forge-calib other/bin/calib
    cat >other/bin/forge-calib <<'SH'
#!/bin/sh
for last; do :; done
case $last in
*states-1-mlp_in.part-1.fts) mkdir "$GONE" 2>/dev/null && rm "$last" ;;
esac
exec "${0%/*}/calib" "$@"
SH
    chmod +x other/bin/forge-calib
    export PATH=$PWD/other/bin:$PATH GONE=$PWD/gone
    way=("${small[@]}" --parts 2 --jobs 2 --scratch "$PWD/scratch" --work w)
    run -75 --separate-stderr forge quantize "$model" out "${way[@]}"
    [ -d gone ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"cannot open '"*"/states-1-mlp_in.part-1.fts'"* ]]
    forge quantize "$model" out "${way[@]}"
    rmdir gone
    FORGE_RETRIES=1 forge quantize "$model" again "${way[@]}" --work w2
    [ -d gone ]
    forge quantize "$model" want "${small[@]}" --parts 2
    same want out
    same want again
}

@test "a pipe goes on with the layers that steps have made, and removes what they left" {
    forge quantize "$model" want "${small[@]}" --parts 3
    mkdir scratch
    FORGE_STEP_COST=0 setsid forge quantize "$model" out "${small[@]}" --parts 3 --jobs 2 --scratch scratch --work w \
        >said 2>&1 3>&- &
    victim=$!
    for ((i = 0; i < 600; i++)); do
        [ ! -e "$(echo w/solve-*/merged-2-*.piece-1.fts | cut -d' ' -f1)" ] || break
        sleep 0.05
    done
    kill -TERM -- "-$victim"
    wait "$victim" || true
    [ ! -e out ]
    [ -n "$(find w -name 'moments-*')" ]
    [ -n "$(find w -name 'merged-*')" ]
    forge quantize "$model" out "${small[@]}" --parts 3 --scratch scratch --work w
    same want out
    # layers 0 and 1 were not solved again
    [ "$(jq -rs '[.[] | select(.stage == "loop")] | length' w/solve-*/stages.jsonl)" -eq 1 ]
    [ -z "$(find w scratch -name 'states-*' -o -name 'moments-*' -o -name 'merged-*' -o -name '*.share-*' -o \
        -name hidden.fts)" ]
}

@test "an empty share is named, with what to do, and is in no layer" {
    way=("${small[@]}" --parts 3 --jobs 2 --effort fast --work w)
    forge quantize "$model" out "${way[@]}" 2>/dev/null &
    pid=$!
    until compgen -G 'w/solve-*/codes-3-mlp_in.share-0-of-*.fts' >/dev/null; do
        kill -0 $pid
        sleep 0.01
    done
    kill -TERM $pid
    wait $pid || true
    rm -f w/solve-*/codes-3.fts
    share=$(compgen -G 'w/solve-*/codes-3-mlp_in.share-0-of-*.fts')
    : >"$share"
    refused 65 forge quantize "$model" out "${way[@]}"
    [[ $stderr == *"'${share#w/}'"*": remove it from the work directory, and the same command makes it again" ]]
    [ ! -e "$(echo w/solve-*)/codes-3.fts" ]
    rm "$share"
    forge quantize "$model" out "${way[@]}"
    forge quantize "$model" alone "${small[@]}" --parts 3 --effort fast
    same out alone
}

@test "two work directories with one key have states of their own on scratch" {
    mkdir scratch
    way=("${small[@]}" --effort fast --parts 2 --jobs 2 --scratch "$PWD/scratch")
    forge quantize "$model" a "${way[@]}" --work one &
    forge quantize "$model" b "${way[@]}" --work two
    wait $!
    same a b
}

@test "what cannot be is refused, and a full scratch is said" {
    refused 64 forge quantize "$model" out "${small[@]}" --parts 5
    refused 64 forge quantize "$model" out --method rtn --parts 2
    refused 64 forge quantize "$model" out "${small[@]}" --scratch .
    refused 64 forge quantize "$model" out "${small[@]}" --parts 0
    touch file
    for dir in none file; do
        for jobs in 1 2; do
            refused 73 forge quantize "$model" out "${small[@]}" --parts 2 --jobs $jobs --scratch $dir
            [ "$stderr" = "forge: --scratch: '$PWD/$dir' is no directory to write in" ]
            [ ! -e out.work ]
        done
    done
    # only a step knows the machine that it is on
    FORGE_RETRIES=0 refused 73 forge quantize "$model" out "${small[@]}" --parts 2 --jobs 2 --scratch none --work w
    [[ $stderr == "forge: --scratch: '$PWD/none/forge-"*"' cannot be created: No such file or directory" ]]
    forge quantize "$model" out "${small[@]}" --parts 2 --dry-run >plan
    grep -x 'parts  *2, one after the other in one pipe (--jobs 1)' plan
    forge quantize "$model" out "${small[@]}" --parts 2 --jobs 2 --dry-run >plan
    grep -x 'parts  *2; a layer writes up to [0-9.]* [KM]iB into the work directory: .* every input: [0-9.]* [KM]iB)' plan
    grep -x 'states  *[0-9.]* [KM]iB in the work directory' plan
    grep -x 'steps  *12 in a layer: 8 of parts, 4 of shares' plan
    FORGE_STEP_COST=0 forge quantize "$model" out "${small[@]}" --parts 2 --jobs 2 --dry-run >plan
    grep -x 'steps  *22 in a layer: 8 of parts, 8 that merge, 6 of shares' plan
    forge quantize "$model" out "${small[@]}" --parts 2 --jobs 2 --grid '*=8bit' --dry-run >eight
    of_inputs() { sed -nE 's/^parts .* every input: ([0-9.]*) MiB\)$/\1/p' "$1"; }
    # half a byte more for each of a layer's 786,432 weights
    awk -v a="$(of_inputs plan)" -v b="$(of_inputs eight)" 'BEGIN { print a, b; exit !(b - a > 0.36 && b - a < 0.39) }'
    forge quantize "$model" out "${small[@]}" --parts 2 --jobs 2 --scratch /tmp --dry-run >plan
    grep -x 'states  *[0-9.]* [KM]iB on scratch; in the work directory [0-9.]* [KM]iB in every eighth layer' plan
}

@test "what a layer writes into the work directory is what --dry-run says" {
    python3 "$MOE" make deepseek_v3 plain moe
    lib=$(dirname "$(dirname "$(readlink -f "$(command -v forge)")")")/lib/4bit-forge
    for m in "$model" moe; do
        rm -rf w out
        options=("${small[@]}" --parts 4 --jobs 2 --work w)
        [ "$m" != moe ] || options+=(--group 32)
        forge quantize "$m" out "${options[@]}" --dry-run >plan
        forge quantize "$m" out "${options[@]}"
        rm w/solve-*/codes-2.fts
        last=$(make -n -s -f "$lib/pipeline.mk" -C w | grep -o 'share 2-[a-z_]* [0-9]*' | tail -n 1)
        read -r _ stop share <<<"$last"
        solve=$(basename w/solve-*)
        shares=()
        for ((k = 0; k <= share; k++)); do shares+=("$solve/codes-$stop.share-$k-of-$((share + 1)).fts"); done
        make -s -f "$lib/pipeline.mk" -C w -j2 "${shares[@]}"
        find w/solve-* \( -name 'moments-2-*' -o -name '*.share-*' \) -printf '%s\n' >sizes
        # a frame's payload is aligned to 4 KiB
        numfmt --from=iec "$(sed -nE 's/^parts .* up to ([0-9.]*) ([KM])iB.*/\1\2/p' plan)" |
            awk '{ says = $1 } END { while ((getline size <"sizes") > 0) { wrote += size; n++ }
                print "says", says, "wrote", wrote
                exit !(wrote <= 1.02 * says + n * 65536 && wrote > 0.7 * says) }'
    done
}

@test "parts take turns on the GPUs that they see, with the bytes of one GPU" {
    mkdir -p gpu/bin
    bin=$(dirname "$(readlink -f "$(command -v forge)")")
    cp "$bin"/forge* gpu/bin
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" gpu/bin
    cp gpu/bin/forge-cuda.so gpu/libcuda.so.1 # the driver that --device auto looks for
    ln -s "$(dirname "$bin")/lib" gpu/lib
    export PATH=$PWD/gpu/bin:$PATH LD_LIBRARY_PATH=$PWD/gpu
    more=("${small[@]}" --parts 3 --jobs 3 --device auto)
    export FORGE_STEP_COST=0
    FAKE_CUDA_LOG=$PWD/one.log FAKE_CUDA_DEVICES=1 forge quantize "$model" one "${more[@]}"
    FAKE_CUDA_LOG=$PWD/two.log FAKE_CUDA_DEVICES=2 forge quantize "$model" two "${more[@]}" --work w
    same one two
    [ "$(grep '^device' one.log | sort -u)" = 'device 0 0x0' ]
    [ "$(grep '^device' two.log | sort -u)" = $'device 0 0x0\ndevice 1 0x0' ]
    # of part, piece and share 1 alone on the second: forge-calib, -hessian; -hessian; -hessian, -grid, -solve
    opened=$(jq -r 'select(.number == 1) | .stage' w/solve-*/stages.jsonl |
        awk '{ sum += /share/ ? 3 : /merge/ ? 1 : 2 } END { print sum }')
    [ "$(grep -c '^device 1' two.log)" -eq "$opened" ]
    run -64 forge-grid --device auto:1 /dev/null
    run -64 forge-grid --device cpu:%1 /dev/null
}

@test "bench/cluster.py finds the rates of steps that are known, and prints a table" {
    FORGE_STEP_COST=0 forge quantize "$model" first "${small[@]}" --parts 4 --jobs 2 --work w0
    run -1 python3 "$tree/bench/cluster.py" "$model" "$model=w0"
    [[ $output == "cluster.py: 'w0': "[2-4]" shares at "*", where forge-plan has 1: want a new run, with FORGE_STEP_COST=20" ]]
    FORGE_STEP_COST=20 forge quantize "$model" out "${small[@]}" --parts 4 --jobs 2 --work w
    forge-plan --parts 4 "$model" >plan
    # 0.25 s for what a part does; for shares 2 s/GFLOP, of factors 3, and no constant
    jq -c --slurpfile plan plan '. as $x | if .stage == "moments" then .seconds = 0.25 elif .stage == "share" then
        .seconds = ($plan[] | select(.layer == $x.layer and .point == $x.point) | 3e-9 * .factor + 2e-9 * .solve / .spread)
        else . end' w/solve-*/stages.jsonl >known
    cp known w/solve-*/stages.jsonl
    python3 "$tree/bench/cluster.py" "$model" "$model=w" >said
    cat said
    grep -x 'moments: [1-9][0-9]* steps .*: 0.250 s + 0.00000 s/GFLOP + 0.00000 s/GFLOP of attention + 0.00000 s/GB of files + 0.00000 s/GB of weights; relative error 0.00' said
    grep -x 'share: [1-9][0-9]* steps .*: 0.000 s + 2.00000 s/GFLOP + 3.00000 s/GFLOP of factors + 0.00000 s/GB; relative error 0.00' said
    [ "$(grep -c '^ *[0-9]* *8 [cG][oP]' said)" -eq 8 ]
    grep -x ' *1  8 cores  *1 .* 0 %  *100 %' said
    NODES="4 64" python3 "$tree/bench/cluster.py" "$model" "$model=w" >some
    grep -vE '^ *(1|16) *8 [cG]' said | cmp - some
    # rows in shares are worth it where linears are large
    mkdir wide && jq '.hidden_size = 4096 | .intermediate_size = 11008 | .num_attention_heads = 32 | .num_key_value_heads = 32' "$model/config.json" >wide/config.json
    for whole in 0 1; do
        WHOLE=$whole NODES=16 python3 "$tree/bench/cluster.py" wide "$model=w" | awk '/16  8 cores/ { print $(NF - 1) }'
    done | paste -sd ' ' >efficiency
    read -r rows whole <efficiency
    [ "$rows" -gt $((2 * whole)) ]
}
