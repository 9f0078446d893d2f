#!/usr/bin/env bats
# The driver as a user meets it: options, plans, reports, refusals.

load e2e

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() { # the disk of a test that failed
    [ ! -d disk ] || ! mountpoint -q disk || umount disk
}

@test "a wrong command line is 64 and one line" {
    refused 64 forge
    refused 64 forge frobnicate
    refused 64 forge quantize
    refused 64 forge quantize "$model"
    refused 64 forge quantize "$model" out
    refused 64 forge quantize "$model" out more --text "$text"
    refused 64 forge quantize "$model" out --text
    refused 64 forge quantize "$model" out --text "$text" --seq 4
    refused 64 forge quantize "$model" out --text "$text" --sequences 0
    refused 64 forge quantize "$model" out --text "$text" --sequences 1e3
    refused 64 forge quantize "$model" out --text "$text" --group x
    refused 64 forge quantize "$model" out --text "$text" --layout ggml
    refused 64 forge quantize "$model" out --text "$text" --sym --asym
    refused 64 forge quantize "$model" out --text "$text" --quiet=yes
    refused 64 forge quantize "$model" out --text "$text" --shard-size big
    refused 64 forge quantize "$model" out --text "$text" --device tpu
    [ "$stderr" = "forge: --device: 'tpu' is none of auto|cpu|cuda|cuda:N" ]
    refused 64 forge quantize "$model" out --text "$text" --gpu-memory lots
    FORGE_LAUNCH=rsh refused 64 forge quantize "$model" out --text "$text"
    for bad in abc -1 1.5; do
        FORGE_RETRIES=$bad refused 64 forge quantize "$model" out --text "$text"
    done
    refused 64 forge quantize "$model" $'\377out' --text "$text"
    [ ! -e out.work ]
    refused 64 forge eval "$model" --text "$text"
    refused 64 forge eval "$model" "$model"
    refused 64 forge status
}

@test "a directory without a checkpoint: that is said, not what its tokenizer lacks" {
    mkdir empty
    for how in "--text $text" "--method rtn"; do
        # shellcheck disable=SC2086
        refused 66 forge quantize empty out $how
        [ "$stderr" = "forge: '$PWD/empty/config.json': cannot open: No such file or directory" ]
    done
}

@test "what may have been meant is said" {
    meant() { # WORD COMMAND...
        refused 64 "${@:2}"
        [[ $stderr == *"did you mean '$1'"* ]]
    }
    meant quantize forge quantise "$model" out
    meant status forge stats work
    meant verify forge verfy out
    meant --sequences forge quantize "$model" out --sequence 3
    meant --layout forge quantize "$model" out --layuot awq
    meant --effort forge quantize "$model" out --efort=best
    meant awq forge quantize "$model" out --layout aqw
    meant gptq forge quantize "$model" out --method GPTQ
    meant gptq_v2 forge quantize "$model" out --layout GPTQ-V2
    meant compressed-tensors forge quantize "$model" out --layout compressed_tensors
    meant --hessian forge-solve -o out --hesian x
    refused 64 forge quantize "$model" out --zzz
    [[ $stderr == *"(try --help)"* ]]
}

