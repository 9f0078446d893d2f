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
    grep -q '28 in 4 bits, in 4 decoder layers' page.html
    [ "$(grep -c 'rect class="cell hot"' page.html)" -eq 28 ]
    run -1 grep 'id="eval"' page.html
    grep -q '<td>calibration and solving</td><td class="n">1</td>' page.html
    grep -q '<td>packing and writing</td>' page.html
    run -1 grep "$PWD" page.html
}

@test "--text evaluates layer by layer, and the page keeps what was found" {
    forge report work --text "$tree/examples/eval.txt" --sequences 2 --seqlen 64 \
        --quiet --output page.html --title 'Some model'
    grep -q '<h1>Some model in 4 bits</h1>' page.html
    [ "$(grep -c 'circle class="dot' page.html)" -eq 8 ]
    grep -q 'Predictions at 126 tokens' page.html
    forge report work -o again.html --title 'Some model'
    cmp page.html again.html
    # ... while the packed tensors are those that it looked at
    forge quantize "$model" awq "${small[@]}" --work work --layout awq
    forge report work -o awq.html
    run -1 grep 'circle class="dot' awq.html
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
}
