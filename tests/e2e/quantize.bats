#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge quantize on the example model, in every layout and by hand.

load e2e

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for layout in compressed-tensors awq gptq gptq_v2; do
        # One work directory: the layouts share the codes.
        forge quantize "$model" "$layout" --text "$text" --sequences 16 \
            --seqlen 256 --quiet --work work --layout $layout
    done
    forge quantize "$model" rtn --method rtn --quiet
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

evaluate() { # NAME: into NAME.json, once
    [ -e "$1.json" ] || forge eval "$model" "$1" --json --quiet \
        --text "$tree/examples/eval.txt" --sequences 4 >"$1.json"
}

@test "every layout is complete and decodes to the source within the grid" {
    for layout in compressed-tensors awq gptq gptq_v2; do
        forge-shard -q --from "$model" --sample 28 --verify $layout
        forge-ls --verify $layout >/dev/null
    done
}

@test "every layout holds the same model" {
    for layout in compressed-tensors awq gptq gptq_v2; do evaluate $layout; done
    for layout in awq gptq gptq_v2; do
        [ "$(jq -c '[.ppl, .kl_mean, .top1]' $layout.json)" = \
            "$(jq -c '[.ppl, .kl_mean, .top1]' compressed-tensors.json)" ]
    done
}

@test "the result is close to the original, and closer than rounding" {
    # KL by level of CPU 0.0286 to 0.0301, plain GPTQ 0.0374 to 0.0383, rounding
    # 0.0480; perplexity 1.024 to 1.031 of the original's, 1.050; top-1 0.882 to
    # 0.893, 0.848.
    evaluate compressed-tensors
    evaluate rtn
    kl=$(figure kl_mean compressed-tensors.json)
    less "$kl" 0.0345
    less "$kl" "$(figure 'kl_mean * 0.72' rtn.json)"
    less "$(figure ppl compressed-tensors.json)" \
        "$(figure 'ppl_original * 1.041' compressed-tensors.json)"
    less 0.865 "$(figure top1 compressed-tensors.json)"
}

@test "asymmetric grids, too, where loaders take them" {
    refused 78 forge quantize "$model" out "${small[@]}" --asym --layout gptq
    for layout in compressed-tensors awq gptq_v2; do
        forge quantize "$model" asym-$layout --text "$text" --sequences 16 \
            --seqlen 256 --quiet --asym --layout $layout --work asym-work
        forge-shard -q --from "$model" --sample 28 --verify asym-$layout
        evaluate asym-$layout
    done
    for layout in awq gptq_v2; do
        [ "$(figure kl_mean asym-$layout.json)" = "$(figure kl_mean asym-compressed-tensors.json)" ]
    done
    # by level 0.0274 to 0.0283, rounding 0.0423
    less "$(figure kl_mean asym-awq.json)" 0.0325
}

@test "equal inputs give equal bytes, however many threads" {
    forge quantize "$model" again-1 "${small[@]}" --threads 1
    forge quantize "$model" again-2 "${small[@]}" --threads 2
    same again-1 again-2
}

@test "--jobs changes nothing but the time" {
    forge quantize "$model" jobs-1 "${small[@]}" --propagate original
    forge quantize "$model" jobs-3 "${small[@]}" --propagate original --jobs 3
    same jobs-1 jobs-3
    [ ! -e jobs-1.work ]
}

@test "by hand, through pipes, the same as --propagate original" {
    forge-tokens -q --sequences 4 --seqlen 64 "$model" "$text" |
        forge-calib -q "$model" | forge-hessian -q >hessians
    forge-tokens -q --sequences 4 --seqlen 64 "$model" "$text" |
        forge-gradient -q --tokens 2048 "$model" | forge-hessian -q -o fisher
    forge-weights -q "$model" | forge-grid -q --hessian hessians |
        forge-solve -q --effort default --prior 2 --fisher fisher --hessian hessians |
        forge-pack -q --layout compressed-tensors |
        forge-shard -q --from "$model" hand
    forge quantize "$model" driven "${small[@]}" --propagate original
    same_tensors hand driven # their cards say how each was made
}