@test "each command has a --help of its own, and shells its words" {
    for command in quantize prune eval tokens report status gc; do
        run -0 --separate-stderr forge $command --help
        [[ -z $stderr && ${lines[0]} == "usage: forge $command "* ]]
        forge $command --help | grep -oE -- '^ +(-[a-zA-Z])? +--[a-z-]+' |
            grep -oE -- '--[a-z-]+' | sort >help
        forge $command --complete | sed 's/ .*//' | sort | diff help -
    done
    [[ $(forge quantize --help) == *--layout* && $(forge status --help) != *--layout* ]]
    # shellcheck source=/dev/null
    . "$tree/scripts/completions/forge.bash"
    complete_words() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _forge; echo "${COMPREPLY[*]}"; }
    [ "$(complete_words forge qu)" = quantize ]
    [ "$(complete_words forge quantize --lay)" = --layout ]
    [ "$(complete_words forge quantize m o --layout gp)" = "gptq gptq_v2" ]
    [ "$(complete_words forge-solve --effort '')" = "fast default best" ]
    [ "$(complete_words forge-solve --effort = def)" = default ]
    [[ "$(complete_words forge quantize m o --layout =)" == "compressed-tensors awq "* ]]
    [ -z "$(complete_words forge quantize --text /etc/pa)" ] # a file's name
    for tool in "$tree"/src/{*,*/*}/forge-*.c; do
        complete -p "$(basename "$tool" .c)"
    done
}

@test "an option that would have no effect is refused, and what it is for is said" {
    without() { # TEXT OPTION...
        refused 64 forge quantize "$model" out --text "$text" "${@:2}"
        [ "$stderr" = "forge: $1" ] || { echo "said: $stderr"; return 1; }
    }
    without "--by wants --keep" --by tokens
    without "--mode wants --keep" --mode prune
    without "--hitmap wants --keep" --hitmap nowhere
    for how in "" "--tune 0" "--effort best --tune 0" "--effort best --parts 2"; do
        # shellcheck disable=SC2086
        without "--tune-batch wants --tune" --tune-batch 4 $how
    done
    without "--gpu-memory: --device cpu has none" --gpu-memory 1G --device cpu
    forge quantize "$model" out "${small[@]}" --method rtn --dry-run
    for how in "--effort best" "--propagate original" "--blend 4" \
        "--tune 2" "--parts 2" "--states-memory 1G"; do
        # shellcheck disable=SC2086
        refused 64 forge quantize "$model" out --method rtn $how
        [ "$stderr" = "forge: ${how% *}: --method rtn has no tokens" ]
    done
    for how in "" "--method gptq"; do
        # shellcheck disable=SC2086
        without "--search is for --method rtn" --search absmax $how
    done
    without "--grid: --search absmax has grids of one kind" --method rtn --search absmax --grid '*=64'
    without "--group -1: --search absmax wants a number of inputs" --method rtn --search absmax --group -1
    # this effort may tune by itself
    forge quantize "$model" out --text "$text" --tune-batch 4 --effort best --rate 1 --dry-run
}

@test "forge stage says on standard error, too, what is wrong" {
    for words in "" zzz "zzz 1 2" "solve"; do
        # shellcheck disable=SC2086
        run -64 --separate-stderr forge stage $words
        [ "$output" = "error 64 $stderr" ]
        [[ $stderr == "forge: want the name of a step, "* ]] || { echo "$words: $stderr"; return 1; }
    done
    run -66 --separate-stderr forge stage tokens
    [ "$output" = "error 66 $stderr" ]
}

@test "forge help COMMAND is its --help" {
    for command in quantize status verify; do
        forge $command --help >want
        forge help $command >got
        cmp want got
    done
    forge --help >want
    forge help >got
    cmp want got
    refused 64 forge help quantise
    [[ $stderr == *"(did you mean 'quantize'?)" ]]
}

@test "status, report and gc of OUT instead of its work directory say what was meant" {
    mkdir w.work
    for command in status report gc; do
        refused 66 forge $command w
        [ "$stderr" = "forge: 'w': No such file or directory (did you mean 'w.work'?)" ]
        mkdir w
        refused 66 forge $command w/
        [ "$stderr" = "forge: 'w/': no work directory of forge quantize (did you mean 'w.work'?)" ]
        rmdir w
    done
}

@test "forge X is forge-X, too" {
    [[ $(forge --help) == *"forge verify "* && $(forge verify --help) == *--tensors* ]]
    forge ls "$model" >a
    forge-ls "$model" >b
    cmp a b
}

@test "what is missing is 66" {
    refused 66 forge quantize nowhere out --text "$text"
    refused 66 forge quantize "$model" out --text nowhere
    refused 66 forge quantize "$model" out --text .
    refused 66 forge eval "$model" nowhere --text "$text"
    refused 66 forge status nowhere
    refused 66 forge gc .
    mkdir empty
    refused 66 forge quantize empty out --text "$text"
}

@test "a device that is not there is 69, before anything is done" {
    refused 69 forge quantize "$model" out --text "$text" --device cuda:999
    [ ! -e out.work ]
}

@test "text that does not suffice is 65" {
    : >empty
    refused 65 forge quantize "$model" out --text empty
    echo 'too short' >short
    refused 65 forge quantize "$model" out --text short --quiet
    printf 'not \xff UTF-8' >bad
    refused 65 forge quantize "$model" out --text bad --quiet
    echo '{"text": 3}' >bad.jsonl
    refused 65 forge quantize "$model" out --text bad.jsonl --quiet
}

broken_model() {
    cp -r "$model" broken
    chmod -R u+w broken
}

@test "a broken checkpoint is 65, and nothing is published" {
    broken_model
    truncate -s -1 broken/model.safetensors
    refused 65 forge quantize broken out "${small[@]}"
    cp "$model/model.safetensors" broken/
    printf '\377\377\377\377\377\377\377\377' |
        dd of=broken/model.safetensors conv=notrunc status=none
    refused 65 forge quantize broken out "${small[@]}"
    echo '{' >broken/config.json
    refused 65 forge quantize broken out "${small[@]}"
}

@test "eval of what two tools of its pipe read, and cannot: one line" {
    cp -r "$model" bad
    refused_both() { # STATUS MESSAGE
        for pair in "bad $model" "$model bad"; do
            # shellcheck disable=SC2086
            refused "$1" forge eval $pair --text "$text"
            [[ $stderr == "forge: 'bad/"$2 ]]
        done
    }
    head -c 200 "$model/config.json" >bad/config.json
    refused_both 65 "config.json': line "*
    ln -sf /etc/passwd bad/config.json
    refused_both 65 "config.json': a symbolic link to '/etc/passwd', out of the directory"
    rm bad/config.json bad/tokenizer.json
    refused_both 66 "config.json': cannot open: "*
    cp "$model/config.json" bad
    head -c 100 "$model/model.safetensors" >bad/model.safetensors
    refused_both 65 "model.safetensors': "*
}

@test "a missing tensor, a missing tokenizer" {
    broken_model
    sed -i 's/"num_hidden_layers": 4/"num_hidden_layers": 5/' broken/config.json
    refused 65 forge quantize broken out "${small[@]}"
    cp "$model/config.json" broken/
    rm broken/tokenizer.json
    refused 66 forge quantize broken out "${small[@]}"
}

@test "weights that are not finite are named" {
    broken_model
    for tensor in model.layers.2.mlp.up_proj.weight model.norm.weight; do
        python3 - broken/model.safetensors $tensor <<'END'
import json, sys
with open(sys.argv[1], "r+b") as f:
    n = int.from_bytes(f.read(8), "little")
    f.seek(8 + n + json.loads(f.read(n))[sys.argv[2]]["data_offsets"][0])
    f.write(b"\xc0\x7f")  # a NaN of bf16
END
        refused 65 forge quantize broken out "${small[@]}"
        [[ $stderr == *"'${tensor%.weight}"* ]] || { echo "$stderr"; return 1; }
        cp "$model/model.safetensors" broken/
    done
}

@test "a model of another kind is refused by name" {
    broken_model
    sed -i 's/"llama"/"gpt_neox"/' broken/config.json
    refused 78 forge quantize broken out "${small[@]}"
    [[ $stderr == *gpt_neox* ]]
}

@test "what no runtime loads is refused before any work" {
    run --separate-stderr forge quantize "$model" out "${small[@]}" \
        --layout awq --group 512
    [ "$status" -ne 0 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ ! -e out ]
    [ ! -e out.work ]
}

@test "an output that is there already is left alone" {
    mkdir there
    run -73 forge quantize "$model" there "${small[@]}"
    : >file
    run -73 forge quantize "$model" file "${small[@]}"
    run -73 forge quantize "$model" no/where "${small[@]}"
    ln -s nowhere link
    run -73 forge quantize "$model" link "${small[@]}"
    [ -z "$(ls there)" ]
    [ ! -s file ]
}

@test "a disk without room is 74, before the work and in it" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    mkdir disk
    mount -t tmpfs -o size=2m forge-test disk || skip "no tmpfs"
    run -74 --separate-stderr forge quantize "$model" disk/out "${small[@]}" \
        --work work
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ -z "$(ls disk)" ]
    umount disk
    # Files end at 1 MB: fails where the first large one is written.
    run -74 --separate-stderr bash -c 'ulimit -f 1000; trap "" XFSZ
        forge quantize "$@"' - "$model" out "${small[@]}"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ ! -e out ]
    [ -z "$(find . -name '*.tmp.*')" ]
    # ... and continues where there is room again.
    forge quantize "$model" out "${small[@]}"
    [ -e out/config.json ]
    [ ! -e out.work ]
}

@test "OUT may lie in the root directory" {
    [ -w / ] || skip "needs a root directory to write to"
    local out=/forge-test-$$-$RANDOM
    run forge quantize "$model" $out "${nearest[@]}"
    [ -e $out/config.json ] || { rm -rf $out $out.work; false; }
    rm -r $out
    [ ! -e $out.work ]
}

@test "OUT takes room for itself and for linears on their way, not for all twice" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    mkdir disk
    # 3.6 MiB, of which 1.8 are linears
    mount -t tmpfs -o size=6m forge-test disk || skip "no tmpfs"
    forge quantize "$model" disk/out "${small[@]}" --work work || { umount disk; false; }
    forge verify disk/out || { umount disk; false; }
    umount disk
    mount -t tmpfs -o size=5m forge-test disk
    run -74 --separate-stderr forge quantize "$model" disk/out "${small[@]}" --work work
    umount disk
    [[ $stderr == "forge: 'disk/out': needs "*" MiB, "*" are free" ]]
}

@test "directories on one disk need room for both" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    local told=() went=()
    quantize() { # OUT ARGUMENT...
        run --separate-stderr forge quantize "$model" "$1" "${small[@]}" "${@:2}"
        told+=("$stderr") went+=("$status")
    }
    mkdir disk
    ln -s disk link
    # 3.6 MiB of codes and 5.1 of OUT are needed: each has room
    mount -t tmpfs -o size=8m forge-test disk || skip "no tmpfs"
    quantize disk/out
    quantize link/out --work disk/work # by another name
    went+=("$(ls disk)")
    quantize disk/out --work work
    rm -rf disk/out
    quantize out --work disk/work
    umount disk
    # 6.5 MiB are free: enough for what is not made yet, and not for another run
    mount -t tmpfs -o size=16m forge-test disk
    cp -a work disk
    head -c $(($(stat -f -c '%a * %S' disk) - (13 << 19))) /dev/zero >disk/filler
    quantize disk/other --work disk/work --seqlen 65
    quantize disk/out --work disk/work
    umount disk
    [ "${went[*]}" = "74 74  0 0 74 0" ]
    [[ ${told[0]} == "forge: '$PWD/disk/out.work' needs "*" MiB and 'disk/out' "*" MiB, on one disk: 8.00 MiB are free" ]]
    [[ ${told[1]} == "forge: '$PWD/disk/work' needs "*" MiB and 'link/out' "*" MiB, on one disk: 8.00 MiB are free" ]]
    [[ ${told[4]} == "forge: '$PWD/disk/work' needs "*" MiB and 'disk/other' "*" MiB, on one disk: 6."*" MiB are free" ]]
    [ "$(printf '%s' "${told[@]}" | wc -l)" -eq 0 ]
}

@test "--scratch on the disk of the work directory needs room for both" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    local parts=(--text "$text" --sequences 4 --seqlen 256 --quiet --parts 2 --jobs 2)
    mkdir -p disk scratch
    mount -t tmpfs -o size=17m forge-test disk || skip "no tmpfs"
    mkdir disk/scratch
    run --separate-stderr forge quantize "$model" out "${parts[@]}" --work disk/work --scratch disk/scratch
    both=$status words=$stderr
    run forge quantize "$model" out "${parts[@]}" --work disk/work --scratch scratch
    apart=$status
    umount disk
    [ "$both $apart" = "74 0" ]
    [[ $words == "forge: '$PWD/disk/work' needs "*" MiB and 'disk/scratch' "*" MiB, on one disk: "*" MiB are free" ]]
}

@test "what an earlier run has made needs no room again" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    forge quantize "$model" out "${small[@]}" --work work
    rm work/solve-*/codes-3.fts
    mkdir disk
    mount -t tmpfs -o size=9m forge-test disk || skip "no tmpfs"
    cp -a work disk
    # 4.6 MiB are needed in all, 2.4 are there, 3 are free
    head -c $(($(stat -f -c '%a * %S' disk) - (3 << 20))) /dev/zero >disk/other
    run forge quantize "$model" again "${small[@]}" --work disk/work
    # with other settings nothing is there
    rm disk/work/solve-*/codes-3.fts
    run -74 --separate-stderr forge quantize "$model" other "${small[@]}" --seqlen 65 --work disk/work
    umount disk
    [[ $stderr == "forge: '"*"/disk/work': needs "*" MiB, "*" are free" ]]
    same out again
}

