#!/usr/bin/env bats
# forge-meter(1) as a user meets it.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

@test "the command's streams, status and seconds" {
    run -0 --separate-stderr forge-meter -- sh -c 'cat; sleep 0.3' <<<words
    [ "$output" = words ]
    [[ $stderr =~ ^forge-meter:\ 0\.[3-9].*[KM]iB$ ]]
    run -7 forge-meter -q -o cost -- sh -c 'exit 7'
    jq -e '.status == 7 and .seconds < 5' cost
    run -137 forge-meter -q -- sh -c 'kill -KILL $$'
}

@test "memory of children and grandchildren together" {
    # Two tails hold 60 MB each until both have all.
    forge-meter -q -o cost -- sh -c '
        hold() {
            { head -c 60000000 /dev/zero; : >$1
              until [ -e one ] && [ -e two ]; do sleep 0.05; done; sleep 0.5; } | tail -c 59000000
        }
        (hold one | wc -c) & (hold two | wc -c) & wait' >out
    jq -e '.peak_bytes > 110e6 and .peak_bytes < 200e6' cost
}

@test "TERM reaches the command" {
    forge-meter -q -- sh -c 'trap "echo got it; exit 3" TERM
        sleep 5 & wait' >out 3>&- &
    sleep 0.3
    kill -TERM $!
    status=0
    wait $! || status=$?
    [ "$status" -eq 3 ]
    [ "$(cat out)" = "got it" ]
}

@test "a wrong command line, a missing command, a full disk" {
    run -64 --separate-stderr forge-meter
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -64 forge-meter --interval 0 -- true
    run -66 --separate-stderr forge-meter -- ./no-such-program
    [ "$stderr" = "forge-meter: './no-such-program': not found" ]
    touch file
    run -66 --separate-stderr forge-meter -- ./file
    [ "$stderr" = "forge-meter: './file': cannot run: Permission denied" ]
    run -127 forge-meter -q -- sh -c 'exit 127' # its own
    run -73 forge-meter -q -o no/where -- true
}
