#!/usr/bin/env bats
# shellcheck disable=SC2034,SC2154 # fail_each reads variables; run sets stderr
# What every tool owes when something breaks: whichever of its calls fails,
# wherever its input is cut, when the disk is full.  On a model small enough
# for each call to have its turn.

bats_require_minimum_version 1.5.0
load ../helper/fail_each

setup_file() {
    local py="$BATS_TEST_DIRNAME/../reference"
    cd "$BATS_FILE_TMPDIR" || return 1
    python3 "$py/forward.py" make mini mini
    python3 "$py/forward.py" make mini-mixture mixture
    python3 "$py/forward.py" tokens t.fts 4 1 7
    cp "$py/tokenizers/qwen2.json" mini/tokenizer.json
    cp -r mini other
    python3 "$py/checkpoints.py" make bin-sharded bin
    python3 "$py/checkpoints.py" make gptq gptq
    printf '{"input_ids": [1, 2, 3, 4]}\n{"input_ids": [5, 6, 7, 8]}\n' >ids.jsonl
    forge-calib -q --to embed mini t.fts -o state.fts
    forge-calib -q mini t.fts -o a.fts
    forge-hessian -q a.fts -o h.fts
    forge-weights -q mini -o w.fts
    forge-weights -q --join mini h.fts -o join.fts
    forge-grid -q --group 16 w.fts -o g.fts
    forge-solve -q --hessian h.fts g.fts -o c.fts
    mkstream weight:m.q:F32:16x32 -o w1.fts
    forge-grid -q --group 16 w1.fts -o g1.fts
    mkstream hessian:m.in:F32:528:modules=m.q:samples=3:fill=1 -o h1.fts
    forge-solve -q g1.fts -o c1.fts
    forge-weights -q mini --layer 0 --match '*.[qkv]_proj.weight' |
        forge-grid -q --group 16 | forge-solve -q -o qkv.fts
    forge-pack -q --layout gptq c.fts -o x.fts
    forge-shard -q --from mini finished x.fts
    forge-weights -q "$FORGE_TREE/examples/llama-4m" | forge-grid -q --group 32 --asymmetric |
        forge-solve -q | forge-pack -q | forge-shard -q --from "$FORGE_TREE/examples/llama-4m" blocks
    python3 "$py/families.py" bare mini headless headless
    python3 "$py/report.py" make work 2 3
    python3 "$py/forward.py" make mixtral moe
    python3 "$py/forward.py" make deepseek_v3 latent
    python3 "$py/moe.py" make deepseek_v3 fp8 fp8
    python3 "$py/moe.py" make mixtral fused-oi fused
    python3 "$py/moe.py" make qwen3_moe plain experts
    python3 "$py/prune.py" hitmaps experts hits.fts
    forge-prune -q --from experts --keep 4 hits.fts -o map.fts
    forge-weights -q experts --expert-map map.fts -o kept.fts
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
    export OPENBLAS_NUM_THREADS=1
}

# Each kind of call by itself, with the exit code that it must give.
each() { # "KIND..." COMMAND...
    local kind
    for kind in $1; do
        case $kind in
        malloc) fail_each malloc 75 "${@:2}" ;;
        rename) fail_each rename 73 "${@:2}" ;;
        *) fail_each "$kind" 74 "${@:2}" ;;
        esac || { echo "of: ${*:2}"; return 1; }
    done
}
every="pread write fsync rename malloc"

@test "whichever call fails: forge-tokens" {
    each "read write fsync rename malloc" forge-tokens -q mini -t 8 -n 2 ids.jsonl -o out.fts
    fail_stdin=ids.jsonl
    each "read write malloc" forge-tokens -q mini --ids
}

@test "whichever call fails: forge-weights" {
    each "$every" forge-weights -q mini -o out.fts
    each "$every" forge-weights -q bin -o out.fts
    each "$every" forge-weights -q gptq -o out.fts
    each "pread malloc" forge-weights -q --dequantize gptq -o out.fts
    each "pread malloc" forge-weights -q finished -o out.fts # how it was made, too
    each "write" forge-weights -q mini
}

