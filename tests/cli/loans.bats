#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # each test is a subshell; run sets stderr
# Memory that tools lend to each other on a device (--loans), by the fake one of
# tests/fake_loan.c: the same bytes as without, in pipes only, and an end that dies
# ends the run.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/forward.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir gpu
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" "$(command -v forge-calib)" \
        "$(command -v forge-hessian)" "$(command -v forge-solve)" \
        "$(command -v forge-weights)" "$(command -v forge-grid)" "$(command -v forge-split)" \
        "$(command -v forge-gradient)" gpu
    cp gpu/forge-cuda.so gpu/libcuda.so.1 # the driver that --device auto looks for
    python3 "$PY" each llama llama-biases deepseek_v3 qwen2_moe
    python3 "$PY" tokens t.fts 40 1 33 64
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    ln -s "$BATS_FILE_TMPDIR"/* .
    export FAKE_CUDA_LOG=$PWD/log out='' seen=/dev/null weights=/dev/null loans='' calib='' \
        weigh='' hessian='' solve='' tools=gpu/ solver=gpu/forge-solve effort='' split=''
}

# loop KIND OPTION...: codes to $out, what forge-calib put out to $seen, forge-weights to
# $weights.  loans: where they are agreed on ("": nowhere); calib, hessian, solve: words in front of each;
# weigh: options of forge-hessian.
loop() {
    local kind=$1 lend=
    shift
    rm -f back log l
    mkfifo back
    [ -z "$loans" ] || lend="--loans $loans"
    # shellcheck disable=SC2016
    kind=$kind lend=$lend timeout 60 bash -o pipefail -c '
        export LD_LIBRARY_PATH=gpu
        $calib ${tools}forge-calib -q $lend --feedback back "$@" $kind t.fts | tee $seen |
        $hessian ${tools}forge-hessian -q --blend 2 $weigh $lend |
        ${tools}forge-weights -q --join $lend $kind | tee $weights |
        ${tools}forge-grid -q --group 8 $lend | $solve $solver -q $lend $effort |
        if [ "$split" ]; then ${tools}forge-split -q $lend $split; else cat; fi |
        { ${late:+sleep $late}; tee back >$out; }' - "$@"
}

# All but times: the content hash that END says.
same() {
    python3 - "$@" <<'PYTHON'
import sys
ends = {open(p, "rb").read().rpartition(b"FTS1")[2][60 + 24:60 + 32] for p in sys.argv[1:]}
assert len(ends) == 1 and len(ends.pop()) == 8
PYTHON
}

lent() { # WHAT: was more of that than the trials?
    grep "^$1 " log | grep -qvE ' (2097152|8)x1$'
}

# lent_rooms FILE LEASES ROLE,DIMS...: are most frames of these roles lent in the host's
# memory: entry 11 with lent 2 and these leases (forge-stream(5))?
lent_rooms() {
    python3 - "$@" <<'PYTHON'
import re, sys
s = open(sys.argv[1], "rb").read()
leases = b"[%c-%c]" % tuple(map(int, sys.argv[2].split("-")))
lent = len(re.findall(rb"\x0b\x00\x50\x00\x00{64}.{8}" + leases + rb"\x00{3}\x02\x00{3}", s, re.S))
whole = -lent
for role, dims in (map(int, a.split(",")) for a in sys.argv[3:]):
    frame = rb"%c\x00[\x01-\x03]\x00%c\x00..(?:.{8}){%d}model\.layers\." % (role, dims, dims)
    whole += len(re.findall(frame, s, re.S))
print("%d lent, %d not" % (lent, whole))
assert lent > whole >= 0
PYTHON
}

# experts FILE: "LENT WHOLE", frames with tokens (role 3) of experts: as in lent_weights, with
# lent 1; or with their payload.
experts() {
    python3 - "$1" <<'PYTHON'
import re, sys
s = open(sys.argv[1], "rb").read()
frame = rb"\x03\x00[\x01-\x03]\x00\x02\x00..(?!\x00{8}).{16}model\.layers\.\d+\.mlp\.experts\."
at = [m.start() for m in re.finditer(frame, s, re.S)] + [len(s)]
lent = sum(bool(re.search(rb"\x0b\x00\x50\x00.{64}.{8}\x00{4}\x01\x00{3}", s[a:a + 1500], re.S)) for a in at[:-1])
print(lent, len(at) - 1 - lent)
PYTHON
}

@test "the loop with loans: the same codes, and neither activations, Hessians nor weights in a pipe" {
    for kind in llama llama-biases deepseek_v3 qwen2_moe; do
        for both in '' '--propagate both'; do
            for dtype in bf16 f32; do # the fake's Hessians are of bf16 alone
                # shellcheck disable=SC2086
                out=bytes loans='' loop $kind --dtype $dtype $both
                run ! grep -qE '^(map|fetch) ' log
                # shellcheck disable=SC2086
                out=lent weights=few loans=l loop $kind --dtype $dtype $both
                lent map
                same bytes lent
                lent_rooms few 1-16 7,2
            done
        done
    done
}

# fetched: the bytes that came to the host.  In how many calls depends on the router, and with it on
# the codes of the layers before.
fetched() {
    awk '$1 == "fetch" { split($3, n, "x"); sum += n[1] * n[2] } END { print sum + 0 }' log
}

# What is lent is weighed there: the bytes of rows that the host weighs, and no more are fetched
# than without weights.
@test "the loop with loans and weights of tokens: the same codes, and nothing is fetched for them" {
    for kind in llama llama-biases deepseek_v3 qwen2_moe; do
        forge-gradient -q --weights w.fts $kind t.fts >gradients
        for dtype in bf16 f32; do
            for both in '' '--propagate both'; do
                # shellcheck disable=SC2086
                out=plain loans=l loop $kind --dtype $dtype $both
                fetched >before
                export weigh='--weights w.fts'
                # shellcheck disable=SC2086
                out=bytes loans='' loop $kind --dtype $dtype $both
                run ! grep -qE '^(map|fetch|weigh) ' log
                # shellcheck disable=SC2086
                out=lent loans=l loop $kind --dtype $dtype $both
                weigh=
                same bytes lent
                run -1 same plain lent
                fetched | cmp - before
                [ $dtype = f32 ] || grep -q '^weigh 1 ' log
            done
        done
    done
}

@test "without a GPU: the same codes, and neither Hessians nor weights in a pipe" {
    export tools='' solver=forge-solve
    for kind in llama deepseek_v3; do
        for both in '' '--propagate both'; do
            # shellcheck disable=SC2086
            out=bytes loans='' loop $kind $both
            # shellcheck disable=SC2086
            out=lent weights=few loans=l loop $kind $both
            [ ! -e log ]
            same bytes lent
            lent_rooms few 1-16 7,2
            lent_rooms few 33-40 5,1 6,2 # Hessians, cross moments
        done
    done
}

# fp8 FILE: how many weights (role 7) are lent as 8-bit floats, E4M3 with scales of blocks of
# 128 x 128 (forge-stream(5)).
fp8() {
    python3 - "$1" <<'PYTHON'
import re, struct, sys
s = open(sys.argv[1], "rb").read()
lent = 0
for m in re.finditer(rb"\x07\x00\x03\x00\x02\x00..(?:.{8}){2}model\.layers\.[\w.]+\x0b\x00\x50\x00\x00{64}", s, re.S):
    head = s.rindex(b"FTS1", 0, m.start())
    meta, pad, payload = struct.unpack("<IIQ", s[head + 24:head + 40])
    if payload:
        said = struct.unpack("<IIQQ", s[head + 64 + meta + pad:][:payload])
        assert said == (14, 0, 128, 128), said
        lent += 1
print(lent)
PYTHON
}

@test "weights in 8-bit floats: lent as they are stored to tools with a GPU, the same codes" {
    python3 "${PY%forward.py}moe.py" make deepseek_v3 fp8 m
    for effort in '--method rtn' '' '--effort default --prior 2'; do
        export effort
        out=bytes loop m
        run ! grep -q '^widen 1 ' log
        out=lent weights=few loans=l loop m
        same bytes lent
        [ "$(grep -c '^widen 1 ' log)" -gt 10 ]
        [ "$(fp8 few)" -gt 10 ]
        [ "$effort" != '--method rtn' ] || continue
        # by the CPU, where the GPU declines
        FAKE_CUDA_GRIDS=no FAKE_CUDA_MOST=0 out=lent weights=few loans=l loop m
        grep -q '^factors ' log
        run ! grep -q '^widen 1 ' log
        [ "$(fp8 few)" -gt 10 ]
        FAKE_CUDA_MOST=0 out=bytes loop m
        same bytes lent
    done
    run -65 --separate-stderr bash -o pipefail -c 'cat few | gpu/forge-grid -q --loans new | cat >/dev/null'
    [[ $stderr == *"a loan of what is not there" ]]
    # one of them has no GPU
    for solver in forge-solve gpu/forge-solve; do
        tools=$([ $solver = forge-solve ] && echo gpu/ || echo '')
        export effort='' solver tools
        out=bytes loop m
        out=lent weights=few loans=l loop m
        same bytes lent
        run ! grep -q '^widen 1 ' log
        [ "$(fp8 few)" -eq 0 ]
        lent_rooms few 1-16 7,2
    done
}

# codes FILE: "LENT ALL", frames of codes (role 9): as in lent_weights, of another lease.
codes() {
    python3 - "$1" <<'PYTHON'
import re, sys
s = open(sys.argv[1], "rb").read()
lent = len(re.findall(rb"\x0b\x00\x50\x00\x00{64}.{8}[\x11-\x20]\x00{3}\x02\x00{3}", s, re.S))
print(lent, len(re.findall(rb"\x09\x00[\x01-\x20]\x00\x02\x00..(?:.{8}){2}model\.layers\.", s, re.S)))
PYTHON
}

@test "codes: lent to forge-split and forge-calib, and the layers' files have them" {
    local lent all
    export split=codes-%.fts
    for tools in gpu/ ''; do
        export tools solver=${tools}forge-solve
        for kind in llama qwen2_moe; do
            out=bytes loans='' loop $kind --propagate both
            [[ $(codes bytes) == "0 "[1-9]* ]]
            mkdir -p want && mv codes-*.fts want
            out=lent loans=l loop $kind --propagate both
            read -r lent all <<<"$(codes lent)"
            [ "$lent" -gt $((all / 2)) ] || { echo "$kind: $lent of $all"; return 1; }
            for file in want/*; do same "$file" "${file#want/}"; done
            forge-ls --verify -q codes-*.fts
            run -65 --separate-stderr forge-ls lent
            [[ $stderr == *"is memory that another process lends"* ]]
            rm -r want codes-*.fts
        done
    done
}

@test "codes, Hessians and cross moments take no more room than --dry-run counts" {
    local model=$BATS_TEST_DIRNAME/../../examples/llama-4m
    forge-tokens -q --sequences 4 --seqlen 64 -o t4.fts "$model" "$model/../calib.jsonl"
    mkfifo back
    # shellcheck disable=SC2016
    timeout 60 bash -o pipefail -c '
        forge-calib -q --loans l --feedback back --propagate both "$1" t4.fts | forge-hessian -q --loans l |
        forge-weights -q --join "$1" | tee few | forge-grid -q --loans l | forge-solve -q --loans l |
        forge-split -q --loans l codes-%.fts | tee back >lent' - "$model"
    lent_rooms few 33-40 5,1 6,2
    [[ $(codes lent) == [1-9]*" 28" ]]
    room=$(du -B 1 l | cut -f 1) # weights are in the pipe
    said=$(forge-plan "$model" | sed -n 's/^lent_bytes=//p')
    [ "$room" -gt $((said / 4)) ]
    [ "$room" -le "$said" ]
}

@test "experts' activations and Hessians: lent in one frame each, and as far as there is room" {
    local seen=seen low=4000000 high=5000000 room parts one
    python3 "$PY" tokens many.fts 200 3000 2000 3500 # experts take 2,048 at a time
    rm t.fts
    ln -s many.fts t.fts
    for kind in qwen2_moe deepseek_v3; do
        out=bytes loans='' loop $kind
        parts=$(experts seen)
        [[ $parts == "0 "[1-9]* ]]
        run ! grep -q ^blend log
        out=lent loans=l loop $kind
        one=$(experts seen)
        [[ $one == [1-9]*" 0" ]]
        [ "${one% 0}" -lt "${parts#0 }" ]
        grep -q '^blend 0 ' log # the prior of down, and that of gate and up
        grep -q '^blend 1 ' log
        run ! grep -qE '^fetch 1 [0-9]{5,}x1$' log # the layers' alone
        same bytes lent
        # moments that the host makes, of parts of what is lent
        out=bytes loans='' loop $kind --dtype f32 --propagate both
        out=lent loans=l loop $kind --dtype f32 --propagate both
        same bytes lent
    done
    ln -sf "$BATS_FILE_TMPDIR/t.fts" t.fts
    out=bytes loans='' loop qwen2_moe
    while :; do # a room in which some experts are lent
        room=$(((low + high) / 2))
        calib="env FAKE_CUDA_ROOM=$room" out=lent loans=l loop qwen2_moe
        same bytes lent
        case $(experts seen) in
        "0 "*) low=$room ;;
        *" 0") high=$room ;;
        *) break ;;
        esac
        [ $((high - low)) -gt 10 ]
    done
}

# plain FILE: as experts, of those that are no expert's, and of their companions; and how many
# of those lent have a lease.
plain() {
    python3 - "$1" <<'PYTHON'
import re, sys
s = open(sys.argv[1], "rb").read()
frame = rb"\x03\x00[\x01-\x03]\x00\x02\x00..(?!\x00{8}).{16}model\.layers\.\d+\.(?!mlp\.experts)"
at = [m.start() for m in re.finditer(frame, s, re.S)] + [len(s)]
loans = [re.search(rb"\x0b\x00\x50\x00.{72}(.)\x00{3}\x01\x00{3}", s[a:b], re.S) for a, b in zip(at, at[1:])]
leases = [m.group(1)[0] for m in loans if m]
assert all(n == 0 or 17 <= n <= 32 for n in leases)
print(len(leases), len(loans) - len(leases), sum(n > 0 for n in leases))
PYTHON
}

# Of a loop in which a call failed: it has ended, and its codes are whole or none.
whole_or_none() { # STATUS WHAT
    [ "$1" -ne 124 ] || { echo "$2: hangs"; return 1; }
    # codes may be whole when the last call of an end fails
    if [ "$1" -eq 0 ] || forge-ls --verify -q lent >/dev/null 2>&1; then
        same bytes lent
    fi
}

@test "activations that do not fit take turns" {
    local seen=seen low high room
    python3 "$PY" tokens many.fts 1000 750 900 950 850 500 50 100 150
    rm t.fts
    ln -s many.fts t.fts
    for kind in llama-biases 'llama-biases --propagate both' deepseek_v3; do
        # shellcheck disable=SC2086
        out=bytes loans='' loop $kind --dtype bf16
        [[ $(plain seen) == "0 "[1-9]*" 0" ]]
        # shellcheck disable=SC2086
        out=lent loans=l loop $kind --dtype bf16
        [[ $(plain seen) == [1-9]*" 0 0" ]]
        same bytes lent
        low=2000000 high=8000000
        while :; do
            room=$(((low + high) / 2))
            # shellcheck disable=SC2086
            calib="env FAKE_CUDA_ROOM=$room" out=lent loans=l loop $kind --dtype bf16
            same bytes lent
            case $(plain seen) in
            *" 0 0") high=$room ;;
            *" 0 "*) break ;;
            *) low=$room ;;
            esac
            [ $((high - low)) -gt 10000 ]
        done
        # an end dies while forge-calib waits for a turn, and the solver takes bytes
        for dead in calib hessian; do
            rm -f go go.here
            # shellcheck disable=SC2086
            calib="env FAKE_CUDA_ROOM=$room" hessian="env FAKE_CUDA_WAIT=go" solve='env FAKE_CUDA_BLOCK=no' \
                out=lent loans=l loop $kind --dtype bf16 2>err 3>&- &
            run=$!
            until [ -e go.here ]; do kill -0 $run; sleep .01; done
            sleep .3
            kill_waiting forge-$dead
            run ! wait $run
            run ! same bytes lent
            run ! grep -qa '"sync"' lent
        done
    done
    [ -e "${FAIL_SO:-/nonexistent}" ] || return 0
    for kind in malloc write; do # of forge-calib, whose thread that writes fails while the other waits
        for ((n = 1; n < 500; n += 1 + n / 2)); do
            rm -f mark
            rc=0
            calib="env FAKE_CUDA_ROOM=$room FAIL=$kind:$n FAIL_MARK=mark LD_PRELOAD=$FAIL_SO" \
                out=lent loans=l loop deepseek_v3 --dtype bf16 2>/dev/null || rc=$?
            whole_or_none $rc "$kind $n"
            [ -e mark ] || break
        done
        [ "$n" -gt 5 ]
    done
}

@test "the default effort with a prior: the CPU's codes, with loans and without" {
    export effort='--effort default --prior 2'
    for kind in llama qwen2_moe; do
        for both in '' '--propagate both'; do
            # shellcheck disable=SC2086
            out=cpu solver=forge-solve loop $kind $both
            # shellcheck disable=SC2086
            out=bytes loop $kind $both
            grep -q "^refine " log
            # shellcheck disable=SC2086
            out=lent loans=l loop $kind $both
            grep -q "^refine " log
            same bytes lent
            python3 "$BATS_TEST_DIRNAME/../reference/stages.py" same-codes bytes cpu
        done
    done
}

@test "an end that cannot gets bytes, or ends the run" {
    out=bytes loans='' loop llama --propagate both
    for end in calib hessian solve; do
        export $end='env FAKE_CUDA_BLOCK=no'
        out=lent loans=l loop llama --propagate both
        export $end=
        same bytes lent
    done
    calib='env FAKE_CUDA_MAP=no' out=lent loans=l loop llama --propagate both
    same bytes lent
    # the lender can map what is theirs, so nobody knew
    for end in hessian solve; do
        export $end='env FAKE_CUDA_MAP=no'
        out=lent loans=l run -69 --separate-stderr loop llama --propagate both
        export $end=
        [[ $stderr == "forge-$end: "*"fake: cannot map" ]] || { echo "$end: $stderr"; return 1; }
        run ! same bytes lent
    done
}

@test "a loan goes into pipes only, to readers that were told of its lender" {
    # forge-hessian is not: it says nothing, so there are none
    mkfifo back
    # shellcheck disable=SC2016
    LD_LIBRARY_PATH=gpu timeout 60 bash -o pipefail -c '
        gpu/forge-calib -q --loans l --feedback back llama t.fts | tee seen |
        gpu/forge-hessian -q | forge-weights -q --join llama | forge-grid -q --group 8 |
        gpu/forge-solve -q | tee back >codes'
    run ! lent map
    forge-ls --verify -q seen

    out=lent loans=l seen=kept weights=few loop llama
    [ "$(stat -c %s kept)" -lt "$(stat -c %s seen)" ]
    run -65 --separate-stderr forge-ls kept
    [[ $stderr == *"is memory that another process lends"* ]]
    run -65 --separate-stderr gpu/forge-hessian -q --device cuda --loans new kept
    # shellcheck disable=SC2002
    cat kept | run -65 --separate-stderr forge-hessian -q
    # shellcheck disable=SC2002
    cat kept | run -64 --separate-stderr forge-weights -q --join llama -o weights
    [ ! -e weights ]
    # of a GPU, to tools without one
    run -65 --separate-stderr bash -c 'cat kept | forge-hessian -q --loans new2'
    run -65 --separate-stderr bash -c 'cat few | forge-solve -q --loans new3'
    [[ $stderr == *"a loan that nobody agreed to" ]]
    run -64 --separate-stderr gpu/forge-calib --loans l --to embed llama t.fts
    [[ $stderr == *"--loans wants --feedback" ]]
    run -64 --separate-stderr gpu/forge-hessian -q --device cuda --loans l t.fts
    [[ $stderr == *"another process has used it" ]]
}

pid_of() { # TOOL: of this test
    local exe
    exe=$(readlink -f "${tool:-gpu}")/$1
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe")" != "$exe" ] || echo "${p#/proc/}"
    done
}

ended() { # PID: it ends within ten seconds
    for ((i = 0; i < 1000; i++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep .01
    done
    return 1
}

kill_waiting() { # TOOL: of the run $run, whose reader waits for `go`; and the run ends
    until [ -e go.here ]; do kill -0 $run; sleep .01; done
    kill -KILL "$(pid_of "$1")"
    sleep .1
    touch go
    ended $run
}

@test "an end that dies while a loan is read: the run ends, and no codes are made of it" {
    out=bytes loop llama
    for dead in calib hessian solve; do
        for reader in hessian solve; do
            [ $dead-$reader != calib-solve ] || continue
            rm -f go go.here
            export $reader="env FAKE_CUDA_WAIT=go"
            out=lent loans=l loop llama 2>err 3>&- &
            run=$!
            export $reader=
            kill_waiting forge-$dead
            run ! wait $run
            run ! same bytes lent
            # a mark says that what was made of the frames before it is whole
            [ $dead = solve ] || run ! grep -qa '"sync"' lent
        done
    done
}

@test "the lender of an expert's rows dies while they are read" {
    out=bytes loop qwen2_moe
    hessian='env FAKE_CUDA_WAIT=go FAKE_CUDA_WAIT_FOR=hessians' out=lent loans=l loop qwen2_moe 2>err 3>&- &
    run=$!
    kill_waiting forge-calib
    run ! wait $run
    run ! same bytes lent
    run ! grep -qa 'experts.0.gate_proj' lent # which has no code
}

# fisher KIND OPTION...: F to $out, what forge-gradient put out to $seen
fisher() {
    local kind=$1 lend=
    shift
    rm -f log l "$out"
    [ -z "$loans" ] || lend="--loans $loans"
    # shellcheck disable=SC2016
    kind=$kind lend=$lend timeout 60 bash -o pipefail -c '
        export LD_LIBRARY_PATH=gpu
        $calib gpu/forge-gradient -q $lend "$@" $kind t.fts | tee $seen |
        $hessian gpu/forge-hessian -q $lend -o $out' - "$@"
}

@test "gradients: the same F, and none in a pipe" {
    for kind in llama llama-biases deepseek_v3 qwen2_moe; do
        for dtype in bf16 f32; do # in f32 the reader fetches them
            out=bytes loans='' seen=all fisher $kind --dtype $dtype --tokens 60 --weights w1
            run ! grep -q '^map ' log
            out=lent loans=l seen=few fisher $kind --dtype $dtype --tokens 60 --weights w2
            lent map
            same bytes lent
            same w1 w2
            [ "$(stat -c %s few)" -lt "$(stat -c %s all)" ]
        done
    done
    # an end that cannot gets bytes
    for end in calib hessian; do
        export $end='env FAKE_CUDA_BLOCK=no'
        out=lent loans=l fisher qwen2_moe --dtype f32 --tokens 60 --weights w2
        export $end=
        run ! lent map
        same bytes lent
    done
    # as where there is no room for gradients beside those of a layer
    out=lent loans=l seen=some fisher qwen2_moe --dtype f32 --tokens 60 --weights w2 --gpu-memory 400K
    same bytes lent
    [ "$(stat -c %s some)" = "$(stat -c %s all)" ]
}

@test "an end that dies while gradients are read: the run ends, without F" {
    for dead in gradient hessian; do
        rm -f go go.here
        hessian='env FAKE_CUDA_WAIT=go' out=lent loans=l fisher llama 2>err 3>&- &
        run=$!
        kill_waiting forge-$dead
        run ! wait $run
        [ ! -e lent ]
    done
    fail_each_gradient
}

fail_each_gradient() {
    local what end rc n
    [ -e "${FAIL_SO:-/nonexistent}" ] || return 0
    out=bytes fisher llama
    for what in calib-malloc calib-write hessian-malloc hessian-read; do
        end=${what%-*}
        for ((n = 1; n < 500; n += 1 + n / 4)); do
            rm -f mark
            export "$end=env FAIL=${what#*-}:$n FAIL_MARK=mark LD_PRELOAD=$FAIL_SO"
            rc=0
            out=lent loans=l fisher llama 2>/dev/null || rc=$?
            export "$end="
            # F may be whole when forge-gradient fails at its end
            if [ $rc = 0 ] || [ -e lent ]; then same bytes lent; fi
            [ -e mark ] || break
        done
        [ "$n" -gt 1 ] || { echo "$what: none"; return 1; }
    done
}

@test "whichever call fails at an end: the run ends, and codes are whole or none" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "no fail.so in this mode"
    for model in llama qwen2_moe; do
        fail_each_call $model
    done
}

@test "forge-calib fails before its feedback is opened: the run ends" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "no fail.so in this mode"
    for n in 1 2 3 4 5 6; do
        export calib="env FAIL=malloc:$n LD_PRELOAD=$FAIL_SO" late=0.5 out=lent loans=l
        run ! loop llama
        whole_or_none "$status" "malloc $n"
    done
}

fail_each_call() { # MODEL
    out=bytes loop "$1"
    for end in calib hessian solve; do
        for kind in malloc read; do
            for ((n = 1; n < 500; n += 1 + n / 4)); do
                rm -f mark
                export $end="env FAIL=$kind:$n FAIL_MARK=mark LD_PRELOAD=$FAIL_SO"
                rc=0
                out=lent loans=l loop "$1" 2>/dev/null || rc=$?
                export $end=
                whole_or_none $rc "$1, $end, $kind $n"
                [ -e mark ] || break
            done
            [ "$n" -gt 5 ]
        done
    done
}

@test "forge quantize lends, and a tool that is killed in it leaves nothing wrong behind" {
    local bin model=$BATS_TEST_DIRNAME/../../examples/llama-4m
    local few=(--text "$BATS_TEST_DIRNAME/../../examples/calib.jsonl" --sequences 2 --seqlen 32 --effort fast --quiet)
    bin=$(dirname "$(command -v forge)")
    mkdir all
    cp -rL "$bin" "$bin/../lib" all
    cp gpu/forge-cuda.so gpu/libcuda.so.1 all/bin
    export LD_LIBRARY_PATH=$PWD/all/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    all/bin/forge quantize "$model" want "${few[@]}"
    lent map
    lent fetch
    for dead in calib hessian solve; do
        rm -f go go.here
        FAKE_CUDA_WAIT=$PWD/go all/bin/forge quantize "$model" out --work work "${few[@]}" 2>err 3>&- &
        run=$!
        tool=all/bin kill_waiting forge-$dead
        rc=0
        wait $run || rc=$?
        [ $rc = 75 ]
        [ "$(wc -l <err)" -eq 1 ]
        [[ $(<err) == *"forge-$dead: killed by signal 9"* ]]
        [ ! -e out ]
        all/bin/forge quantize "$model" out --work work "${few[@]}"
        diff -r want out
        rm -r out work
    done
}
