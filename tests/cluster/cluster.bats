#!/usr/bin/env bats
# forge over a real Slurm cluster of two nodes or more that share this
# directory: make check-cluster.  It takes a node down and brings it back, so it
# needs an operator's rights and is no part of make test.
#
#   TEST_LOSE, TEST_HEAL   commands that cut a node off and bring it back, given
#                          its name; scontrol unless set
#   TEST_SSH               "ssh ... HOST", to test that too

bats_require_minimum_version 1.5.0

nodes() { sinfo -h -N -o '%N %T' | awk '$2 == "idle"' | sort -u | wc -l; }

setup_file() {
    command -v sinfo >/dev/null || skip "no Slurm here"
    [ "$(nodes)" -ge 2 ] || skip "fewer than two idle nodes"
    cd "$BATS_FILE_TMPDIR" || return 1
    tree=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    export tree
    export model=$tree/examples/llama-4m run=$tree/scripts/forge-run
    export args="--text $tree/examples/calib.jsonl --sequences 16 \
        --seqlen 256 --propagate original --jobs 4 --quiet"
    # shellcheck disable=SC2086
    forge quantize "$model" whole $args
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    whole=$BATS_FILE_TMPDIR/whole
    printf '#!/bin/sh\necho "$SLURMD_NODENAME" >>%q\n' "$PWD/where" >note
    chmod +x note
    export FORGE_LAUNCH="srun -Q -N1 -n1 --task-prolog=$PWD/note"
}

teardown() {
    cat log 2>/dev/null
    [ ! -e lost ] || heal "$(<lost)"
    for ((i = 0; i < 60; i++)); do
        [ "$(nodes)" -lt 2 ] || return 0
        sleep 1
    done
}

quantize() { # in a process group of its own
    # shellcheck disable=SC2086
    setsid forge quantize "$model" out $args >log 2>&1 3>&- &
    victim=$!
}

lose() {
    echo "$1" >lost
    ${TEST_LOSE:-down} "$1"
}
heal() {
    ${TEST_HEAL:-resume} "$1" || true # it may have come back by itself
    rm lost
}
down() { scontrol update nodename="$1" state=down reason=test; }
resume() { scontrol update nodename="$1" state=resume; }

# The node of the first step, once one runs.
busy_node() {
    local node=
    for ((i = 0; i < 200; i++)); do
        node=$(squeue -h -t running -o %N | head -n 1)
        [ -z "$node" ] || break
        sleep 0.05
    done
    echo "$node"
}

no_jobs() {
    for ((i = 0; i < 200; i++)); do
        [ -n "$(squeue -h)" ] || return 0
        sleep 0.1
    done
    squeue
    return 1
}

@test "the status of a step, its streams, a signal in it" {
    run -9 "$run" bash -c 'cat; exit 9' <<<text
    [[ $output == text* ]]
    run -0 "$run" true
    run -139 "$run" bash -c 'kill -SEGV $$'
    head -c 20000000 /dev/urandom >bytes
    "$run" cat <bytes >copy
    cmp bytes copy
}

@test "steps on two nodes give the bytes of one machine" {
    quantize
    wait "$victim"
    diff -r "$whole" out
    [ "$(sort -u where | wc -l)" -ge 2 ]
}

@test "a lost node is 75; with FORGE_RETRIES the step runs elsewhere" {
    "$run" sleep 300 >log 2>&1 3>&- &
    victim=$!
    lose "$(busy_node)"
    status=0
    wait "$victim" || status=$?
    # A node that only left the cluster still told how the command ended.
    [ "$status" -eq 143 ] || grep -q 'no status came back' log
    [ "$status" -eq 143 ] || [ "$status" -eq 75 ]
    FORGE_RETRIES=1 run -0 "$run" true
}

@test "a quantization that loses a node gets there, with the same bytes" {
    export FORGE_RETRIES=2
    quantize
    lose "$(busy_node)"
    wait "$victim"
    diff -r "$whole" out
}

@test "without retries it ends with 75 and a reason, and continues" {
    quantize
    sleep 0.5
    lose "$(busy_node)"
    status=0
    wait "$victim" || status=$?
    if [ "$status" -ne 0 ]; then # else the node's steps ended all the same
        [ "$status" -eq 75 ]
        [ "$(wc -l <log)" -eq 1 ]
        no_jobs
        quantize
        wait "$victim"
    fi
    diff -r "$whole" out
}