@test "whichever call fails: forge-calib" {
    each "$every" forge-calib -q -j 1 -o out.fts mini t.fts
    each "$every" forge-calib -q -j 1 --to hidden --codes qkv.fts -o out.fts mini state.fts
    fail_stdin=t.fts
    each "read write malloc" forge-calib -q -j 1 mini
}

@test "whichever call fails: forge-gradient" {
    each "$every" forge-gradient -q -j 1 -o out.fts mini t.fts
    fail_stdin=t.fts
    each "read write malloc" forge-gradient -q -j 1 mini
}

@test "whichever call fails: forge-hessian" {
    each "$every" forge-hessian -q -j 1 -o out.fts a.fts
    each "$every" forge-hessian -q -j 1 -o out.fts --dtype f32 --block 16 a.fts
    each "$every" forge-hessian -q -j 1 -o out.fts h.fts h.fts
    fail_stdin=a.fts
    each "read write malloc" forge-hessian -q -j 1
}

@test "whichever call fails: forge-split" {
    each "$every" forge-split -q split-%.fts c.fts -o out.fts
    fail_stdin=c.fts
    each "read write malloc" forge-split -q split-%.fts
}

@test "whichever call fails: forge-grid" {
    each "$every" forge-grid -q -j 1 --group 16 -o out.fts w.fts
    each "$every" forge-grid -q -j 1 --group 16 --hessian h.fts -o out.fts w.fts
    fail_stdin=w.fts
    each "read write malloc" forge-grid -q -j 1 --group 16
}

@test "whichever call fails: forge-bits" {
    each "pread write rename malloc" forge-bits -q -j 1 --bits 5 --group 16 --try 8bit -o out.fts mini join.fts
    rm out.fts
    FAIL=fsync:1 LD_PRELOAD=$FAIL_SO run -74 forge-bits -q -j 1 --bits 5 --group 16 -o out.fts mini join.fts
    [ ! -e out.fts ]
    fail_stdin=join.fts
    each "read write malloc" forge-bits -q -j 1 --bits 5 --group 16 --try 8bit mini
}

@test "whichever call fails: forge-solve" {
    each "$every" forge-solve -q -j 1 -o out.fts g.fts
    for order in natural activation group; do
        each "pread malloc" forge-solve -q -j 1 --order $order --hessian h.fts -o out.fts g.fts
    done
    each "$every" forge-solve -q -j 1 --hessian h.fts --report report -o out.fts g.fts
    python3 "$BATS_TEST_DIRNAME/../reference/best.py" tiny-pair pair.fts ph.fts pf.fts
    each "pread malloc" forge-solve -q -j 1 --effort default --hessian ph.fts \
        --fisher pf.fts -o out.fts pair.fts
    fail_stdin=g.fts
    each "read write malloc" forge-solve -q -j 1 --hessian h.fts
}

@test "whichever call fails: forge-tune" {
    each "$every" forge-tune -q -j 1 --steps 2 --batch 1 --tokens t.fts -o out.fts mini c.fts
    each "$every" forge-tune -q -j 1 --steps 1 --batch 1 --tokens t.fts --gradients grad.fts -o out.fts mini c.fts
    fail_stdin=c.fts
    each "read write malloc" forge-tune -q -j 1 --steps 1 --batch 1 --tokens t.fts mini
}

@test "whichever call fails: forge-pack" {
    for layout in compressed-tensors awq gptq gptq_v2; do
        each "malloc" forge-pack -q -j 1 --layout $layout -o out.fts c1.fts
    done
    each "$every" forge-pack -q -j 1 --layout gptq -o out.fts c.fts
    each "pread malloc" forge-pack -q --layout gptq --group 16 --check mini
    fail_stdin=c.fts
    each "read write malloc" forge-pack -q -j 1 --layout gptq
}

