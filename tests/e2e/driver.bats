#!/usr/bin/env bats
# The driver as a user meets it: options, plans, reports, refusals.

load e2e

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
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
    refused 64 forge quantize "$model" out --text "$text" --gpu-memory lots
    refused 64 forge eval "$model" --text "$text"
    refused 64 forge eval "$model" "$model"
    refused 64 forge status
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
    # The last tensor of the file: two bf16 NaNs.
    printf '\300\177\300\177' | dd of=broken/model.safetensors bs=1 \
        seek=$(($(stat -c %s broken/model.safetensors) - 4)) conv=notrunc \
        status=none
    run ! forge quantize broken out "${small[@]}"
    [ ! -e out ]
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
    [ ! -e out ] && [ ! -e out.work ]
}

@test "an output that is there already is left alone" {
    mkdir there
    run -73 forge quantize "$model" there "${small[@]}"
    : >file
    run -73 forge quantize "$model" file "${small[@]}"
    run -73 forge quantize "$model" no/where "${small[@]}"
    ln -s nowhere link
    run -73 forge quantize "$model" link "${small[@]}"
    [ -z "$(ls there)" ] && [ ! -s file ]
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
    [ -e out/config.json ] && [ ! -e out.work ]
}

@test "--dry-run says what it would cost and does nothing" {
    run -0 forge quantize "$model" out --text "$text" --dry-run
    [[ $output == *"4 layers"* && $output == *"28 linears"* ]]
    [[ $output == *TFLOP* && $output == *Hessian* ]]
    [[ $output == *"  fast "*"  default "*"(this run)"*"  best "* ]]
    [ -z "$(ls)" ]
}

@test "--progress json is a line of JSON each, and ends with the status" {
    forge quantize "$model" out --text "$text" --sequences 4 --seqlen 64 \
        --progress json 2>lines >summary
    jq -es 'length == 29 and ([.[] | select(.module)] | length) == 28 and
        .[28].event == "end" and .[28].status == 0' lines
    grep -q '^modules   28 in 4 bits' summary
}

@test "--progress always draws one line and takes it back" {
    forge quantize "$model" out --method rtn --progress always 2>drawn >/dev/null
    grep -q 'modules' drawn
    [ "$(tail -c 4 drawn)" = $'\r\033[K' ]
}

@test "a text that gives less than was asked for is said, and what it gave" {
    head -c 3000 "$tree/examples/eval.txt" >short
    run -0 --separate-stderr forge quantize "$model" out --text short --seqlen 256
    [[ $output == *"data      "*" tokens in "[2-9]" sequences, propagate "* ]]
    [[ $stderr == "forge: warning: 'short': "[2-9]" sequences, 128 were asked for" ]]
}

@test "--quiet says nothing" {
    run -0 forge quantize "$model" out --method rtn --quiet
    [ -z "$output" ]
}

@test "status shows stages, gc removes what a kill left" {
    forge quantize "$model" out "${small[@]}" --work work
    run -0 forge status work
    [[ ${lines[0]} == *complete* ]]
    [ "${#lines[@]}" -eq 6 ]
    : >work/codes.tmp.999999999.abcdef
    mkdir work/scratch.tmp.host.999999999
    run -0 forge gc work
    [ "$output" = "2 removed" ]
    [ -z "$(find work -name '*.tmp.*')" ]
}

@test "gc beside a running forge leaves what may be in use" {
    mkdir -p work/dead/scratch.tmp.{"$HOSTNAME",other.host}.999999999
    mkdir work/live
    : >work/run
    : >"work/live/scratch.tmp.$HOSTNAME.$$"
    : >"work/live/codes.tmp.$$.abcdef"
    : >work/live/codes.tmp.999999999.abcdef # of any host, made just now
    touch -d '2 days ago' "work/live/codes.tmp.$$.abcdef" work/dead/scratch.tmp.other*
    exec 7>work/lock
    flock 7
    run -0 forge gc work 7>&-
    [ "$output" = "2 removed" ]
    [ -z "$(ls work/dead)" ]
    [ "$(find work/live -type f | wc -l)" -eq 3 ]
}

@test "two runs do not share a work directory" {
    mkdir work
    exec 7>work/lock
    flock 7
    refused 75 forge quantize "$model" out "${small[@]}" --work work 7>&-
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
    forge quantize "$model" out --method rtn --quiet
    run -1 forge eval "$model" out --text "$tree/examples/eval.txt" \
        --sequences 2 --seqlen 128 --max-ppl-ratio 0.5 --quiet
}
