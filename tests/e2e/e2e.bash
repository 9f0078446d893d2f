# e2e.bash - what the end-to-end tests share.

bats_require_minimum_version 1.5.0

tree=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
# shellcheck disable=SC2034 # for the tests
model=$tree/examples/llama-4m
# shellcheck disable=SC2034
text=$tree/examples/calib.jsonl
# Little data: what is tested is the way, not the quality.
# shellcheck disable=SC2034
small=(--text "$text" --sequences 4 --seqlen 64 --quiet)
# Without any, to the nearest.
# shellcheck disable=SC2034
nearest=(--method rtn --quiet)

same() { # DIRECTORY DIRECTORY: the same files with the same bytes
    diff -r "$1" "$2"
}

# The same but for where they come from.
same_tensors() { # DIRECTORY DIRECTORY
    python3 "$tree/tests/reference/layouts.py" same "$1" "$2"
}

# What a failed command must have been: STATUS, one line, nothing left behind.
refused() { # STATUS COMMAND...
    local want=$1
    shift
    run "-$want" --separate-stderr "$@"
    # shellcheck disable=SC2154
    [ "${#stderr_lines[@]}" -eq 1 ] || {
        printf 'want one line, got: %s\n' "$stderr"
        return 1
    }
    [ -z "$output" ]
    [ ! -e out ]
}

figure() { # NAME FILE: a number of forge eval --json
    jq -e ".$1" "$2"
}

less() { # A B: as numbers
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'
}
