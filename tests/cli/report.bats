#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-report(1) as a user meets it: what the page says, options, exit codes.

bats_require_minimum_version 1.5.0

setup_file() {
    export REPORT=$BATS_TEST_DIRNAME/../reference/report.py
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$REPORT" make dense 4 0
    python3 "$REPORT" make moe 5 16
    export D=$BATS_FILE_TMPDIR
}

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

set_in() { # WORK CHANGE: of its settings
    jq -c "$2" "$1/settings.json" >new.json
    mv new.json "$1/settings.json"
}

# One line that begins with the tool's name, and no page.
refused() { # STATUS COMMAND...
    run "-$1" --separate-stderr "${@:2}"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "forge-report: "* ]]
}

@test "a dense model: numbers and marks are those of the records" {
    forge-report --eval "$D/dense/eval.jsonl" -o page.html "$D/dense"
    python3 "$REPORT" check "$D/dense" page.html "$D/dense/eval.jsonl"
}

@test "JSON and CSV have the same, and the page points to them" {
    for m in dense moe; do
        forge-report --eval "$D/$m/eval.jsonl" --json p.json --csv p.csv -o page.html "$D/$m"
        python3 "$REPORT" data "$D/$m" p.json p.csv
        grep -q '<a href="p.json">.*<a href="p.csv">' page.html
        mkdir "$m" && forge-report --json "$m/q.json" --csv "$m/q.csv" --eval "$D/$m/eval.jsonl" "$D/$m" >other.html
        cmp p.json "$m/q.json"
        cmp p.csv "$m/q.csv"
        sed -i 's/"q\.\(json\|csv\)"/"p.\1"/g' other.html
        cmp page.html other.html
    done
    for same in "--json x -o x" "--csv x -o x" "--csv ./x -o x" "--json x --csv x" "--json x --csv $PWD/x"; do
        # shellcheck disable=SC2086 # options
        refused 64 forge-report $same "$D/dense"
        [[ $stderr == *" are one file, "* ]]
        # shellcheck disable=SC2086
        run -64 forge report "$D/dense" $same
        [ ! -e x ]
    done
    forge-report --json /dev/null --csv /dev/null -o /dev/null "$D/dense"
    refused 73 forge-report --json no/where.json -o none.html "$D/dense"
    [ ! -e none.html ]
    refused 74 forge-report --csv /dev/full -o none.html "$D/dense"
}