@test "a disk without room for hidden states to go on from: a note, and the same result" {
    [ "$(id -u)" -eq 0 ] && command -v mount >/dev/null || skip "needs root to mount"
    local few=(--text "$text" --sequences 16 --seqlen 512)
    mkdir disk
    mount -t tmpfs -o size=22m forge-test disk || skip "no tmpfs"
    forge quantize "$model" out "${few[@]}" --work disk/work 2>said
    umount disk
    [ "$(grep -c ' more would keep hidden states to go on from, ' said)" -eq 1 ]
    forge quantize "$model" other "${few[@]}" 2>said
    run ! grep -q 'to go on from' said
    cmp out/model.safetensors other/model.safetensors
}

@test "--dry-run says what it would cost and does nothing" {
    run -0 forge quantize "$model" out --text "$text" --dry-run
    [[ $output == *"4 layers"* && $output == *"28 linears"* ]]
    [[ $output == *FLOP* && $output == *Hessian* ]]
    [[ $output == *"  fast "*"  default "*"(this run)"*"  best "* ]]
    [ -z "$(ls)" ]
}

@test "the line fits the terminal" {
    for columns in 40 80; do
        rm -rf out
        # A terminal of that width, and what was drawn on it.
        python3 - "$columns" forge quantize "$model" out "${small[@]:0:6}" <<'PYTHON'
import fcntl, os, pty, struct, subprocess, sys, termios
columns = int(sys.argv[1])
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
run = subprocess.Popen(sys.argv[2:], stderr=theirs, stdout=subprocess.DEVNULL)
os.close(theirs)
seen = b""
try:
    while chunk := os.read(ours, 4096):
        seen += chunk
except OSError:
    pass
assert run.wait() == 0
lines = [x.replace(b"\033[K", b"") for x in seen.split(b"\r")]
assert any(b"layer" in x for x in lines), seen
assert max(map(len, lines)) < columns, max(lines, key=len)
assert b"\n" not in seen.replace(b"\r\n", b""), "it scrolls"
PYTHON
    done
}