@test "whichever call fails: forge-shard" {
    each "$every" forge-shard -q -j 1 --from mini out.fts x.fts
    each "write rename" forge-shard -q -j 1 --shard-size 8KB --from mini out.fts x.fts
    fail_stdin=x.fts
    each "read pread malloc" forge-shard -q -j 1 --from mini out.fts
    rm -r out.fts
    forge-shard -q -j 1 --from mini whole x.fts
    unset fail_stdin
    each "pread malloc" forge-shard -q -j 1 --verify whole --from mini
}

@test "whichever call fails: forge-eval" {
    fail_silent=1
    each "pread malloc" forge-eval -q -j 1 --json mini other t.fts
    each "write" forge-eval -q -j 1 mini other t.fts
    each "pread malloc" forge-eval -q -j 1 --json headless headless t.fts
    each "write" forge-eval -q -j 1 headless headless t.fts
    fail_stdin=t.fts
    each "read" forge-eval -q -j 1 mini other
    each "pread malloc" forge-eval -q -j 1 --json mixture mixture t.fts
}

@test "whichever call fails: forge-generate" {
    each "pread write malloc" forge-generate -q -j 1 --raw --greedy --tokens 2 mini a
    each "$every" forge-generate -q -j 1 --sequences 2 --tokens 3 -o out.fts mini
}

@test "whichever call fails: forge-ls" {
    each "pread write malloc" forge-ls c.fts
    each "pread write malloc" forge-ls mini
    each "pread malloc" forge-ls --json gptq
    each "malloc" forge-ls --stats m.q c1.fts
    each "malloc" forge-ls --histogram m.q w1.fts
    fail_stdin=c.fts
    each "read write malloc" forge-ls --verify
}

@test "whichever call fails: forge-plan" {
    each "pread write malloc" forge-plan mini
}

@test "whichever call fails: forge-hooks" {
    /usr/bin/python3 -c 'import numpy as n; n.save("model.layers.0.mlp.down_proj.npy", n.ones((3, 768), "f2"))'
    each "pread write rename malloc" forge-hooks -q -j 1 -o out.fts blocks model.layers.0.mlp.down_proj.npy
}

@test "whichever call fails: forge-gguf" {
    each "pread write rename malloc" forge-gguf -q -j 1 blocks out.fts
    each "pread malloc" forge-gguf -q -j 1 --rest q8_0 blocks out.fts
}

@test "whichever call fails: forge-verify" {
    each "pread malloc" forge-verify -q -j 1 finished
    each "pread malloc" forge-verify -q -j 1 --tensors finished
}

@test "whichever call fails: forge-report" {
    each "pread write rename malloc" forge-report work -o out.fts
    rm out.fts
    FAIL=fsync:1 LD_PRELOAD=$FAIL_SO run -74 forge-report work -o out.fts
    [ ! -e out.fts ]
    each "write" forge-report work
    each "pread write rename malloc" forge-report --eval work/eval.jsonl --compare again=work/eval.jsonl \
        --json out.json --csv out.csv work -o out.html
}

@test "whichever call fails: forge-device" {
    each write forge-device
    each "write malloc" forge-device --json
}

@test "whichever call fails: forge-prune" {
    each "$every" forge-prune -q --from experts --keep 4 hits.fts -o out.fts
    each "pread malloc" forge-weights -q experts --expert-map map.fts -o out.fts
    each "pread malloc" forge-shard -q -j 1 --from experts --expert-map map.fts out.fts kept.fts
    fail_stdin=hits.fts
    each "read write malloc" forge-prune -q --from experts --keep 4
}

@test "whichever call fails on mixtures, 8-bit floats, experts in one tensor" {
    each "pread malloc" forge-weights -q fp8 -o out.fts
    each "pread malloc" forge-weights -q fused -o out.fts
    fail_silent=1
    each "pread malloc" forge-eval -q -j 1 --json moe moe t.fts
    each "pread malloc" forge-eval -q -j 1 --json --by-layer latent latent t.fts
}

