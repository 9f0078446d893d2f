#!/usr/bin/env bats
# forge-report's page in a real browser (Debian: chromium), skipped without one.

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

drawn() { # PAGE
    local rc=0
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/report_check.py" "$@" || rc=$?
    [ $rc -ne 77 ] || skip "no browser"
    return $rc
}

made_up() { # LAYERS EXPERTS
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/../reference/report.py" make work "$1" "$2"
    forge-report --eval work/eval.jsonl -o page.html work
}

@test "a run of the example model is drawn, light and dark" {
    tree=$BATS_TEST_DIRNAME/../..
    forge quantize "$tree/examples/llama-4m" out --work work \
        --text "$tree/examples/calib.jsonl" --sequences 4 --seqlen 64 --quiet
    forge report work --text "$tree/examples/eval.txt" --sequences 2 \
        --seqlen 128 --quiet -o page.html
    drawn page.html
    drawn page.html 500
}

@test "so is a mixture of experts, also on a narrow window" {
    made_up 5 16
    drawn page.html
    drawn page.html 500
}

@test "so is one with thousands of experts" {
    made_up 40 128
    drawn page.html
    drawn page.html 500
}