@test "without a terminal, a line for each layer" {
    run -0 --separate-stderr forge quantize "$model" out "${small[@]:0:6}"
    [ "${#stderr_lines[@]}" -eq 4 ]
    for i in 1 2 3 4; do
        [[ ${stderr_lines[i - 1]} =~ ^forge:\ layer\ $i\ of\ 4,\ $((i * 25))\ %,\ loss\ 0\.[0-9]{3}\ of\ rounding,.*to\ go$ ]]
    done
}

@test "a rate that is measured, not assumed" {
    run -0 forge quantize "$model" out --text "$text" --dry-run
    [[ $output == *"by a measurement just now"* ]]
    # Within a factor of eight of what it takes, whatever the machine.
    said=$(awk '/\(this run\)/ { n = split($5, t, /[hms]/) # 12.3, 1m05s, 2h10m
        print $5 ~ /h/ ? t[1] * 3600 + t[2] * 60 : $5 ~ /m/ ? t[1] * 60 + t[2] : $5 }' <<<"$output")
    start=${EPOCHREALTIME/[.,]/}
    forge quantize "$model" out --text "$text" --quiet
    took=$(((${EPOCHREALTIME/[.,]/} - start) / 1000))
    awk -v s="$said" -v t="$took" 'BEGIN { t /= 1000; print s, t
        exit !(s > t / 8 && s < t * 8) }'
    run -0 forge quantize "$model" out2 --text "$text" --dry-run --rate 1
    [[ $output == *"at 1 GFLOP/s"* ]]
}

