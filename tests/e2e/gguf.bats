#!/usr/bin/env bats
# forge quantize --layout gguf: one file, and what is refused before any work.

load e2e

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

ggufs() {
    /usr/bin/python3 "$tree/tests/reference/ggufs.py" "$@"
}

@test "the file has the codes of the same run in a layout of engines, in groups of 32" {
    forge quantize "$model" ct "${small[@]}" --group 32
    forge quantize "$model" q.gguf "${small[@]}" --layout gguf
    [ "$(ls)" = $'ct\nq.gguf' ]
    [ "$(ggufs same ct q.gguf)" = "28 linears and 12 other tensors agree" ]
    ggufs pairs q.gguf | grep -qx "general.name q"
    ggufs pairs q.gguf | grep -qx "general.file_type 2"
    forge verify -q q.gguf
    forge quantize "$model" ct-64 "${small[@]}" --group 64 --asym --skip '*.down_proj'
    forge quantize "$model" a.gguf "${small[@]}" --group 64 --asym --skip '*.down_proj' --layout gguf --rest q8_0
    ggufs same ct-64 a.gguf --q8
    ggufs pairs a.gguf | grep -qx "general.file_type 3"
}

@test "a file whose name begins with --" {
    forge quantize "$model" ./--q.gguf "${nearest[@]}" --layout gguf
    ggufs pairs ./--q.gguf | grep -qx "general.name --q"
}

@test "mixtures, with scales that blocks hold" {
    /usr/bin/python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain m
    forge quantize m q.gguf "${small[@]}" --layout gguf --work work
    [[ $(ggufs experts m q.gguf work/packed-*) == *" linears in "*" others agree" ]]
}

@test "a checkpoint in the work directory that is damaged is refused, with what to do" {
    forge quantize "$model" q.gguf "${small[@]}" --layout gguf --work work
    rm q.gguf
    mv work/packed-*/model.safetensors whole
    flip whole >"$(echo work/packed-*)/model.safetensors"
    refused 65 forge quantize "$model" out "${small[@]}" --layout gguf --work work
    [[ $stderr == *"'packed-"*"': tensor '"*"' is not what was written: remove this checkpoint from"* ]]
    /usr/bin/python3 "$tree/tests/reference/moe.py" make deepseek_v3 plain m
    forge quantize m q --keep 4 --group 32 --method rtn --text "$text" --sequences 2 --seqlen 32 -q --work pruned
    mv pruned/pruned-*/model.safetensors whole
    flip whole >"$(echo pruned/pruned-*)/model.safetensors"
    refused 65 forge quantize m out --keep 4 --group 32 --method rtn --text "$text" --sequences 2 --seqlen 32 -q --work pruned
    [[ $stderr == *"is not what was written: remove this checkpoint"* ]]
    rm -r pruned/pruned-*
    forge quantize m out --keep 4 --group 32 --method rtn --text "$text" --sequences 2 --seqlen 32 -q --work pruned
    same q out
}

# FILE with a byte in its middle changed.
flip() {
    local at=$(($(stat -c %s "$1") / 2))
    head -c $at "$1"
    tail -c +$((at + 1)) "$1" | head -c 1 | tr '\000-\377' '\001-\377\000'
    tail -c +$((at + 2)) "$1"
}

@test "a run that was stopped goes on, and another file of the same codes takes no solving" {
    way=("${small[@]}" --layout gguf --work work)
    forge quantize "$model" one.gguf "${way[@]}"
    solved=$(stat -c '%i %Y' work/solve-*/codes-3.fts)
    rm work/solve-*/codes-2.fts
    rm -r work/packed-*
    forge quantize "$model" two.gguf "${way[@]}"
    forge-gguf -q --name two --rest q8_0 work/packed-* q8
    forge quantize "$model" two-q8.gguf "${way[@]}" --rest q8_0
    [ "$(stat -c '%i %Y' work/solve-*/codes-3.fts)" = "$solved" ]
    ggufs same work/packed-* one.gguf
    ggufs same work/packed-* two.gguf
    ggufs same work/packed-* two-q8.gguf --q8
    # but for the name
    [ "$(stat -c %s one.gguf)" = "$(stat -c %s two.gguf)" ]
    forge status work | grep -q "layout gguf.*complete"
    forge report work --text "$text" --sequences 1 --seqlen 32 -q -o page.html
    grep -q "two-q8.gguf" page.html
    forge quantize "$model" ct "${nearest[@]}" --work work
    [ "$(forge gc --settings work)" != "0 removed" ]
    [ -z "$(find work -name 'packed-*')" ]
}

@test "a killed run leaves nothing that looks whole" {
    trap 'kill "$pid" 2>/dev/null || true' EXIT
    for after in solve packed; do
        forge quantize "$model" k.gguf "${small[@]}" --layout gguf --work k &
        pid=$!
        until compgen -G "k/$after-*/*" >/dev/null || ! kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" || true
        [ ! -e k.gguf ] || forge verify -q k.gguf
        rm -f k.gguf
    done
    until forge quantize "$model" k.gguf "${small[@]}" --layout gguf --work k; do sleep 0.1; done
    forge verify -q k.gguf
    ggufs same k/packed-* k.gguf
}

@test "refused before any work" {
    run -64 --separate-stderr forge quantize "$model" x "${small[@]}" --rest q8_0
    [[ $stderr == *"--rest is for --layout gguf" ]]
    refused 64 forge quantize "$model" x.gguf "${small[@]}" --layout gguf --shard-size 1MB
    [[ $stderr == *"--shard-size: --layout gguf is one file" ]]
    refused 78 forge quantize "$model" x.gguf "${small[@]}" --layout gguf --group 16
    [[ $stderr == *"in groups of 16: blocks of GGUF have 32 inputs and one scale" ]]
    cp -r "$model" m
    sed -i 's/"llama"/"minimax_m2"/' m/config.json
    sed -i 's/"hidden_act"/"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act"/' m/config.json
    refused 78 forge quantize m x.gguf "${small[@]}" --layout gguf
    rm -r m
    cp -r "$model" m
    sed -i "s/p{N}{1,3}/p{N}{1,2}/" m/tokenizer.json
    run -78 forge quantize m x.gguf "${small[@]}" --layout gguf
    touch there.gguf
    refused 73 forge quantize "$model" there.gguf "${small[@]}" --layout gguf
    rm -r m there.gguf
    [ -z "$(find . -name "x*" -o -name "*.work")" ]
}

@test "--dry-run says the size of the file and does nothing" {
    said=$(forge quantize "$model" x.gguf --text "$text" --layout gguf --asym -n --rate 100 2>&1 >plan)
    [[ $said == *"Q4_1 holds zero points times scales, rounded to F16"* ]]
    [ -z "$(forge quantize "$model" x.gguf --text "$text" --layout gguf -n --rate 100 2>&1 >/dev/null)" ]
    grep -q "group 32, asymmetric, layout gguf" plan
    [ "$(ls)" = plan ]
    forge quantize "$model" x.gguf "${nearest[@]}" --layout gguf --asym
    python3 - "$(stat -c %s x.gguf)" "$(sed -n 's/^output.*about \([0-9.]*\) MiB$/\1/p' plan)" <<'P'
import sys
real, said = float(sys.argv[1]), float(sys.argv[2]) * 2 ** 20
assert abs(said / real - 1) < 0.05, (said, real)  # metadata are not in it
P
}
