#!/usr/bin/env bats
# A killed run, resumed, gives the bytes of one that was never interrupted.

load e2e

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    local start=${EPOCHREALTIME/[.,]/}
    forge quantize "$model" whole "${small[@]}"
    echo $(((${EPOCHREALTIME/[.,]/} - start) / 1000)) >milliseconds
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    whole=$BATS_FILE_TMPDIR/whole
    took=$(<"$BATS_FILE_TMPDIR/milliseconds")
}

start() { # in a process group of its own
    setsid forge quantize "$model" "$1" "${small[@]}" "${@:2}" \
        >/dev/null 2>&1 3>&- &
    victim=$!
}

# Processes of a group that are no zombies, or those of them with this name.
# awk itself would stop at the first file that is gone when it opens it.
members() { # GROUP [NAME]
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v g="$1" -v n="${2:+($2)}" \
        '$5 == g && $3 != "Z" && (n == "" || $2 == n) { print $1 }'
}

alive() { # GROUP
    [ -n "$(members "$1")" ]
}

# The first process of this name in a group, as soon as there is one.
find_in() { # GROUP NAME
    for ((i = 0; i < 1000; i++)); do
        found=$(members "$1" "$2" | head -n 1)
        [ -z "$found" ] || return 0
        sleep 0.005
    done
    return 1
}