@test "--progress json is a line of JSON each, and ends with the status" {
    forge quantize "$model" out --text "$text" --sequences 4 --seqlen 64 \
        --progress json 2>lines >summary
    jq -es 'length == 29 and ([.[] | select(.module)] | length) == 28 and
        .[28].event == "end" and .[28].status == 0' lines
    # ... and with what was made.
    bytes=$(stat -c %s out/model.safetensors)
    jq -es --arg out "$PWD/out" --argjson bytes "$bytes" '.[28].out == $out and
        .[28].bytes_out == $bytes and .[28].loss < .[28].loss_rtn and
        .[28].bytes_in > 2 * $bytes and .[27].eta >= 0 and
        .[28].loss - ([.[:28][].loss] | add) < 1e-6' lines
    grep -q '^modules   28 in 4 bits' summary
}

@test "--progress json ends with the exit status, whatever failed, and with why" {
    ends() { # STATUS ARGUMENT...: one event, and the message
        run "-$1" --separate-stderr forge quantize "$model" out --progress json "${@:2}"
        [ "${#stderr_lines[@]}" -eq 2 ]
        jq -e --arg said "${stderr_lines[1]}" ".event == \"end\" and .status == $1 and
            \$said == \"forge: \" + .error" <<<"${stderr_lines[0]}"
        [ -z "$(find . -name '*.tmp.*')" ]
    }
    ends 64 --text "$text" --sym --asym
    ends 66 --text nowhere
    echo 'too short' >short
    ends 65 --text short
    ends 78 --text "$text" --layout awq --group 512
    # what was made could not be said
    run -74 --separate-stderr sh -c 'forge quantize "$0" out --method rtn --progress json >/dev/full' "$model"
    jq -es 'length == 29 and .[28].status == 74' <<<"${stderr%$'\n'*}"
    [[ $stderr == *"forge: 'out' is complete: cannot write '<stdout>': No space left on device" ]]
    forge verify -q out
    forge gc -q out.work
    [ ! -e out.work ]
}

