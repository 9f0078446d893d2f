#!/usr/bin/env bats
# forge-run: a command on another machine, and its real exit status.
#
# The launchers are stand-ins that do what srun and ssh were seen to do: lose a
# node and exit 0, die, hide the status.  tests/cluster has the real ones.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    run=$FORGE_TREE/scripts/forge-run
    mkdir fake work
    # As srun and ssh, these start elsewhere and know nothing of our PATH.
    cat >fake/srun <<'END'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
here=${BASH_SOURCE%/*} tries=0
[ ! -e "$here/tries" ] || tries=$(<"$here/tries")
echo $((tries + 1)) >"$here/tries"
trap 'echo stopped >>"$here/log"; kill -TERM $! 2>/dev/null; wait; exit 143' TERM
cd /
export PATH=/usr/bin:/bin
fault=$(cat "$here/fault" 2>/dev/null)
case $fault in
once-*) [ "$tries" -gt 0 ] || lost=${fault#once-} ;;
*) lost=$fault ;;
esac
case $lost in
lost) exit 0 ;;      # a node that died before it began
refused) exit 1 ;;   # no such partition
killed) kill -KILL $$ ;;
half)                # a node that dies while the command runs
    setsid "$@" &
    sleep 0.3
    kill -KILL -- -$!
    wait
    exit 0 ;;
hides) "$@" <&0; exit 0 ;; # the command's status does not get through
esac
"$@" <&0 &
wait $!
END
    cat >fake/ssh <<'END'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1 here=${BASH_SOURCE%/*}
shift
echo "$host" >>"$here/hosts"
cd /
# The connection breaks, the command goes on.
if [ -e "$here/cut" ] && [[ $* != kill* ]]; then
    rm "$here/cut"
    env -i PATH=/usr/bin:/bin setsid sh -c "$*" >/dev/null 2>&1 3>&- &
    sleep 0.5
    exit 255
fi
[[ $* != kill* ]] || echo "$*" >>"$here/log"
exec env -i PATH=/usr/bin:/bin setsid -w sh -c "$*"
END
    chmod +x fake/*
    PATH=$PWD/fake:$PATH
    cd work || return 1
    cat >../fake/tool <<'END'
#!/bin/sh
echo "$PWD:$*"
cat
exit ${STATUS:-9}
END
    chmod +x ../fake/tool
}

nothing_left() {
    [ -z "$(ls -A)" ]
}

@test "local: as if forge-run were not there" {
    run -9 --separate-stderr "$run" -- tool 'a  b' <<<input
    [ "$output" = "$PWD:a  b"$'\n'input ]
    FORGE_LAUNCH=local run -9 "$run" tool <<<input
    run -64 "$run"
    run -64 "$run" --
}

@test "srun and ssh: directory, PATH, arguments, both streams and the status" {
    odd=$'a  b\'"$HOME `id` \\ *;\n#'
    for FORGE_LAUNCH in 'srun -Q -N1' "$PWD/../fake/srun" 'ssh n1' 'ssh -q n1'; do
        export FORGE_LAUNCH
        run -9 --separate-stderr "$run" -- tool "$odd" '' <<<input
        [ "$output" = "$PWD:$odd "$'\n'input ]
        [ -z "$stderr" ]
        nothing_left
    done
    FORGE_LAUNCH=srun run -0 "$run" true
    FORGE_LAUNCH='ssh n1' run -127 "$run" /no/such/command
    FORGE_LAUNCH='ssh n1' run -143 "$run" bash -c 'kill -TERM $$'
}

@test "a directory with a strange name" {
    mkdir $'x \'y\' "$z"'
    cd $'x \'y\' "$z"'
    for FORGE_LAUNCH in srun 'ssh n1'; do
        export FORGE_LAUNCH
        run -9 --separate-stderr "$run" tool <<<input
        [ "$output" = "$PWD:"$'\n'input ]
        nothing_left
    done
}

@test "a launcher that is none of these is refused" {
    for FORGE_LAUNCH in sbatch srunner 'rsh n1' ''; do
        export FORGE_LAUNCH
        if [ -z "$FORGE_LAUNCH" ]; then # as if unset
            run -0 "$run" true
        else
            run -64 --separate-stderr "$run" true
            [ "${#stderr_lines[@]}" -eq 1 ]
        fi
    done
}

@test "what a launcher says that cannot start is in the message" {
    mkdir -p refuse
    printf '#!/bin/sh\necho "srun: unrecognized option" >&2\nexit 1\n' >refuse/srun
    chmod +x refuse/srun
    FORGE_LAUNCH="$PWD/refuse/srun -Q" run -75 --separate-stderr forge quantize "$FORGE_TREE/examples/llama-4m" out \
        --text "$FORGE_TREE/examples/calib.jsonl" --sequences 4 --seqlen 64 -q --parts 2 --work refused
    [[ $stderr == *"node lost?: srun: unrecognized option" ]]
}

@test "a node that is lost is 75, whatever the launcher says" {
    export FORGE_LAUNCH=srun
    for fault in lost refused killed half; do
        echo "$fault" >../fake/fault
        run -75 --separate-stderr "$run" sleep 1
        [[ $stderr == *'no status came back'* ]]
        nothing_left
    done
    FORGE_LAUNCH='ssh n1'
    touch ../fake/cut
    run -75 --separate-stderr "$run" sleep 5
    nothing_left
}

@test "the command's own status counts, not the launcher's" {
    echo hides >../fake/fault
    FORGE_LAUNCH=srun run -9 "$run" tool <<<input
    nothing_left
}

@test "75 runs again, other failures do not" {
    export FORGE_LAUNCH=srun FORGE_RETRIES=2
    echo once-lost >../fake/fault
    run -9 --separate-stderr "$run" tool <<<input
    [ "$output" = "$PWD:"$'\n'input ]
    [ "$(<../fake/tries)" -eq 2 ]
    rm ../fake/tries
    echo once-half >../fake/fault
    run -0 "$run" sleep 1
    [ "$(<../fake/tries)" -eq 2 ]
    rm ../fake/tries ../fake/fault
    STATUS=75 run -75 "$run" tool </dev/null
    [ "$(<../fake/tries)" -eq 3 ]
    rm ../fake/tries
    STATUS=65 run -65 "$run" tool </dev/null
    [ "$(<../fake/tries)" -eq 1 ]
    nothing_left
}

# Slurm ends a step by a signal to each of its processes: the shell that waits for the
# command hears of its own and of the command's end at the same time, in either order.
@test "a command that ends by itself when all of its step get TERM: its status counts" {
    export FORGE_LAUNCH="ssh host" FORGE_RETRIES=0
    mkfifo ../never
    for ((k = 0; k < 60; k++)); do
        rm -f ../here
        "$run" bash -c 'trap "exit 75" TERM; echo $$ >../here; read -r <>../never' 3>&- &
        victim=$!
        for ((i = 0; i < 500; i++)); do
            [ ! -s ../here ] || break
            sleep 0.01
        done
        command=$(<../here)
        kill -TERM "$(awk '{ print $4 }' "/proc/$command/stat")" "$command" || true
        status=0
        wait "$victim" || status=$?
        [ "$status" -eq 75 ]
    done
    nothing_left
}

@test "75 runs again here, too, where that is asked for" {
    cat >../fake/flaky <<'END'
#!/bin/sh
echo x >>"${0%/*}/tries"
[ "$(wc -l <"${0%/*}/tries")" -gt 2 ] || exit 75
exit 9
END
    chmod +x ../fake/flaky
    FORGE_RETRIES=5 run -9 "$run" flaky
    [ "$(wc -l <../fake/tries)" -eq 3 ]
    rm ../fake/tries
    FORGE_RETRIES=1 run -75 "$run" flaky
    for bad in abc -1; do
        FORGE_RETRIES=$bad run -64 --separate-stderr "$run" flaky
        [ "$stderr" = "forge-run: FORGE_RETRIES: '$bad' is no number of times" ]
    done
    FORGE_RETRIES=1 run -9 --separate-stderr "$run" tool <<<input
    [ "$output" = "$PWD:"$'\n'input ]
    nothing_left
}

@test "ssh that broke: the command over there is ended before the next one" {
    export FORGE_LAUNCH='ssh n1' FORGE_RETRIES=1
    touch ../fake/cut
    cat >../fake/slow <<END
#!/bin/bash
echo \$\$ >>$PWD/../fake/pids
sleep 2 & wait
END
    chmod +x ../fake/slow
    run -0 --separate-stderr "$run" slow
    mapfile -t pids <../fake/pids
    [ "${#pids[@]}" -eq 2 ]
    run -1 kill -0 "${pids[0]}"
    grep -q "^kill -TERM ${pids[0]}$" ../fake/log
    nothing_left
}

wait_for() { # FILE
    for ((i = 0; i < 400; i++)); do
        [ ! -e "$1" ] || return 0
        sleep 0.05
    done
    return 1
}

@test "a signal ends the command there too" {
    cat >../fake/slow <<END
#!/bin/bash
trap 'echo ended >$PWD/../fake/ended; exit 143' TERM
touch $PWD/../fake/began
sleep 20 & wait
END
    chmod +x ../fake/slow
    for FORGE_LAUNCH in srun 'ssh n1'; do
        export FORGE_LAUNCH
        rm -f ../fake/began ../fake/ended
        "$run" slow 3>&- &
        wait_for ../fake/began
        sleep 0.2
        kill -TERM $!
        status=0
        wait $! || status=$?
        [ "$status" -eq 143 ]
        if [ "$FORGE_LAUNCH" = srun ]; then
            grep -q stopped ../fake/log # srun ends what it started
        else
            wait_for ../fake/ended # its last command may still run
        fi
        nothing_left
    done
}