@test "whichever call fails: forge-solve at each effort" {
    for effort in fast best; do
        each "pread malloc" forge-solve -q -j 1 --effort $effort --hessian h1.fts -o out.fts g1.fts
    done
}

@test "whichever write into a pipe fails" {
    fail_pipe=1
    each write forge-weights -q mini
    each write forge-weights -q fp8
    each write forge-grid -q -j 1 --group 16 w.fts
}

@test "no tool is missing here" {
    for tool in "$BATS_TEST_DIRNAME"/../../src/{*,*/*}/forge-*.c; do
        tool=$(basename "$tool" .c)
        [ "$tool" != forge-meter ] || continue # runs another program's calls
        grep -q "call fails: $tool\"" "$BATS_TEST_FILENAME"
    done
}

# FILE cut at many places, the first and the last bytes among them: exit 65, one
# line, nothing published, no output that could be taken for a stream.
cut_anywhere() { # FILE COMMAND... with @ for the file that is cut
    (trap - DEBUG; cut_at_each "$@") # as in fail_each
}

cut_at_each() {
    local file=$1 size n step
    shift
    size=$(stat -c %s -L "$file")
    step=$((size / 24 + 1))
    for n in $(seq 0 "$step" $((size - 1))) 1 63 64 65 $((size - 64)) $((size - 1)); do
        echo "cut at $n"
        head -c "$n" "$file" >cut
        run -65 --separate-stderr "${@/#@/cut}" -o out.fts
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
        [ ! -e out.fts ]
        [[ $stderr == "$1: "* ]]
        rc=0
        "${@/#@/cut}" >out 2>err || rc=$?
        [ $rc -eq 65 ] || { echo "exit $rc: $(<err)"; return 1; }
        run -1 forge-ls -q --verify out
    done
}

@test "every stream into every filter may be cut anywhere: exit 65, no output" {
    cut_anywhere t.fts forge-calib -q mini @
    cut_anywhere qkv.fts forge-calib -q --to hidden --codes @ mini state.fts
    cut_anywhere state.fts forge-calib -q --to hidden mini @
    cut_anywhere a.fts forge-hessian -q @
    cut_anywhere h.fts forge-hessian -q h1.fts @
    cut_anywhere c.fts forge-split -q split-%.fts @
    cut_anywhere h.fts forge-weights -q --join mini @
    cut_anywhere w1.fts forge-grid -q @
    cut_anywhere h1.fts forge-grid -q --hessian @ w1.fts
    cut_anywhere g1.fts forge-solve -q @
    cut_anywhere h1.fts forge-solve -q --hessian @ g1.fts
    cut_anywhere c.fts forge-tune -q --steps 1 --batch 1 --tokens t.fts mini @
    cut_anywhere t.fts forge-tune -q --steps 1 --batch 1 --tokens @ mini c.fts
    cut_anywhere c1.fts forge-pack -q --layout gptq @
    cut_anywhere hits.fts forge-prune -q --from experts --keep 4 @
    cut_anywhere map.fts forge-weights -q experts --expert-map @
}

@test "a tool that fails before it begins: one line, and its exit code from the whole pipe" {
    early() { # CODE COMMAND...
        : >err
        rc=$("${@:2}" 2>>err </dev/null | forge-pack -q 2>>err | forge-ls 2>>err
            echo "${PIPESTATUS[*]}")
        [ "$rc" = "$1 $1 $1" ] || { echo "${*:2}: $rc"; cat err; return 1; }
        [ "$(wc -l <err)" -eq 1 ] || { echo "${*:2}:"; cat err; return 1; }
        [[ $(<err) == "$2: "* ]]
    }
    heads='hooks tokens generate weights calib gradient hessian grid solve tune split pack prune'
    for tool in $heads; do
        stream=() # what else would write text
        [ $tool != generate ] || stream=(--sequences 2)
        early 64 "forge-$tool" "${stream[@]}" --no-such-option
    done
    early 64 forge-grid --group
    early 64 forge-pack --layout gguf
    early 64 forge-solve one two
    early 66 forge-tokens nowhere ids.jsonl
    early 66 forge-tokens mini nothing.jsonl
    early 66 forge-weights nowhere
    early 66 forge-generate --sequences 1 nowhere
    early 66 forge-calib nowhere t.fts
    early 66 forge-calib mini nothing.fts
    early 66 forge-gradient nowhere t.fts
    early 66 forge-hessian nothing.fts
    early 66 forge-grid nothing.fts
    early 66 forge-grid --hessian nothing.fts w.fts
    early 66 forge-solve nothing.fts
    early 66 forge-tune --tokens t.fts mini nothing.fts
    early 66 forge-split 'split-%.fts' nothing.fts
    early 66 forge-pack nothing.fts
    early 66 forge-prune --from nowhere --keep 4 hits.fts
    early 73 forge-solve --report nowhere/report g.fts
    [ "$(wc -w <<<"$heads")" -eq "$(for t in "$BATS_TEST_DIRNAME"/../../src/{*,*/*}/forge-*.c; do
        "$(basename "$t" .c)" --help
    done | grep -c -- '--key KEY')" ]
}

