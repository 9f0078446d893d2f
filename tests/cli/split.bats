#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-split(1) as a user meets it.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    mkstream tensor:a:F32:4 weight:model.layers.0.x:F32:2x8 \
        note:model.layers.0.x:'{"method":"gptq","loss":2.5}' \
        tensor:model.layers.0.n:F32:3 weight:model.layers.1.y:F32:2x8 \
        weight:model.layers.10.z:F32:2x8 tensor:model.norm:F32:4 -o in.fts
}

@test "each layer is a file, and the stream goes on" {
    forge-split -q 'l-%.fts' in.fts >out.fts
    forge-ls in.fts >want
    forge-ls out.fts | cmp want
    [ "$(ls l-*)" = "l-0.fts
l-1.fts
l-10.fts" ]
    forge-ls --verify l-0.fts l-1.fts l-10.fts
    [ "$(forge-ls l-0.fts | cut -f 1-2)" = "$(printf 'weight\tmodel.layers.0.x\nnote\tmodel.layers.0.x\ntensor\tmodel.layers.0.n')" ]
    [ "$(forge-ls l-10.fts | cut -f 2)" = model.layers.10.z ]
    forge-split -q -o out2.fts 'k-%.fts' <in.fts
    cmp out.fts out2.fts
    cmp l-0.fts k-0.fts
}

@test "what is noted of the modules, a line each" {
    forge-split -q --report 'r-%' 'l-%.fts' in.fts >/dev/null
    [ "$(cat r-0)" = '{"module":"model.layers.0.x","method":"gptq","loss":2.5}' ]
    [ ! -s r-1 ]
    forge-weights -q "$BATS_TEST_DIRNAME/../../examples/llama-4m" -l 0 |
        forge-grid -q | forge-solve -q --report want |
        forge-split -q --report 'r-%' 'c-%.fts' >/dev/null
    jq -cS 'del(.seconds)' want >a
    jq -cS 'del(.seconds)' r-0 | cmp a
    [ "$(jq -s 'map(select(.seconds >= 0)) | length' r-0)" -eq 7 ]
}

@test "a key goes into every stream, another one is refused" {
    forge-split -q --key abc 'l-%.fts' in.fts >out.fts
    forge-split -q --expect-key abc 'm-%.fts' l-0.fts >/dev/null
    run -65 forge-split -q --expect-key abd 'm-%.fts' l-0.fts
}

@test "a layer that comes again is refused, whole ones stay" {
    mkstream tensor:model.layers.0.x:F32:4 tensor:model.layers.1.x:F32:4 \
        tensor:model.layers.0.y:F32:4 >again.fts
    run -65 --separate-stderr bash -c "forge-split -q 'l-%.fts' again.fts >out"
    [ "$stderr" = "forge-split: layer 0 comes again" ]
    [ "$(ls l-*)" = "l-0.fts
l-1.fts" ]
    run -1 forge-ls --verify -q out
}

@test "a file that cannot be created is 73, a wrong command line 64" {
    run -73 bash -c "forge-split -q 'no/where-%' in.fts >out"
    run -64 forge-split
    run -64 forge-split layer.fts in.fts
    run -64 forge-split 'l-%' in.fts more
    run -64 forge-split --report r 'l-%' in.fts
}