pause() { # MILLISECONDS
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

@test "states that a killed loop left go with the result" {
    forge quantize "$model" out "${small[@]}" --effort fast --work work
    rm -r out
    : >"$(echo work/solve-*)/hidden.fts"
    forge quantize "$model" out "${small[@]}" --effort fast --work work
    [ -z "$(find work -name hidden.fts)" ]
}

@test "other damaged files of a work directory are named with what to do" {
    forge quantize "$model" out "${small[@]}" --work work
    for name in tokens fisher; do
        rm -rf out work/solve-*
        bad=$(cd work && echo ./*/$name.fts)
        cp "work/$bad" whole
        head -c 1000 whole >"work/$bad"
        run -65 --separate-stderr forge quantize "$model" out "${small[@]}" --work work
        [[ $stderr == *"'${bad#./}': "*": remove it from the work directory, and the same command makes it again" ]]
        cp whole "work/$bad"
    done
}

@test "twenty kills at twenty moments, each resumed to the same bytes" {
    for ((i = 1, tries = 0; i <= 20 && tries < 100; tries++)); do
        start out
        pause $((took * i / 20))
        if kill -KILL -- "-$victim" 2>/dev/null; then
            i=$((i + 1))
        else
            took=$((took * 9 / 10)) # faster than the first time
        fi
        wait "$victim" || true
        [ ! -e out ] || same "$whole" out
        [ -e out ] || forge quantize "$model" out "${small[@]}"
        same "$whole" out
        rm -rf out out.work
    done
    [ "$i" -eq 21 ]
}

@test "one run killed again and again gets there, and keeps what it has" {
    for ((i = 0; i < 40; i++)); do
        start out --work work
        pause $((took / 4 + i * took / 50))
        kill -KILL -- "-$victim" 2>/dev/null || true
        wait "$victim" || true
        [ ! -e out ] || break
    done
    same "$whole" out
    forge gc work
    [ -z "$(find work -name '*.tmp.*')" ]
}

solving() { # WORK: wait until the first layer is done
    for ((i = 0; i < 1000; i++)); do
        compgen -G "$1/solve-*/codes-0.fts" >/dev/null && return
        sleep 0.01
    done
    return 1
}

@test "states of both streams are kept, and a resumed run starts from them" {
    local big=(--text "$text" --sequences 48 --quiet)
    forge quantize "$model" want "${big[@]}"
    setsid forge quantize "$model" out --work work "${big[@]}" \
        >/dev/null 2>&1 3>&- &
    victim=$!
    until compgen -G 'work/solve-*/hidden.fts' >/dev/null; do
        kill -0 "$victim"
        sleep 0.01
    done
    kill -KILL -- "-$victim"
    wait "$victim" || true
    forge-ls work/solve-*/hidden.fts | grep -q '\.original'
    # without the codes of the layers before, they are no place to start
    cp -r work other
    rm other/solve-*/codes-0.fts
    forge quantize "$model" out --work other "${big[@]}"
    same want out
    rm -r out
    : >"$(echo work/tokens-*/tokens.fts)" # from here it could not start
    forge quantize "$model" out --work work "${big[@]}"
    same want out
    run -1 compgen -G 'work/solve-*/hidden.fts'
}

@test "states go when all codes are there, while the checkpoint is still written" {
    local states
    setsid forge quantize "$model" out --work work --text "$text" --sequences 48 --quiet >/dev/null 2>&1 3>&- &
    victim=$!
    find_in "$victim" forge-shard
    kill -STOP "$found"
    until compgen -G 'work/solve-*/hidden.fts' >states; do sleep 0.01; done
    states=$(<states)
    for ((i = 0; i < 6000; i++)); do
        [ -e "$states" ] || break
        sleep 0.01
    done
    run -0 compgen -G 'work/solve-*/codes-3.fts'
    [ ! -e "$states" ]
    [ "$(members "$victim" forge-shard)" = "$found" ]
    kill -CONT "$found"
    wait "$victim"
    forge-shard --from "$model" --verify out
}

@test "codes of a work directory that are damaged are named, and made again where they are removed" {
    local bad way
    for way in gptq rtn; do
        [ $way = gptq ] || small=("${nearest[@]}")
        forge quantize "$model" want "${small[@]}" --method $way --work work
        bad=$(cd work && echo solve-*/codes-1.fts)
        cp "work/$bad" codes
        printf '\377' | dd of="work/$bad" bs=1 seek=$(($(stat -c %s codes) / 2)) conv=notrunc status=none
        for damage in flip cut; do
            [ $damage = flip ] || truncate -s -1000 "work/$bad"
            refused 65 forge quantize "$model" out "${small[@]}" --method $way --work work
            [[ $stderr == "forge: forge-pack: '$bad': "*": remove it from the work directory, and the same command makes it again" ]]
        done
        rm "work/$bad"
        forge quantize "$model" out "${small[@]}" --method $way --work work
        same want out
        rm -r want out work
    done
}

@test "a report of a work directory that is lost or damaged is made again of the codes" {
    local report way
    for way in "gptq" "gptq --parts 2 --jobs 2" "rtn"; do
        small=("${small[@]/--quiet/--progress=never}")
        [[ $way == gptq* ]] || small=("${nearest[@]/--quiet/--progress=never}")
        read -ra more <<<"--method $way"
        forge quantize "$model" want "${small[@]}" "${more[@]}" --work work | sed '1d; /^cost/d' >said
        report=$(echo work/solve-*/report-1.jsonl)
        cp "$report" whole
        for damage in lost empty cut line; do
            case $damage in
            lost) rm "$report" ;;
            empty) : >"$report" ;;
            cut) truncate -s -20 "$report" ;;
            line) sed -i 1d "$report" ;;
            esac
            rm -rf out
            forge quantize "$model" out "${small[@]}" "${more[@]}" --work work | sed '1d; /^cost/d' >again
            cmp said again
            cmp "$report" whole
            same want out
        done
        # where its codes are damaged, too, they are what is to be removed
        rm -r "$report" out
        truncate -s -1000 "${report/report-1.jsonl/codes-1.fts}"
        refused 65 forge quantize "$model" out "${small[@]}" "${more[@]}" --work work
        [[ $stderr == "forge: "*"codes-1.fts': "*": remove it from the work directory, and the same command makes it again" ]]
        rm -r "${report/report-1.jsonl/codes-1.fts}"
        forge quantize "$model" out "${small[@]}" "${more[@]}" --work work
        same want out
        rm -r want out work
    done
}

