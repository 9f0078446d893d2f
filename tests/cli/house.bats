#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# scripts/house, which says whether files or rooms of src/ include each other in
# a circle: small trees with one, and this tree without.

bats_require_minimum_version 1.5.0

setup() {
    house=$BATS_TEST_DIRNAME/../../scripts/house
    cd "$BATS_TEST_TMPDIR" || return 1
    mkdir -p src/common/io src/arch src/checkpoint src/calib src/pack
}

# FILE INCLUDED...: a file that includes these
file() {
    local path=src/$1
    shift
    printf '#include "%s"\n' "$@" >"$path"
}

@test "this tree has no circles" {
    run -0 "$house" check
    [ -z "$output" ]
}

@test "a room includes the rooms above it in the list" {
    file checkpoint/open.c checkpoint/open.h arch/config.h common/io/json.h
    file arch/config.c arch/config.h common/io/json.h
    run -0 "$house" check .
    [ -z "$output" ]
}

@test "two rooms that include each other" {
    file checkpoint/open.c arch/config.h
    file arch/config.c checkpoint/open.h
    run -1 "$house" check .
    [ "${lines[0]}" = 'house: src/arch/config.c includes checkpoint/open.h: checkpoint is not below arch' ]
}

@test "a stage that includes another" {
    file calib/calib.c pack/packer.h
    run -1 "$house" check .
    [ "$output" = 'house: src/calib/calib.c includes pack/packer.h: pack is not below calib' ]
}

@test "a room that is not in the list" {
    mkdir src/attic
    file attic/old.c common/base.h
    run -1 "$house" check .
    [ "$output" = 'house: src/attic/old.c: no such room: attic' ]
}

@test "files that include each other, by way of a third" {
    file calib/loop.c calib/loop.h calib/experts.h
    file calib/experts.c calib/experts.h calib/run.h
    file calib/run.h calib/loop.h
    run -1 "$house" check .
    [ "${lines[0]}" = 'house: files that include each other in a circle:' ]
    [ "$(printf '%s\n' "${lines[@]:1}" | sort | xargs)" = \
        'calib/experts calib/loop calib/run' ]
}

@test "files that call each other, whatever they include" {
    command -v cc >/dev/null || skip "no compiler"
    echo 'void b(void); void a(void); void a(void) { b(); }' >src/calib/a.c
    echo 'void b(void); void a(void); void b(void) { a(); }' >src/calib/b.c
    echo 'void b(void); void c(void); void c(void) { b(); }' >src/calib/c.c
    for f in a b c; do cc -c -o src/calib/$f.c.o src/calib/$f.c; done
    run -0 "$house" check .
    run -1 "$house" calls src/calib/a.c.o src/calib/b.c.o src/calib/c.c.o
    [ "${lines[0]}" = 'house: files that call each other in a circle:' ]
    [ "$(printf '%s\n' "${lines[@]:1}" | sort | xargs)" = 'calib/a calib/b' ]
    run -0 "$house" calls src/calib/a.c.o src/calib/c.c.o
}