@test "forge stopped or killed leaves no job behind, and continues" {
    for signal in TERM INT KILL; do
        rm -rf out out.work
        quantize
        [ -n "$(busy_node)" ]
        sleep 0.5
        kill -"$signal" "$victim"
        wait "$victim" || true
        no_jobs
        [ -e out ] || quantize
        wait "$victim" || [ "$signal" = KILL ]
        diff -r "$whole" out
    done
}

# The default quality in parts: in one pipe on this machine, then on the cluster, states on
# a scratch of each node's own.
parts() { # [TOKENS]
    export FORGE_STEP_COST=0 # small linears have several shares, too
    export args="--text $tree/examples/calib.jsonl --sequences 16 --seqlen ${1:-128} --parts 4 --quiet"
    # shellcheck disable=SC2086
    FORGE_LAUNCH=local FORGE_RETRIES="" forge quantize "$model" one $args
    mkdir scratch
    args+=" --jobs 4 --scratch $PWD/scratch"
}

@test "parts on several nodes: the bytes of one machine" {
    parts
    quantize
    wait "$victim"
    diff -r one out
    [ "$(sort -u where | wc -l)" -ge 2 ]
}

@test "parts with a node lost, and its scratch" {
    export FORGE_RETRIES=3
    parts
    quantize
    lose "$(busy_node)"
    rm -f scratch/forge-*/states-*.part-1.fts scratch/forge-*/states-*.part-2.fts
    wait "$victim"
    diff -r one out
}

@test "parts whose launcher dies continue, with the same bytes" {
    parts
    quantize
    [ -n "$(busy_node)" ]
    sleep 3
    kill -KILL "$victim"
    wait "$victim" || true
    no_jobs
    if [ ! -e out ]; then # every node says the same
        forge status out.work | tee status
        for node in $(sinfo -h -N -o %N | sort -u); do
            srun -Q -N1 -n1 -w "$node" forge status out.work >here
            cmp status here
        done
        quantize
        wait "$victim"
    fi
    diff -r one out
}

@test "a step that hangs ends by srun's time limit, and runs again" {
    parts 1024
    export FORGE_RETRIES=3 FORGE_LAUNCH="$FORGE_LAUNCH --time=1"
    quantize
    stopped=
    while [ -z "$stopped" ] && kill -0 "$victim"; do # a tool of this run, if it is on this host
        for pid in $(pgrep -x 'forge-(calib|hessian|solve)'); do
            [ "$(readlink "/proc/$pid/cwd")" != "$PWD/out.work" ] || ! kill -STOP "$pid" || stopped=$pid
        done
        sleep 0.1 # it may have been about to end
        [ -z "$stopped" ] || grep -q '^State:.T' "/proc/$stopped/status" || stopped=
    done
    [ -n "$stopped" ] || skip "the nodes are other machines"
    wait "$victim"
    diff -r one out
    [ ! -e "/proc/$stopped" ]
}

@test "the batch script of forge-cluster(7)" {
    sed -n '/^#!/,/^\.Ed/p' "$tree/man/forge-cluster.7" | sed '/^\.Ed/d; s/\\e$/\\/' >script
    grep -q '^forge quantize ' script
    export MODEL=$model OUT=$PWD/out TEXT=$tree/examples/calib.jsonl WORK=$PWD/work
    unset FORGE_LAUNCH
    sbatch -Q --wait --nodes=2 --cpus-per-task=1 -o log script
    forge status work | grep -q '^100 % done'
    [ "$(jq -r 'select(.stage == "moments") | .number' work/solve-*/stages.jsonl | sort -u | wc -l)" -eq 8 ]
    forge quantize "$model" one --text "$TEXT" --parts 8 --quiet
    diff -r one out
}

@test "ssh: the same bytes; a signal ends what runs there" {
    [ -n "${TEST_SSH:-}" ] || skip "no TEST_SSH"
    export FORGE_LAUNCH=$TEST_SSH
    run -9 "$run" bash -c 'cat; exit 9' <<<text
    [[ $output == text* ]]
    quantize
    wait "$victim"
    diff -r "$whole" out
    "$run" bash -c "echo \$\$ >$PWD/there; exec sleep 300" 3>&- &
    victim=$!
    for ((i = 0; i < 100; i++)); do
        [ ! -s there ] || break
        sleep 0.1
    done
    kill -TERM "$victim"
    status=0
    wait "$victim" || status=$?
    [ "$status" -eq 143 ]
    run -1 $TEST_SSH "kill -0 $(<there)"
}