@test "--progress json of other commands: JSON of their tools, and no summary" {
    only() { # TOOL COMMAND...: its last line
        "${@:2}" 2>lines >made
        jq -es --arg tool "forge-$1" 'length > 0 and .[-1].event == "end" and .[-1].tool == $tool' lines
    }
    forge quantize "$model" out --method rtn --quiet
    only tokens forge tokens "$model" --text "$text" --sequences 2 --seqlen 8 --progress json
    only generate forge generate "$model" The --tokens 2 --progress json
    only verify forge verify out --progress json
    only shard forge repack out awq --layout awq --progress json
    only eval forge eval "$model" out --text "$text" --sequences 2 --seqlen 32 --progress json
    printf '\001' | dd of=out/model.safetensors bs=1 seek=1000000 conv=notrunc status=none
    run -1 --separate-stderr forge verify out --progress json
    jq -es 'length == 1 and .[0].event == "end"' <<<"$stderr"
}

@test "--progress always draws one line and takes it back" {
    forge quantize "$model" out --method rtn --progress always 2>drawn >/dev/null
    grep -q 'layer 4/4' drawn
    [ "$(tail -c 4 drawn)" = $'\r\033[K' ]
}

@test "a text that gives less than was asked for is said, and what it gave" {
    head -c 3000 "$tree/examples/eval.txt" >short
    run -0 --separate-stderr forge quantize "$model" out --text short --seqlen 256
    [[ $output == *"data      "*" tokens in "[2-9]" sequences, propagate "* ]]
    [[ $stderr == *"forge: warning: 'short': "[2-9]" sequences, 128 were asked for" ]]
}

@test "options of a make that runs forge, and an empty environment, change nothing" {
    want=$(forge quantize "$model" plain --method rtn --quiet && md5sum <plain/model.safetensors)
    for set in MAKEFLAGS=-n MAKEFLAGS=i GNUMAKEFLAGS=-n MAKEFILES=/etc/passwd; do
        env "$set" forge quantize "$model" out --method rtn --quiet
        [ "$(md5sum <out/model.safetensors)" = "$want" ]
        rm -r out
    done
    env -i "$(command -v forge)" quantize "$model" out --method rtn --quiet
    [ "$(md5sum <out/model.safetensors)" = "$want" ]
}

@test "where standard streams are closed no other file takes their place" {
    forge quantize "$model" out --method rtn --quiet
    sh -c 'forge repack out awq --layout awq <&- >&- 2>&-'
    forge verify awq
    run -74 sh -c 'forge eval "$0" out --text "$1" --sequences 2 <&- >&- 2>&-' "$model" "$tree/examples/eval.txt"
    run -74 sh -c 'forge ls out >&-'
    run -74 sh -c 'forge-grid <&-'
}

@test "--quiet says nothing" {
    run -0 forge quantize "$model" out --method rtn --quiet
    [ -z "$output" ]
}

@test "a signal to forge is 128 and its number, whatever it runs" {
    mkfifo never
    exec 8<>never # a text that does not come
    for signal in HUP INT TERM; do
        for what in "tokens $model" "eval $model $model --text -"; do
            # shellcheck disable=SC2086
            env --default-signal=INT forge $what <&8 2>said >/dev/null 3>&- 8>&- &
            until pgrep -P $! >/dev/null; do sleep 0.02; done
            kill -"$signal" $!
            status=0 number=$(kill -l "$signal")
            wait $! || status=$?
            [ "$status" -eq $((128 + number)) ] || { echo "$signal $what: $status"; return 1; }
            [ "$(cat said)" = "forge: stopped by signal $number" ] || { echo "$signal $what said: $(cat said)"; return 1; }
        done
    done
}

