#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# The manual pages: one for every tool, with the options that --help names and
# examples that run as they stand.

bats_require_minimum_version 1.5.0

MAN="$BATS_TEST_DIRNAME/../../man"

programs() {
    find "$BATS_TEST_DIRNAME/../../src" -name 'forge-*.c' -printf '%f\n' | sed 's/\.c$//' | sort
    echo forge
    echo forge-text
}

# Every name that an example uses, on the example model and little text.
setup_file() {
    local tree="$BATS_TEST_DIRNAME/../.." i
    cd "$BATS_FILE_TMPDIR" || return 1
    cp -r "$tree/examples/llama-4m" model
    for i in M MODEL original; do ln -s model $i; done
    mkdir -p examples bin tmp
    ln -s ../model examples/llama-4m
    head -n 4 "$tree/examples/calib.jsonl" >examples/calib.jsonl
    head -c 6000 "$tree/examples/eval.txt" >examples/eval.txt
    head -c 30000 "$tree/examples/eval.txt" >text
    for i in text.txt calib.txt; do cp text $i; done
    cp examples/eval.txt eval.txt
    seq 20000 >big.txt

    forge-tokens -q -n 4 -t 64 model text -o tokens
    cp tokens eval.fts
    forge-calib -q model tokens -o activations
    forge-hessian -q activations -o H.fts
    for i in H1 H2 hessians; do cp H.fts $i.fts; done
    rm activations
    forge-weights -q model | forge-grid -q --hessian H.fts |
        forge-solve -q --hessian H.fts -o codes.fts
    cp codes.fts solved.fts
    cp codes.fts codes
    forge-weights -q -l 0 model | forge-grid -q | forge-solve -q -o layer-0
    forge-weights -q --rest model -o rest.fts
    for i in 0 1 2 3; do
        forge-weights -q -l $i model | forge-grid -q | forge-solve -q |
            forge-pack -q -o layer-$i.fts
    done
    forge-pack -q --layout gptq codes.fts |
        forge-shard -q --from model gptq-model
    for i in quantized-model their-model; do ln -s gptq-model $i; done
    forge-weights -q model | forge-grid -q --group 32 --asymmetric |
        forge-solve -q | forge-pack -q | forge-shard -q --from model M-4bit

    # Slurm, of which an example needs that it runs a command.
    printf '#!/bin/sh\nwhile case $1 in -*) ;; *) false ;; esac do shift; done\nexec "$@"\n' >bin/srun
    chmod +x bin/srun
    cp bin/srun bin/salloc
}

