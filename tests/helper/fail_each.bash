# fail_each.bash - fail the first, the second, ... call of one kind until a
# tool needs no more of them.  In a bats file:
#
#     load ../helper/fail_each
#     @test "whichever read fails" {
#         fail_each read 74 forge-grid -o out.fts w.fts
#     }
#
# fail_each KIND CODE COMMAND...   KIND as in tests/fail.c.
# Asserts for every failing run: exit CODE (several: 74,73), exactly one line
# on stderr that begins with the tool's name, no file out.fts, no temporary
# left behind, and that what went to standard output is no valid stream.
# A kind that the tool never calls fails the test.  With fail_stdin=FILE set,
# FILE is piped into the tool; with fail_pipe=1 standard output is a pipe, not a
# file; with fail_silent=1 a run that failed must have
# printed nothing at all.  A tool that goes on as if nothing had failed fails the
# test, but for fail_recovers=COMMAND, which says of fail.out whether it is what
# comes out without a failure.  The first 60 calls are made to fail one by one, then
# fewer and fewer of them.
#
# Inside, bats does not follow each command to name the line of a failure: that takes more
# time than the tools, and what failed is printed here.

fail_each() {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "no fail.so in this mode"
    (trap - DEBUG; fail_calls "$@")
}

fail_calls() {
    local kind=$1 codes=,$2, n rc
    shift 2
    local -x FAIL_MARK=$PWD/fail.mark
    for ((n = 1; n <= 100000; n += n < 60 ? 1 : n / 8)); do
        [ ! -e out.fts ] || rm -rf out.fts
        : >fail.mark # builtins: a process costs as much as the tool
        rc=0
        if [ -n "${fail_stdin:-}" ]; then
            # shellcheck disable=SC2002
            cat "$fail_stdin" |
                FAIL=$kind:$n LD_PRELOAD=$FAIL_SO "$@" >fail.out 2>fail.err ||
                rc=$?
        elif [ -n "${fail_pipe:-}" ]; then
            { FAIL=$kind:$n LD_PRELOAD=$FAIL_SO "$@" 2>fail.err || echo $? >fail.rc; } |
                cat >fail.out
            [ ! -e fail.rc ] || rc=$(<fail.rc)
            rm -f fail.rc
        else
            FAIL=$kind:$n LD_PRELOAD=$FAIL_SO "$@" >fail.out 2>fail.err || rc=$?
        fi
        if [ ! -s fail.mark ]; then
            [ "$rc" = 0 ] || { echo "exit $rc without a failure"; cat fail.err; return 1; }
            [ "$n" -gt 1 ] || { echo "no $kind was made to fail"; return 1; }
            return 0
        fi
        if [ "$rc" = 0 ]; then
            ${fail_recovers:-false} fail.out && continue
            echo "$kind:$n failed, and exit 0"
            return 1
        fi
        fail_check "$kind:$n" "$codes" "$rc" "$1" || return 1
    done
    echo "$kind: still failing after 100000 calls"
    return 1
}

fail_check() {
    local what=$1 codes=$2 rc=$3 tool=$4 lines
    if [[ $codes != *,$rc,* ]]; then
        echo "$what: exit $rc, want one of $codes"
        cat fail.err
        return 1
    fi
    mapfile lines <fail.err
    if [ ${#lines[@]} != 1 ] || [[ ${lines[0]} != "$tool: "*$'\n' ]]; then
        echo "$what: want one line from $tool on stderr:"
        cat fail.err
        return 1
    fi
    if [ "${what%:*}" = fsync ] && forge-ls --verify -q out.fts >fail.out 2>&1
    then # of the directory: the file is whole, that it will last is not sure
        : >fail.out
        return 0
    fi
    if [ -e out.fts ] || compgen -G '*.tmp.*' >/dev/null; then
        echo "$what: something was left behind:"
        ls -a
        return 1
    fi
    if [ -n "${fail_silent:-}" ] && [ -s fail.out ]; then
        echo "$what: failed, but printed:"
        cat fail.out
        return 1
    fi
    if [ -s fail.out ] && forge-ls --verify -q fail.out >/dev/null 2>&1; then
        echo "$what: standard output is a complete stream"
        return 1
    fi
}