@test "a tool that is killed, or TERM, takes no layer along that was made" {
    for signal in KILL TERM; do
        start out --work work
        solving work
        if [ $signal = KILL ]; then
            for pid in $(members "$victim" forge-calib); do kill -KILL "$pid" || true; done
        else
            kill -TERM "$victim" || true
        fi
        wait "$victim" || true
        [ -e out ] || compgen -G 'work/solve-*/codes-0.fts'
        [ -e out ] || forge quantize "$model" out --work work "${small[@]}"
        same "$whole" out
        rm -rf out work
    done
}

@test "where forge alone is killed, everything else dies too" {
    start out
    solving out.work
    kill -KILL "$victim"
    wait "$victim" || true
    for ((i = 0; i < 50; i++)); do
        alive "$victim" || break
        sleep 0.1
    done
    run -1 alive "$victim"
    [ -e out ] || forge quantize "$model" out "${small[@]}"
    same "$whole" out
}

@test "TERM stops it with a word of what to do, and it continues" {
    forge quantize "$model" out "${small[@]}" --progress json 2>err &
    victim=$!
    solving out.work
    kill -TERM "$victim"
    status=0
    wait "$victim" || status=$?
    [ "$status" -eq 143 ]
    grep -q 'continues' err
    grep '^{' err | jq -es '.[-1].event == "end" and .[-1].status == 143'
    [ ! -e out ]
    forge quantize "$model" out "${small[@]}"
    same "$whole" out
}

# A forge whose forge-shard publishes OUT and is not done yet: it waits to be stopped.
lingering() {
    local bin
    bin=$(dirname "$(command -v forge)")
    mkdir -p own/bin
    ln -s "$bin"/* own/bin
    ln -s "$(dirname "$bin")/lib" own/lib
    rm own/bin/forge own/bin/forge-shard
    cp "$bin/forge" own/bin # finds the tools beside itself
    printf '#!/bin/sh\n%q "$@" && : >%q && exec sleep 100\n' "$bin/forge-shard" "$PWD/published" >own/bin/forge-shard
    chmod +x own/bin/forge-shard
}

@test "TERM behind the publication of OUT: it is complete, and nothing continues" {
    local work options=("${small[@]}")
    lingering
    for work in out.work work; do
        [ $work = out.work ] || options+=(--work "$work")
        own/bin/forge quantize "$model" out "${options[@]}" 2>err &
        victim=$!
        until [ -e published ]; do
            kill -0 "$victim"
            sleep 0.01
        done
        kill -TERM "$victim"
        status=0
        wait "$victim" || status=$?
        [ "$status" -eq 143 ]
        same "$whole" out
        if [ $work = work ]; then
            [ "$(cat err)" = "forge: stopped; 'out' is complete" ]
        else
            [ "$(cat err)" = "forge: stopped; 'out' is complete, and 'forge gc $PWD/$work' removes the rest" ]
            forge gc -q $work
            [ ! -e $work ]
        fi
        rm -r out published
    done
}

@test "TERM ends a tool that is stopped" {
    start out
    solving out.work
    find_in "$victim" forge-solve
    kill -STOP "$found"
    kill -TERM "$victim"
    for ((i = 0; i < 300; i++)); do
        alive "$victim" || break
        sleep 0.1
    done
    run -1 alive "$victim"
    wait "$victim" || true
    forge quantize "$model" out "${small[@]}"
    same "$whole" out
}

@test "INT and HUP of forge alone stop it, too, at once" {
    local signal number
    for signal in INT HUP; do
        rm -rf work
        env --default-signal=INT forge quantize "$model" out --text "$text" --sequences 64 --work work --quiet 2>err &
        victim=$!
        solving work
        kill -"$signal" "$victim"
        status=0 number=$(kill -l "$signal")
        wait "$victim" || status=$?
        [ "$status" -eq $((128 + number)) ]
        grep -q 'continues' err
        [ -z "$(compgen -G 'work/solve-*/codes-3.fts')" ] # it did not wait for its end
    done
}