# The command lines of a page's EXAMPLES (or of another SECTION), a NUL after
# each .Dl or .Bd block.
examples() { # PAGE [SECTION]
    awk -v section="${2:-EXAMPLES}" '
        /^\.Sh / { on = index($0, section) > 0 }
        !on { next }
        /^\.Dl / { sub(/^\.Dl /, ""); show($0); printf "%c", 0; next }
        /^\.Bd -literal/ { inside = 1; next }
        /^\.Ed/ { inside = 0; printf "%c", 0; next }
        inside { show($0) }
        function show(line) {
            sub(/^\$ /, "", line)
            gsub(/\\\(dq/, "\"", line)
            gsub(/\\\(aq/, "\047", line)
            gsub(/\\e/, "\\", line)
            gsub(/\\-/, "-", line)
            gsub(/\/tmp\//, "tmp/", line)
            print line
        }' "$1"
}

# Runs them in a directory with all of the names above.
run_examples() { # PAGE [SECTION]
    local n=0 command
    cp -r "$BATS_FILE_TMPDIR"/. .
    PATH=$PWD/bin:$PATH
    while IFS= read -r -d '' command <&3; do
        rm -rf out OUT
        printf '%s\n' "$command"
        bash -euo pipefail -c "$command" </dev/null >printed 2>said || {
            echo "exit $?"
            cat said
            return 1
        }
        n=$((n + 1))
    done 3< <(examples "$@")
    [ "$n" -gt 0 ]
}

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "the examples of forge(1)" {
    run_examples "$MAN/forge.1"
    forge-ls --verify tmp/llama-4bit
    forge-ls --verify out
}
@test "the examples of forge-calib(1)" { run_examples "$MAN/forge-calib.1"; }
@test "the examples of forge-device(1)" { run_examples "$MAN/forge-device.1"; }
@test "the examples of forge-eval(1)" {
    run_examples "$MAN/forge-eval.1"
    [ -s quality.json ]
}
@test "the examples of forge-generate(1)" {
    run_examples "$MAN/forge-generate.1"
    [ "$(jq -r .finish <printed)" = $'length\nlength' ]
}
@test "the examples of forge-tune(1)" { run_examples "$MAN/forge-tune.1"; }
@test "the examples of forge-gradient(1)" {
    run_examples "$MAN/forge-gradient.1"
}
@test "the examples of forge-grid(1)" { run_examples "$MAN/forge-grid.1"; }
@test "the examples of forge-bits(1)" { run_examples "$MAN/forge-bits.1"; }
@test "the examples of forge-hooks(1)" {
    forge-calib -q --synthetic gaussian --sequences 2 --seqlen 128 "$BATS_FILE_TMPDIR/model" >s.fts
    PYTHONPATH=$BATS_TEST_DIRNAME/../reference /usr/bin/python3 - <<'P'
import checkpoints as c
import fts
for n, f in enumerate(("a.pt", "b.pt")):
    c.save_bin(f, {x.name: ("BF16", tuple(x.shape), x.payload) for x in fts.read(open("s.fts", "rb"))
                   if x.sequence in (n, n + 1)})
P
    run_examples "$MAN/forge-hooks.1"
    [ -e out/config.json ]
}
@test "the examples of forge-hessian(1)" { run_examples "$MAN/forge-hessian.1"; }
@test "the examples of forge-ls(1)" { run_examples "$MAN/forge-ls.1"; }
@test "the examples of forge-meter(1)" { run_examples "$MAN/forge-meter.1"; }
@test "the examples of forge-pack(1)" { run_examples "$MAN/forge-pack.1"; }
@test "the examples of forge-plan(1)" { run_examples "$MAN/forge-plan.1"; }
@test "the examples of forge-prune(1)" {
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" make deepseek_v3 plain mixture
    python3 "$BATS_TEST_DIRNAME/../reference/prune.py" hitmaps mixture hitmaps
    run_examples "$MAN/forge-prune.1"
}
@test "the examples of forge-report(1)" {
    run_examples "$MAN/forge-report.1"
    grep -q '</html>' report.html
}
@test "the examples of forge-shard(1)" { run_examples "$MAN/forge-shard.1"; }
@test "the examples of forge-solve(1)" { run_examples "$MAN/forge-solve.1"; }
@test "the examples of forge-verify(1)" {
    run_examples "$MAN/forge-verify.1"
}

@test "the examples of forge-split(1)" {
    run_examples "$MAN/forge-split.1"
    [ -e codes-3.fts ]
}
@test "the examples of forge-gguf(1)" {
    run_examples "$MAN/forge-gguf.1"
    [ -e out.gguf ]
}
@test "the examples of forge-text(1)" {
    local i
    for i in {1..40}; do
        echo '{"messages": [{"role": "user", "content": "'"$(seq -s ' ' 99)"'"}]}'
    done >chats.jsonl
    gzip -k chats.jsonl
    jq --arg t '{% for m in messages %}{{ m.content }}{% endfor %}' '. + {chat_template: $t}' \
        "$BATS_FILE_TMPDIR/model/tokenizer_config.json" >template
    cp -r "$BATS_FILE_TMPDIR/model" chatty
    mv template chatty/tokenizer_config.json
    run_examples "$MAN/forge-text.1"
}
@test "the examples of forge-tokens(1)" { run_examples "$MAN/forge-tokens.1"; }
@test "the examples of forge-weights(1)" { run_examples "$MAN/forge-weights.1"; }

@test "the pipes of 4bit-forge(7)" {
    run_examples "$MAN/4bit-forge.7" DESCRIPTION
    forge-ls --verify OUT
}

@test "README's pipes, as they stand, each end in a checkpoint" {
    cp -r "$BATS_FILE_TMPDIR"/. .
    sed -n '/^## By hand/,/^## [^B]/s/^    //p' "$BATS_TEST_DIRNAME/../../README.md" >pipes
    bash -euo pipefail pipes
    for out in out-rtn out-gptq out-loop; do
        [ "$(jq -r .quantization_config.quant_method $out/config.json)" = awq ]
        forge-verify -q $out
    done
    [ "$(find . -maxdepth 1 -name 'out-*' | wc -l)" -eq "$(grep -c forge-shard pipes)" ]
}

@test "every program has a page, and every page's examples are run here" {
    for tool in $(programs); do
        [ -e "$MAN/$tool.1" ] || { echo "no $tool.1"; return 1; }
        grep -q "run_examples \"\$MAN/$tool.1\"" "$BATS_TEST_FILENAME" ||
            { echo "$tool.1: examples are not run"; return 1; }
    done
    # that of forge-stream(5) is compiled by ls.bats, that of forge_w4a16(3) by e2e/quantize.bats
    grep -l '^\.Sh EXAMPLES' "$MAN"/*.[2-8] >got
    printf '%s\n' "$MAN"/forge-stream.5 "$MAN"/forge_w4a16.3 | diff - got
}

@test "--help and --version are on stdout, and exit 0" {
    for tool in $(programs); do
        run -0 --separate-stderr "$tool" --help
        [[ -z $stderr && $output == usage:* ]] || { echo "$tool --help"; return 1; }
        run -0 --separate-stderr "$tool" --version
        [[ -z $stderr && $output == "$tool (4bit-forge) "* ]] ||
            { echo "$tool --version"; return 1; }
    done
}

@test "what can be copied is whole in the rendered page, 80 columns wide" {
    for page in "$MAN"/*; do
        mandoc -T utf8 -O width=78 "$page" | sed 's/.\x08//g; s/^ *//; s|/tmp/|tmp/|g; s/^\$ //' >rendered
        examples "$page" | tr '\0' '\n' | sed 's/^ *//' >lines
        [[ ${page##*.} != [35] ]] || : >lines # a program
        while IFS= read -r line; do
            [ -z "$line" ] || grep -qxF -- "$line" rendered || { echo "${page##*/}: $line"; return 1; }
        done <lines
        # mdoc: arguments of .Fl are flags, quotes around arguments of macros are gone
        run -1 grep -nE -- '--[a-z-]+ -[0-9]|\(see -[a-z]{2,}\)|\{[a-z]+:' rendered
    done
}

@test "--help and the pages agree about --gpu-memory" {
    for tool in forge-calib forge-gradient forge-tune forge-eval forge-generate forge-device; do
        grep -A8 'It Fl -gpu-memory' "$MAN/$tool.1" | grep -qi 'by default half of what is free'
    done
    for tool in forge-hessian forge-grid forge-solve forge-pack; do
        grep -A1 'It Fl -gpu-memory' "$MAN/$tool.1" | grep -q 'by default all that is free'
        "$tool" --help | tr -s ' \n' ' ' | grep -qF '[all that is free; tools that run a model: half]'
    done
}

@test "--help fits a terminal of 80 columns" {
    for tool in $(programs); do
        help_of "$tool" >help
        [ "$(wc -l <help)" -gt 5 ]
        awk -v t="$tool" 'length($0) > 79 { print t ": " $0; bad = 1 } END { exit bad }' help
    done
}

# Of forge, each command has its own, and the page has all; a command that is a tool
# has a page.
help_of() { # PROGRAM
    local command
    "$1" --help
    [ "$1" = forge ] || return 0
    for command in $(forge --complete | grep -v '^--'); do
        forge "$command" --help >one
        [[ $(<one) == "usage: forge-$command "* ]] || cat one
    done
}

@test "--help and the page name the same options, long and short" {
    for tool in $(programs); do
        help_of "$tool" >help
        grep -oE -- '--[a-z][a-z-]*' help | sort -u >want
        grep -oE 'Fl -[a-z][a-z-]*' "$MAN/$tool.1" | sed 's/Fl /-/' | sort -u >page
        diff want page || { echo "of $tool"; return 1; }
        sed -nE 's/^ +-([a-zA-Z]),? --([a-z-]*).*/\1 , Fl -\2/p' help >pairs
        [ -s pairs ]
        while read -r pair; do
            grep -qE "^\.It Fl $pair( |\$)" "$MAN/$tool.1" ||
                { echo "$tool.1: no Fl $pair"; return 1; }
        done <pairs
    done
}

@test "forge(1) has every command in its synopsis, and says which have no --progress" {
    sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESC/p' "$MAN/forge.1" >synopsis
    for command in $(forge --help | sed -n 's/^  forge \([a-z]*\).*/\1/p') stage; do
        grep -qx "\.Cm $command" synopsis || { echo "no $command"; return 1; }
        grep -q "^\.Ss forge $command" "$MAN/forge.1" || { echo "no section: $command"; return 1; }
        forge $command --help >help
        said=yes
        ! grep -q "^\.Ss Options of all commands but .*\b$command\b" "$MAN/forge.1" || said=no
        has=no
        ! grep -q -- --progress help || has=yes
        [ "$has" = "$said" ] || { echo "$command: --progress: $has, the page: $said"; return 1; }
    done
    grep -q -- '^\.Op Fl -max-ppl-ratio' synopsis
    [ "$(forge stage --help | head -n 1)" = "usage: forge stage NAME [LAYER | STOP NUMBER] | stage plan" ]
    grep -qx '\.Op Ar layer | stop number' synopsis
}

@test "scripts print their own usage, and do nothing else" {
    for script in setup demo test; do
        for option in -h --help; do
            run -0 timeout 5 sh "$BATS_TEST_DIRNAME/../../scripts/$script" $option
            [[ ${lines[0]} == "Install "* ]]
            [[ $output == *"  scripts/$script"* ]]
            [ "${#lines[@]}" -lt 14 ]
            [[ $output != *CRB* && $output != *pins* ]]
        done
    done
}

@test "4bit-forge(7) names every tool that ends with 1" {
    sed -n '/^\.It 1$/,/^\.It 64$/p' "$MAN/4bit-forge.7" >list
    sources=$(grep -l EXIT_NO "$BATS_TEST_DIRNAME"/../../src/*/forge-*.c)
    [ -n "$sources" ]
    for tool in $sources; do
        grep -qx "\.Xr $(basename "$tool" .c) 1.*" list || { echo "not $tool"; return 1; }
    done
}

@test "the pages that a page points to exist" {
    for page in "$MAN"/*.[1-8]; do
        sed -nE 's/^\.Xr (4bit-forge|forge[a-z-]*) ([1-8]).*/\1.\2/p' "$page" |
            while read -r to; do
                [ -e "$MAN/$to" ] || { echo "$page: $to"; exit 1; }
            done
    done
}
