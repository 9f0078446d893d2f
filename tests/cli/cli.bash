# cli.bash - what the tests of tools share.

bats_require_minimum_version 1.5.0

# The command fails with this status and one line that says this.
fails() { # STATUS TEXT COMMAND...
    local want=$1 text=$2
    shift 2
    run --separate-stderr "$@"
    # shellcheck disable=SC2154 # run sets stderr
    [ "$status" -eq "$want" ] || { echo "exit $status: $stderr"; return 1; }
    [[ $stderr == *"$text"* ]] || { echo "said: $stderr"; return 1; }
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
}