# A tool that is killed from outside, wherever it stands in the pipe, is what is
# said, and what may work another time.
@test "a tool that is killed is named, and is 75" {
    for tool in forge-calib forge-hessian forge-grid forge-solve forge-split; do
        rm -rf out work
        setsid forge quantize "$model" out --text "$text" --sequences 48 --work work --quiet >said 2>&1 3>&- &
        victim=$!
        solving work
        find_in "$victim" "$tool"
        kill -KILL "$found"
        status=0
        wait "$victim" || status=$?
        cat said
        [ "$status" -eq 75 ]
        [ "$(cat said)" = "forge: $tool: killed by signal 9: out of memory?" ]
        [ ! -e out ]
    done
    # ... and runs again where that was asked for.
    FORGE_RETRIES=2 setsid forge quantize "$model" out --text "$text" --sequences 48 --work work --quiet >said 2>&1 3>&- &
    victim=$!
    find_in "$victim" forge-solve
    kill -KILL "$found"
    wait "$victim"
    [ -e out/config.json ]
    [ ! -s said ]
}

@test "make that is killed says so, in one line, with 75" {
    setsid forge quantize "$model" out --text "$text" --sequences 48 --work work --quiet >said 2>&1 3>&- &
    victim=$!
    find_in "$victim" make
    kill -KILL "$found"
    status=0
    wait "$victim" || status=$?
    cat said
    [ "$status" -eq 75 ]
    [ "$(cat said)" = "forge: make was killed by signal 9; the same command continues" ]
    for ((i = 0; i < 50; i++)); do
        alive "$victim" || break
        sleep 0.1
    done
    run -1 alive "$victim"
    forge quantize "$model" out --text "$text" --sequences 48 --work work --quiet
}

# What goes wrong is said by who saw it first, once, by hand and in a run.
@test "one failure is one line" {
    cp -r "$model" m
    chmod -R u+w m
    forge-weights -q "$model" -o w.fts
    truncate -s -1000 w.fts
    run -65 --separate-stderr bash -c 'set -o pipefail
        forge-grid -q w.fts | forge-solve -q | forge-pack -q | forge-shard -q --from "$1" out' - "$model"
    # shellcheck disable=SC2154
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "forge-grid: 'w.fts': "* ]]
    # The last one fails: those before it have nothing to add.
    mkdir there
    : >there/file
    run -73 --separate-stderr bash -c \
        'forge-weights -q "$1" | forge-grid -q | forge-solve -q | forge-pack -q | forge-shard -q --from "$1" there' - "$model"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "forge-shard: "* ]]
    # No grids.
    run -65 --separate-stderr bash -c \
        'forge-weights -q "$1" | forge-solve -q | forge-pack -q | forge-shard -q --from "$1" out' - "$model"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"no grids: is forge-grid missing?" ]]
    # Nothing solved, nothing packed: no copy of the model is left for a result.
    run -65 --separate-stderr bash -c \
        'forge-weights -q "$1" | forge-pack -q | forge-shard -q --from "$1" out' - "$model"
    [ "$stderr" = "forge-pack: no codes: is forge-solve missing?" ]
    run -65 --separate-stderr bash -c \
        'forge-weights -q "$1" | forge-grid -q | forge-solve -q | forge-shard -q --from "$1" out' - "$model"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "forge-shard: '<stdin>': frame "*": codes not packed: run forge-pack first" ]]
    [ ! -e out ]
    # In a run: two bf16 NaNs at the end of the weights.
    printf '\300\177\300\177' | dd of=m/model.safetensors bs=1 \
        seek=$(($(stat -c %s m/model.safetensors) - 4)) conv=notrunc status=none
    run ! --separate-stderr forge quantize m out "${small[@]}"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} != *forge-*forge-* ]]
    # What was kept in a file is said by who reads it.
    forge-grid -q w.fts >broken 2>/dev/null || true
    run -65 --separate-stderr forge-solve -q broken
    [ "${#stderr_lines[@]}" -eq 1 ]
}