@test "the next tool is told behind whole streams, too; text and files get nothing" {
    rc=$({ cat w1.fts && forge-weights --bad; } 2>err | forge-grid -q 2>>err >out
        echo "${PIPESTATUS[*]}")
    [ "$rc" = "64 64" ]
    [ "$(<err)" = "forge-weights: unknown option '--bad' (try --help)" ]
    silent() {
        rc=$("$@" 2>err | cat >out; echo "${PIPESTATUS[0]}")
        [ "$rc" -ne 0 ]
        [ ! -s out ]
    }
    silent forge-tokens --ids nowhere
    silent forge-generate nowhere text
    silent forge-pack --check nowhere
    silent forge-prune --check --from nowhere --keep 4
    silent forge-grid -o out.fts nothing.fts
    silent forge-ls --bad
    forge-grid --bad >file 2>err || rc=$?
    [ "$rc" -eq 64 ]
    [ ! -s file ]
}

@test "equal input gives equal bytes, from a file, a pipe and on any threads" {
    equal() { # FILE COMMAND...
        "${@:2}" -q -j 1 "$1" >one
        # shellcheck disable=SC2002
        cat "$1" | "${@:2}" -q -j 2 >two
        "${@:2}" -q "$1" -o three
        [ -s one ]
        if [ "$2" = forge-solve ]; then # its ancillary notes carry seconds
            for i in one two three; do
                plain "$i" >new
                mv new "$i"
            done
            [ "$(wc -l <one)" -gt 10 ]
        fi
        cmp one two
        cmp one three
        rm three
    }
    plain() { # FILE: its frames but the ancillary ones, with digests
        python3 - "$BATS_TEST_DIRNAME/../reference" "$1" <<'END'
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from fts import read
for x in read(open(sys.argv[2], "rb")):
    if not x.ancillary:
        print(x.role, x.name, x.dtype, x.shape, hashlib.sha256(bytes(x.payload)).hexdigest())
END
    }
    equal t.fts forge-calib mini
    equal t.fts forge-gradient mini
    equal a.fts forge-hessian
    equal h.fts forge-weights --join mini
    equal c.fts forge-split split-%.fts
    forge-weights -q --join mini h.fts -o hw.fts
    equal hw.fts forge-grid --group 16
    equal w.fts forge-grid --group 16 --hessian h.fts
    equal g.fts forge-solve --hessian h.fts
    equal c.fts forge-pack --layout gptq
    for i in 1 2; do
        forge-weights -q bin -o w$i
        forge-shard -q -j $i --from mini s$i x.fts
        forge-eval -q -j $i --json mini other t.fts >e$i
        forge-ls -v mini >l$i
    done
    cmp w1 w2
    cmp e1 e2
    cmp l1 l2
    diff -r s1 s2
}