@test "several shards" {
    forge quantize "$model" shards --method rtn --quiet --shard-size 1MB
    [ -e shards/model.safetensors.index.json ]
    forge-shard -q --from "$model" --verify shards
}

@test "paths with blanks and worse" {
    mkdir -p "a b'\$(c)"
    cp -r "$model" "a b'\$(c)/m d"
    cp "$text" "a b'\$(c)/t\"x.jsonl"
    (
        cd "a b'\$(c)"
        forge quantize "m d" "o u;t" --text 't"x.jsonl' --sequences 4 \
            --seqlen 64 --quiet
    )
    forge quantize "$model" plain-path "${small[@]}"
    same_tensors "a b'\$(c)/o u;t" plain-path # their cards name the model
}

@test "the demo's table has the figures that jq finds" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "as in the other modes, and slow here"
    run --separate-stderr make -s -C "$tree" demo # which first makes bin
    echo "exit $status: $stderr"
    [ "$status" -eq 0 ]
    forge eval "$model" "$model" --text "$tree/examples/eval.txt" --json --quiet >same.json
    [ "$(awk '/^original/ { print $3 }' <<<"$output")" = "$(printf %.2f "$(figure ppl_original same.json)")" ]
}

@test "the Debian package has every program" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "as in the other modes"
    command -v dpkg-shlibdeps || skip "no dpkg-dev"
    make -s -C "$tree" deb
    dpkg-deb --fsys-tarfile "$tree"/build/release/deb/4bit-forge_*.deb | tar -xC . ./usr/bin
    for f in "$tree"/bin/*; do
        [[ $f != *.so ]] || continue # the plug-in, in usr/lib
        PATH=/usr/bin:/bin "usr/bin/${f##*/}" --version
    done
}

@test "an installed forge works the same" {
    make -s -C "$tree" install DESTDIR="$PWD/root" PREFIX=/opt/forge >/dev/null
    PATH=$PWD/root/opt/forge/bin:/usr/bin:/bin forge quantize "$model" \
        installed "${small[@]}"
    forge quantize "$model" from-tree "${small[@]}"
    same installed from-tree
    make -s -C "$tree" uninstall DESTDIR="$PWD/root" PREFIX=/opt/forge
    [ -z "$(find root -type f)" ]
}

@test "the example of forge_w4a16(3), with the installed library" {
    make -s -C "$tree" install PREFIX="$PWD/root" >/dev/null
    sed -n '/^\.Sh EXAMPLES/,$p' "$tree/man/forge_w4a16.3" | sed -n '/^\.Bd/,/^\.Ed/{/^\./!s/\\e/\\/g;/^\./!p;}' >sum.c
    export PKG_CONFIG_PATH=$PWD/root/lib/pkgconfig
    read -ra flags < <(pkg-config --cflags --libs forge_w4a16)
    "${CC:-gcc}" -Wall -Wextra -Werror -std=c99 -o sum sum.c "${flags[@]}"
    # 0.5 (1 (0 - 8) + 2 (1 - 8) + ... + 8 (7 - 8)); 0.25 (1 + 2 + ... + 8)
    [ "$(LD_LIBRARY_PATH=root/lib ./sum)" = "-60 9" ]
    make -s -C "$tree" uninstall PREFIX="$PWD/root"
    [ -z "$(find root -type f)" ]
}

@test "a file has 128 MB at least, unless another size is told" {
    forge quantize "$model" out --method rtn --quiet --work work
    [ "$(jq .shard_size work/settings.json)" -eq 128000000 ]
    forge quantize "$model" other --method rtn --quiet --work work --shard-size 1MB
    [ "$(jq .shard_size work/settings.json)" -eq 1000000 ]
}