@test "status shows stages, gc removes what a kill left" {
    forge quantize "$model" out "${small[@]}" --work work
    run -0 forge status work
    [[ ${lines[0]} == *complete* ]]
    [ "${lines[1]}" = "100 % done: 4 of 4 layers, 28 of 28 modules" ]
    [ "${lines[2]}" = "gradients: done" ]
    [ "${#lines[@]}" -eq 8 ]
    S=$(echo work/solve-*)
    : >work/meter.json.tmp.999999999.abcdef
    : >"$S/codes-12.fts.tmp.999999999.abcdef"
    run -0 forge gc work
    [ "$output" = "2 removed" ]
    [ -z "$(find work -name '*.tmp.*')" ]
}

@test "gc of a work directory that one may not write to is 73, and names what stays" {
    [ "$(id -u)" -eq 0 ] || skip "not root"
    forge quantize "$model" out "${nearest[@]}" --work work
    S=$(echo work/solve-*)
    chmod -R a+rX . && chmod 755 "$BATS_TEST_TMPDIR"
    gc() { run "-$1" --separate-stderr setpriv --reuid 65534 --clear-groups "$(command -v forge)" gc "${@:2}" work; }
    gc 0
    [ "$output" = "0 removed" ]
    for left in work/meter.json.tmp.999999999.abcdef "$S/codes-12.fts.tmp.999999999.abcdef"; do
        : >"$left"
        gc 73
        [ "$stderr" = "forge: '$left': cannot be removed: Permission denied" ]
        [ -z "$output" ]
        rm "$left"
    done
    cp -r "$S" "${S%-*}-0123456789abcdef"
    gc 73 --settings
    [[ $stderr == "forge: '${S%-*}-0123456789abcdef': cannot be removed: Permission denied" ]]
}

@test "status --json: percent, time to go, layers" {
    forge quantize "$model" out "${small[@]}" --work work
    forge status --json work >all
    jq -e '.state == "complete" and .percent == 100 and .eta == 0 and
        (.layers | length) == 4 and all(.layers[]; .solved and .modules == 7 and
        .loss < .loss_rtn)' all
    rm -r out work/solve-*/codes-[23].fts
    jq -e '.state == "stopped" and .percent == 50 and .layers_done == 2 and
        .eta == null and .layers[2].solved == false' <<<"$(forge status work --json)"
    # Somebody is at it, for ten seconds, and has made one of two layers since.
    jq -c ".started = $(($(date +%s) - 10)) | .before = 7" work/settings.json >new
    cp new work/settings.json
    exec 7>work/lock
    flock 7
    jq -e '.state == "running" and .elapsed >= 10 and .eta >= 20 and .eta < 40' \
        <<<"$(forge status work --json 7>&-)"
    run -0 forge status work 7>&-
    [[ ${lines[1]} == "50 % done: 2 of 4 layers, 14 of 28 modules; to go about "* ]]
}

@test "gc beside a running forge leaves what may be in use" {
    forge quantize "$model" out "${small[@]}" --work work
    S=$(echo work/solve-*)
    touch "work/.status.tmp."{"$HOSTNAME",other.host}.999999999.AbCdEf \
        "work/.status.tmp.$HOSTNAME.$$.AbCdEf"
    : >"$S/codes-1.fts.tmp.$$.abcdef"
    : >"$S/codes-1.fts.tmp.999999999.abcdef" # of any host, made just now
    touch -d '2 days ago' "$S/codes-1.fts.tmp.$$.abcdef" work/.status.tmp.other*
    exec 7>work/lock
    flock 7
    run -0 forge gc work 7>&-
    [ "$output" = "2 removed" ]
    [ "$(find work -name '*.tmp.*' | wc -l)" -eq 3 ]
    [ -e "work/.status.tmp.$HOSTNAME.$$.AbCdEf" ]
}

@test "gc removes the unfinished OUT that a killed run left, and no other" {
    forge quantize "$model" out "${nearest[@]}" --work work
    rm -r out
    mkdir out.tmp.999999999.{AbCdEf,making,others,AbCdEfg} other.tmp.999999999.AbCdEf
    mkdir out.tmp.999999999.{AbCdEf,making}/1_Pooling
    touch out.tmp.999999999.{AbCdEf,making}/1_Pooling/config.json
    touch out.tmp.999999999.{AbCdEf,making,AbCdEfg}/.forge-unfinished other.tmp.999999999.AbCdEf/.forge-unfinished \
        out.tmp.999999999.others/file
    exec 7<out.tmp.999999999.making
    flock 7
    exec 8>work/lock
    flock 8
    run -0 forge gc work 7>&- 8>&-
    [ "$output" = "0 removed" ]
    exec 8>&-
    run -0 forge gc work 7>&-
    [ "$output" = "1 removed" ]
    [ "$(echo *.tmp.*)" = "other.tmp.999999999.AbCdEf out.tmp.999999999.AbCdEfg out.tmp.999999999.making out.tmp.999999999.others" ]
    [ -e out.tmp.999999999.making/1_Pooling/config.json ]
}