@test "the page's links lead from its place to the files" {
    links() { # OPTION...: prints them
        mkdir -p sub/deep "a b"
        forge-report "$@" "$D/dense"
        grep -o 'href="[^"]*">[a]ll\|href="[^"]*">the modules' "${*: -1}" | cut -d'"' -f2
    }
    [ "$(links --csv sub/p.csv -o p2.html)" = sub/p.csv ]
    [ "$(links --csv p.csv -o sub/deep/p.html)" = ../../p.csv ]
    [ "$(links --csv sub/p.csv -o sub/deep/p.html)" = ../p.csv ]
    [ "$(links --csv "$PWD/sub/p.csv" -o "$PWD/p.html")" = sub/p.csv ]
    [ "$(links --csv "a b/50%:1?#é.csv" -o p.html)" = 'a%20b/50%25%3A1%3F%23%C3%A9.csv' ]
}

@test "--compare: other checkpoints' figures beside the run's" {
    python3 "$REPORT" peer rtn.json 0.02 3
    python3 "$REPORT" peer fast.json 0.006 4
    forge-report --eval "$D/dense/eval.jsonl" --compare 'round to <nearest>=rtn.json' --compare fast=fast.json -o page.html "$D/dense"
    python3 "$REPORT" peers page.html "$D/dense/eval.jsonl" 'round to <nearest>=rtn.json' fast=fast.json
    python3 "$REPORT" layout page.html
    jq -c '.text_sha256 = "cd" + .text_sha256[2:]' fast.json >text.json
    jq -c '.tokens = 2045' fast.json >tokens.json
    jq -c '.ppl_original = 20.1' fast.json >model.json
    for other in text tokens model; do
        refused 65 forge-report --eval "$D/dense/eval.jsonl" --compare fast=$other.json "$D/dense"
        [[ $stderr == *"'fast' was evaluated on other tokens or another model"* ]]
    done
    refused 65 forge-report --compare fast=fast.json "$D/dense"
    [[ $stderr == *"the run itself was not evaluated"* ]]
    : >empty
    refused 65 forge-report --eval "$D/dense/eval.jsonl" --compare fast=empty "$D/dense"
    refused 66 forge-report --eval "$D/dense/eval.jsonl" --compare fast=nowhere "$D/dense"
    refused 64 forge-report --eval "$D/dense/eval.jsonl" --compare fast.json "$D/dense"
    refused 64 forge-report --eval "$D/dense/eval.jsonl" --compare fast=fast.json --compare fast=rtn.json "$D/dense"
    [ "$stderr" = "forge-report: --compare: 'fast' is given twice" ]
    six=()
    for n in a b c d e f; do six+=("--compare=$n=fast.json"); done
    forge-report --eval "$D/dense/eval.jsonl" "${six[@]}" "$D/dense" >/dev/null
    refused 64 forge-report --eval "$D/dense/eval.jsonl" "${six[@]}" --compare g=fast.json "$D/dense"
}

@test "figures of older programs, without a histogram or positions; such that cannot be" {
    jq -c 'del(.kl_histogram, .by_position, .text, .text_sha256, .seqlen, .dtype)' "$D/dense/eval.jsonl" >old.jsonl
    forge-report --eval old.jsonl "$D/dense" >page.html
    grep -q 'b against model, on a text: predictions at 2044 tokens' page.html
    run -1 grep -E 'spreads over|Along the|>-?(nan|inf)' page.html
    for odd in '.kl_histogram.counts[3] = -1 | .by_position[2].tokens = 0' \
        '.kl_histogram.from = 0 | .by_position[3].from = 16' \
        'del(.kl_histogram) | .by_position[5].ppl_original = 0' '.kl_histogram.counts[3] = {} | .by_position[0].from = 1' \
        '.kl_histogram.counts = [] | .by_position[1] |= del(.ppl)' 'del(.kl_histogram) | .by_position[0].ppl = 1.79e308 | .by_position[0].ppl_original = 1.79e308'; do
        jq -c "$odd" "$D/dense/eval.jsonl" >odd.jsonl
        forge-report --eval odd.jsonl "$D/dense" >page.html
        run -1 grep -E 'spreads over|Along the' page.html
    done
}

@test "a model of the Hugging Face cache is called by its id" {
    cp -r "$D/dense" w
    set_in w '.model = "/h/models--Org--Some--Name/snapshots/0123"'
    jq -c '.original = "/h/models--Org--Some--Name/snapshots/0123/" | .other = "/o/b/"' "$D/dense/eval.jsonl" >eval.jsonl
    forge-report --eval eval.jsonl --json p.json -o page.html w
    grep -q '<h1>Org/Some--Name in 4 bits</h1>' page.html
    [ "$(jq -r '.settings.model, .evaluation[0].original, .evaluation[0].other' p.json | paste -sd ' ')" = "Org/Some--Name Org/Some--Name b" ]
}

@test "a mixture of experts: maps, balance, rank agreement" {
    forge-report --eval "$D/moe/eval.jsonl" --hitmap "$D/moe/cheap.fts" -o page.html "$D/moe"
    python3 "$REPORT" check "$D/moe" page.html "$D/moe/eval.jsonl" "$D/moe/cheap.fts"
}

@test "--beside: the loss of another run, module by module" {
    cp -r "$D/moe" "plain <b>"
    python3 "$REPORT" worse "plain <b>"
    forge-report --eval "$D/moe/eval.jsonl" --hitmap "$D/moe/cheap.fts" --beside "plain <b>" -o page.html "$D/moe"
    python3 "$REPORT" check "$D/moe" page.html "$D/moe/eval.jsonl" "$D/moe/cheap.fts" "plain <b>"
    refused 66 forge-report --beside nowhere "$D/moe"
    # of another model: nothing in common
    python3 "$REPORT" rename "plain <b>"
    forge-report --beside "plain <b>" "$D/moe" >one
    forge-report "$D/moe" | cmp one -
    rm "plain <b>"/s/*
    forge-report --beside "plain <b>" "$D/moe" | cmp one -
}

@test "thousands of experts: one path for each colour" {
    python3 "$REPORT" make large 40 128
    forge-report -o page.html large
    python3 "$REPORT" check large page.html
    [ "$(stat -c %s page.html)" -lt 700000 ]
}

@test "without hit maps, the experts' tokens are those of their notes" {
    cp -r "$D/dense" w
    mkstream 'note:model.layers.0.mlp.experts.2.up_proj:{"method":"gptq","samples":30}' \
        'note:model.layers.0.mlp.experts.2.down_proj:{"method":"gptq","samples":31}' \
        'note:model.layers.0.mlp.experts.1.up_proj:{"method":"gptq","samples":150}' \
        'note:model.layers.0.mlp.experts.0.up_proj:{"method":"rtn","samples":0}' -o w/s/codes-0.fts
    forge-report w >page.html
    [ "$(grep -o 'title="layer 0, expert [0-9]*: ' page.html | wc -l)" -eq 3 ]
    grep -q 'expert 2: 0.5 times the layer&#39;s mean"' page.html
    grep -q 'Experts without a single token (1)' page.html
    run -1 grep 'rankings agree' page.html
}

@test "equal input gives equal bytes, on standard output too" {
    forge-report "$D/moe" >one
    cp -r "$D/moe" copy
    forge-report copy -o two
    cmp one two
}

@test "what comes from outside is escaped" {
    cp -r "$D/dense" w
    mkstream 'note:model.layers.0.<script>alert(1)</script>&":{"method":"<s>","loss":1,"loss_rtn":2}' -o w/s/codes-0.fts
    set_in w '.model = "/m/<u>&x" | .layout = "\n<s>" | .effort = "<s>"'
    forge-report --title "</style><u>" w >page.html
    run -1 grep -E '<script>alert|<u>|<s>|</style><u' page.html
    [ "$(grep -o '<script' page.html | wc -l)" -eq 1 ]
    grep -q '&lt;script&gt;alert(1)&lt;/script&gt;' page.html
    python3 -c 'import sys, xml.dom.minidom as m; m.parseString(open("page.html").read().split("\n", 1)[1])'
}

@test "a run that is not finished has a page about what there is" {
    cp -r "$D/moe" w
    rm w/s/*-[34].* w/meter.json w/s/stages.jsonl
    forge-report w >page.html
    grep -q 'not complete: 3 of 5 layers' page.html
    rm w/s/*
    forge-report w >page.html
    grep -q 'not complete: 0 of 5 layers' page.html
    set_in w '.layers = 0'
    forge-report w >page.html
    run -1 grep -E '>-?(nan|inf)|"-?(nan|inf)' page.html
}

@test "losses that are missing, zero or beyond all bounds" {
    cp -r "$D/dense" w
    mkstream 'note:model.layers.0.a:{"method":"rtn"}' \
        'note:model.layers.0.b:{"method":"rtn","loss":0,"loss_rtn":0}' \
        'note:model.layers.0.c:{"method":"rtn","loss":1e308,"loss_rtn":1e308}' \
        'note:model.layers.0.d:{"method":"rtn","loss":1e308,"loss_rtn":1e308}' \
        'note:model.layers.99999.e:{"method":"rtn","loss":1,"loss_rtn":2}' \
        'note:model.layers.99999999999999999999.f:{"method":"rtn","loss":1,"loss_rtn":2}' \
        'note:model.layers.0.x.experts.99999999999999999999.f:{"method":"rtn"}' \
        'note:nowhere:{"method":"rtn","loss":1,"loss_rtn":2,"damping_tried":3}' \
        'note:somewhere:{"seconds":1}' 'note:a:[1]' 'note:a:{"method":5}' -o w/s/codes-0.fts
    forge-report w >page.html
    run -1 grep -E '>-?(nan|inf)|"-?(nan|inf)' page.html
    head -n 1 "$D/dense/eval.jsonl" | sed 's/"kl_[a-z]*": [0-9.e-]*/"kl_mean": 0/; s/"top1": [0-9.]*/"top1": 1/' >same.json
    forge-report --eval same.json w >page.html
    run -1 grep -E '>-?(nan|inf)|"-?(nan|inf)' page.html
}

@test "what does not exist is exit 66" {
    refused 66 forge-report nowhere
    mkdir empty
    refused 66 forge-report empty
    [[ $stderr == *"'empty': no work directory of forge quantize" ]]
    refused 66 forge-report --eval nowhere "$D/dense"
    refused 66 forge-report --hitmap nowhere "$D/dense"
}

@test "what is corrupt is exit 65, with file and line" {
    cp -r "$D/moe" w
    mkstream 'note:model.layers.2.q:{"method":"gptq"}' 'note:model.layers.2.k:{"loss":}' -o w/s/codes-2.fts
    refused 65 forge-report w
    [[ $stderr == "forge-report: 'w/s/codes-2.fts': 'model.layers.2.k': note: line 1, column "* ]]
    cp "$D/moe/s/codes-1.fts" w/s/codes-2.fts
    echo '{"stage":"layer","seconds":1}{}' >>w/s/stages.jsonl
    n=$(wc -l <w/s/stages.jsonl)
    refused 65 forge-report w
    [[ $stderr == *"'w/s/stages.jsonl': line $n: "* ]]
    rm w/s/stages.jsonl
    truncate -s -100 w/s/codes-3.fts
    refused 65 forge-report w
    [[ $stderr == *"codes-3.fts"* ]]
    cp "$D/moe/s/codes-3.fts" w/s/
    for bad in nothing '[1]' '{' '{"layers":-1}' '{"layers":1e9}' '{"layers":99999999}' '{"layers":"4"}'; do
        echo "$bad" >w/settings.json
        refused 65 forge-report w
        [[ $stderr == *"w/settings.json"* ]]
    done
    printf '{"layers":1}\0' >w/settings.json
    refused 65 forge-report w
}

@test "files that are something else are exit 65" {
    refused 65 forge-report --eval "$D/dense/s/stages.jsonl" "$D/dense"
    [[ $stderr == *"line 1: no figures of forge-eval --json" ]]
    echo '{"tokens":120,"cosine_mean":0.99,"error_rms":0.1}' >states.json
    refused 65 forge-report --eval states.json "$D/dense"
    [[ $stderr == *"'states.json': line 1: figures of hidden states: only those of predictions are shown" ]]
    refused 65 forge-report --eval "$D/dense/eval.jsonl" --compare other=states.json "$D/dense"
    refused 65 forge-report --hitmap "$D/dense/s/codes-0.fts" "$D/dense"
    refused 65 forge-report --hitmap "$D/dense/settings.json" "$D/dense"
    mkstream hitmap:model.layers.0.mlp:F32:4x3 -o three.fts
    refused 65 forge-report --hitmap three.fts "$D/dense"
    mkstream hitmap:model.layers.0.mlp:F32:4x5:fill=-1 -o minus.fts
    refused 65 forge-report --hitmap minus.fts "$D/dense"
    mkstream hitmap:router:F32:4x5 -o where.fts
    refused 65 forge-report --hitmap where.fts "$D/dense"
}

@test "a wrong command line is exit 64" {
    refused 64 forge-report
    refused 64 forge-report a b
    refused 64 forge-report --format pdf a
}