@test "a full disk is exit 74 and one line, from every tool" {
    [ -e /dev/full ] || skip "no /dev/full"
    full() {
        rc=0
        "$@" 2>err >/dev/full || rc=$?
        [ "$rc:$(wc -l <err)" = 74:1 ] || { echo "$*: exit $rc"; cat err; return 1; }
    }
    full forge-tokens -q mini ids.jsonl
    full forge-tokens -q mini --ids ids.jsonl
    full forge-weights -q mini
    full forge-calib -q mini t.fts
    full forge-hessian -q a.fts
    full forge-split -q split-%.fts c.fts
    full forge-weights -q --join mini h.fts
    full forge-grid -q --group 16 w.fts
    full forge-solve -q g.fts
    full forge-pack -q --layout gptq c.fts
    full forge-eval -q mini other t.fts
    full forge-eval -q --json mini other t.fts
    full forge-ls c.fts
    full forge-ls mini
    full forge-plan mini
    full forge-report work
    for tool in "$BATS_TEST_DIRNAME"/../../src/{*,*/*}/forge-*.c; do
        tool=$(basename "$tool" .c)
        full "$tool" --help
        full "$tool" --version
    done
}

@test "sidecars follow the rule of weights, before any work, and nothing waits" {
    cp -rL mini m
    printf '{}' >m/generation_config.json
    printf 'a' >secret
    each_tool() { # TEXT: all who read the file, and all who would copy it
        local n=0 line
        for line in "${readers[@]}" 'forge-pack -q --check m --group 16' \
            'forge-shard -q --from m out x.fts' \
            'forge quantize m out --method rtn --group 16 --quiet'; do
            # shellcheck disable=SC2086 # words
            run "-$1" --separate-stderr timeout 10 $line
            [[ $stderr == *"$2"* ]] || { echo "$line: $stderr"; return 1; }
            [ "$(wc -l <<<"$stderr")" -eq 1 ]
            [ ! -e out ]
            [ ! -e out.work ]
            n=$((n + 1))
        done
        [ "$n" -ge 3 ]
    }
    for file in tokenizer.json generation_config.json README.md LICENSE; do
        readers=()
        [ $file != tokenizer.json ] || readers=('forge-tokens -q m --ids secret')
        for target in ../secret "$PWD/secret" /dev/zero; do
            ln -sf "$target" m/$file
            each_tool 65 "out of the directory"
        done
        rm m/$file
        mkfifo m/$file
        each_tool 65 "not a regular file"
        rm m/$file
        ln -s config.json m/$file # inside: may be
        forge-pack -q --check m --group 16
        rm m/$file
    done
}

@test "too little address space is 75 and one line, and nothing spins" {
    nm "$(dirname "$(command -v forge-ls)")/../libforge.a" 2>/dev/null |
        grep -q __asan && skip "not with ASan"
    forge-calib -q --dtype f32 mini t.fts -o f32.fts
    forge-gradient -q mini t.fts | forge-hessian -q -o fisher.fts
    ended=0
    for limit in 60000 100000 150000 200000 250000 300000 350000 400000 600000; do
        for line in 'forge-hessian -q f32.fts' 'forge-gradient -q mini t.fts' \
            'forge-solve -q --effort best --fisher fisher.fts --hessian h.fts g.fts'; do
            # shellcheck disable=SC2086 # words
            run --separate-stderr bash -c "ulimit -v $limit; exec timeout 20 $line >/dev/null"
            case $status in
            0) ;;
            75) [ "$(wc -l <<<"$stderr")" -eq 1 ] && ended=$((ended + 1)) ;;
            *) echo "$limit: $line: exit $status: $stderr"; return 1 ;;
            esac
        done
    done
    [ "$ended" -ge 3 ]
}
