#!/usr/bin/env bats
# forge report on a run of the example model.

load e2e

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    forge quantize "$model" out "${small[@]}" --work work
}

setup() { cd "$BATS_FILE_TMPDIR" || return 1; }

@test "a page about a run" {
    forge report work >page.html
    grep -q '<h1>llama-4m in 4 bits</h1>' page.html
    grep -q '28 quantized, in 4 decoder layers' page.html
    [ "$(grep -o 'td class="cell h[0-9]*"' page.html | wc -l)" -eq 28 ]
    # the command, the date, the host, the bits: those of this run
    grep -q "<code>forge quantize $model out --text $text --sequences 4 --seqlen 64 --quiet --work work </code>" page.html
    grep -q "<th>date</th><td>$(date -u -d "@$(jq .started work/settings.json)" '+%Y-%m-%d %H:%M') UTC<" page.html
    grep -q "<th>host</th><td>$(hostname), CPU level " page.html
    bits=$(python3 - out "$model" <<'PYTHON'
import json, os, struct, sys
def tensors(path):
    b = open(path + "/model.safetensors", "rb").read()
    h = json.loads(b[8:8 + struct.unpack("<Q", b[:8])[0]])
    return {k: (v["data_offsets"][1] - v["data_offsets"][0], v["shape"]) for k, v in h.items() if k != "__metadata__"}
out, model = tensors(sys.argv[1]), tensors(sys.argv[2])
size = lambda shape: eval("*".join(map(str, shape)))
linears = {k.rsplit(".", 1)[0] for k in out if k.endswith("weight_packed")}
parts = sum(n for k, (n, _) in out.items() if k.rsplit(".", 1)[0] in linears)
print("%.3f of the quantized linear layers, scales included; %.3f of the whole checkpoint" % (
    8 * parts / sum(size(model[k + ".weight"][1]) for k in linears),
    8 * sum(n for n, _ in out.values()) / sum(size(s) for _, s in model.values())))
PYTHON
    )
    grep -q "<th>bits per weight</th><td>$bits</td>" page.html
    run -1 grep 'id="eval"' page.html
    grep -q '<td>calibration and solving</td><td class="n">1</td>' page.html
    grep -q '<td>packing and writing</td>' page.html
    run -1 grep "$PWD" page.html
}

@test "--compare: checkpoints and figures beside the run; JSON, CSV" {
    forge quantize "$model" rtn --method rtn --quiet --work nearest
    forge report nearest >rtn.html # without losses, and without an effort
    python3 "$tree/tests/reference/report.py" layout rtn.html
    [ "$(grep -c '<td class="name">' rtn.html)" -eq 28 ]
    grep -q '<th>method</th><td>rtn</td>' rtn.html
    forge quantize "$model" quick "${small[@]}" --effort fast
    forge eval "$model" quick --text "$tree/examples/eval.txt" --sequences 2 --seqlen 64 --json --quiet >quick.json
    forge report work --text "$tree/examples/eval.txt" --sequences 2 --seqlen 64 --quiet \
        --compare 'round to nearest=rtn' --compare fast=quick.json -o both.html --json both.json --csv both.csv
    python3 "$tree/tests/reference/report.py" layout both.html
    [ "$(jq -c '.evaluations_beside | keys' both.json)" = '["fast","round to nearest"]' ]
    [ "$(jq -c '.evaluations_beside.fast[0] | [.kl_mean, .kl_histogram]' both.json)" = \
        "$(jq -c '[.kl_mean, .kl_histogram]' quick.json)" ]
    [ "$(jq '.evaluations_beside["round to nearest"][0].kl_mean > .evaluation[3].kl_mean' both.json)" = true ]
    [ "$(jq -r '.evaluation[3] | .original + .other + .text' both.json)" = llama-4mouteval.txt ]
    [ "$(wc -l <both.csv)" -eq 29 ]
    grep -q '<b>eval.txt</b>' both.html
    [ -z "$(find work -name '*compare*')" ]
    rm work/solve-*/by-layer-*
    run -64 --separate-stderr forge report work --compare rtn=rtn -o no.html
    [[ $stderr == *"a directory wants --text"* ]]
    run -64 --separate-stderr forge report work --compare rtn -o no.html
    run -64 --separate-stderr forge report work --compare "$(printf %064d 0)=quick.json" -o no.html
    [[ $stderr == *"want NAME=PATH" ]]
    run -66 --separate-stderr forge report work --compare rtn=nowhere -o no.html
    run -64 --separate-stderr forge report work --text - --compare rtn=rtn -o no.html <"$text"
    [ ! -e no.html ]
}

@test "--text evaluates layer by layer, and the page keeps what was found" {
    forge report work --text "$tree/examples/eval.txt" --sequences 2 --seqlen 64 \
        --quiet --output page.html --title 'Some model'
    grep -q '<h1>Some model in 4 bits</h1>' page.html
    [ "$(grep -c 'i class="dot.*quantized up to layer' page.html)" -eq 8 ]
    grep -q 'predictions at 126 tokens' page.html
    forge report work -o again.html --title 'Some model'
    cmp page.html again.html
    # ... while the packed tensors are those that it looked at
    forge quantize "$model" awq "${small[@]}" --work work --layout awq
    forge report work -o awq.html
    run -1 grep 'i class="dot' awq.html
}

@test "values that begin with -- are values" {
    cp "$tree/examples/eval.txt" ./--t.txt
    forge report work --text ./--t.txt --sequences 2 --seqlen 64 --quiet --json=--p.json -o ./--p.html --title=--name
    grep -q '<h1>--name in 4 bits</h1>' ./--p.html
    jq -e . ./--p.json >/dev/null
    rm ./--* work/solve-*/by-layer-*
}

@test "what is wrong is said in one line" {
    run -66 --separate-stderr forge report nowhere
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -64 --separate-stderr forge report work -o
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -64 --separate-stderr forge status work -o x
    run -66 --separate-stderr forge report work --text nowhere
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -73 --separate-stderr forge report work -o no/where.html
    [ "${#stderr_lines[@]}" -eq 1 ]
    mv awq moved
    run -66 --separate-stderr forge report work --text "$text" --quiet
    [ "${#stderr_lines[@]}" -eq 1 ]
    mv moved awq
    : >empty
    run -65 --separate-stderr forge report work --text empty
    printf 'x' >short
    run -65 --separate-stderr forge report work --text short --quiet --seqlen 2000
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ -z "$(find work -name '*.tmp.*')" ]
    cp -r work other
    codes=$(echo other/solve-*/codes-1.fts)
    rm "$codes"
    mkfifo "$codes"
    run -65 --separate-stderr timeout 10 forge report other
    [[ $stderr == "forge"*": '$codes': not a regular file" ]]
    [ "${#stderr_lines[@]}" -eq 1 ]
}
