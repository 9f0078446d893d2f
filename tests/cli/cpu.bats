#!/usr/bin/env bats
# FORGE_CPU, which every tool reads: the level of CPU that its kernels use.

bats_require_minimum_version 1.5.0

@test "every tool says which level it uses" {
    for tool in "$FORGE_TREE"/src/{*,*/*}/forge-*.c; do
        tool=$(basename "$tool" .c)
        run -0 env -u FORGE_CPU "$tool" --version
        [[ $output == "$tool (4bit-forge) "*", cpu "* ]]
        run -0 env FORGE_CPU=plain "$tool" --version
        [[ $output == *", cpu plain" ]]
    done
}

@test "what is no level, or not this machine's, is refused in one line" {
    run -64 --separate-stderr env FORGE_CPU=abacus forge-ls --version
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"'abacus' is none of plain"* ]]
    level=neon
    [ "$(uname -m)" = x86_64 ] || level=avx2
    run -78 --separate-stderr env FORGE_CPU=$level forge-ls --version
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"not $level" ]]
    run -0 env FORGE_CPU= forge-ls --version
}