@test "gc removes the states that a killed run left behind its last layer, and not those to go on from" {
    mkdir scratch
    forge quantize "$model" out "${small[@]}" --work work --parts 2 --scratch scratch
    S=$(echo work/solve-*)
    away=scratch/forge-${S#*-}-$(stat -c %i work)
    mkdir "$away"
    left=("$S"/{hidden,moments-3-mlp_mid.part-0,merged-3-mlp_mid.piece-1,codes-3-mlp_mid.share-0-of-2}.fts
        {"$S","$away"}/states-3-mlp_in.part-1.fts)
    mine=("$S"/{hidden.fts.old,states-3.fts} scratch/states-3-mlp_in.part-1.fts)
    touch "${left[@]}" "${mine[@]}"
    mv "$S/codes-2.fts" codes # the run goes on from there
    run -0 forge gc work
    [ "$output" = "0 removed" ]
    mv codes "$S/codes-2.fts"
    exec 7>work/lock # or somebody is at it
    flock 7
    run -0 forge gc work 7>&-
    [ "$output" = "0 removed" ]
    exec 7>&-
    find "$S" -name 'codes-?.fts' >before
    run -0 forge gc work
    [ "$output" = "6 removed" ]
    for name in "${left[@]}" "$away"; do [ ! -e "$name" ]; done
    ls "${mine[@]}" >/dev/null
    find "$S" -name 'codes-?.fts' | cmp - before
}

@test "states of the original that a killed run left go with gc, and with the next run" {
    forge quantize "$model" out "${small[@]}" --work work --propagate original
    C=$(echo work/calib-*)
    touch "$C"/hidden-{0,2}.fts "$C/hidden-2.fts.old"
    mv "$C/hessian-1.fts" kept # of hidden-0
    run -0 forge gc work
    [ "$output" = "1 removed" ]
    [ -e "$C/hidden-0.fts" ]
    [ ! -e "$C/hidden-2.fts" ]
    mv kept "$C/hessian-1.fts"
    forge quantize "$model" other "${small[@]}" --work work --propagate original
    [ "$(echo "$C"/hidden-*)" = "$C/hidden-2.fts.old" ]
}

@test "two runs do not share a work directory" {
    forge quantize "$model" other "${small[@]}" --work work
    exec 7>work/lock
    flock 7
    refused 75 forge quantize "$model" out "${small[@]}" --work work 7>&-
}

@test "a work directory that another run removes at its end is not gone on in" {
    forge quantize "$model" other "${small[@]}" --work out.work
    # removed once forge has opened it, too, and waits for the lock
    flock -o out.work/lock bash -c 'until [ "$(find /proc/[0-9]*/fd -lname "$PWD/out.work/lock" \
        2>/dev/null | wc -l)" -ge 2 ]; do sleep 0.01; done; rm -r out.work' &
    refused 75 forge quantize "$model" out "${small[@]}"
    wait
    [ ! -e out.work ]
}

@test "tokens: ids as the model's tokenizer gives them" {
    echo 'The quick brown fox' | forge tokens "$model" --ids >ids
    [[ $(cat ids) =~ ^[0-9]+(\ [0-9]+)*$ ]]
    echo 'The quick brown fox' | forge-tokens -q --ids "$model" | cmp - ids
}

@test "eval of a model against itself finds no difference" {
    forge eval "$model" "$model" --text "$tree/examples/eval.txt" \
        --sequences 2 --seqlen 128 --json --quiet >same.json
    jq -e '.kl_mean == 0 and .top1 == 1 and .ppl == .ppl_original' same.json
    jq -e 'has("tokens") and has("kl_p99")' same.json
    cp "$tree/examples/eval.txt" ./--t.txt # a path in which no option is seen
    for way in --text=./--t.txt --text=--t.txt; do
        forge eval "$model" "$model" $way --sequences 2 --seqlen 128 --json --quiet >dashes.json
        jq -e '.text == "--t.txt"' dashes.json
    done
    forge quantize "$model" out --method rtn --quiet
    run -1 forge eval "$model" out --text "$tree/examples/eval.txt" \
        --sequences 2 --seqlen 128 --max-ppl-ratio 0.5 --quiet
}
