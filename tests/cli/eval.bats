#!/usr/bin/env bats
# forge-eval(1) as a user meets it: figures, options, exit codes.

bats_require_minimum_version 1.5.0

setup_file() {
    export ROOT=$BATS_TEST_DIRNAME/../..
    export M=$ROOT/examples/llama-4m
    cd "$BATS_FILE_TMPDIR" || return 1
    forge-tokens --sequences 3 --seqlen 40 "$M" <"$ROOT/examples/eval.txt" >t.fts
    export T=$BATS_FILE_TMPDIR/t.fts
    edit other zero model.layers.0.mlp.down_proj.weight
    export OTHER=$BATS_FILE_TMPDIR/other
}

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

# edit DIR zero|nan TENSOR: a copy of the model with a tensor overwritten.
edit() {
    mkdir "$1" && cp "$M"/*.json "$1" && python3 - "$M" "$@" <<'PYTHON'
import json, struct, sys
src, dst, how, name = sys.argv[1:]
b = bytearray(open(src + "/model.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
lo, hi = json.loads(b[8:8 + n])[name]["data_offsets"]
b[8 + n + lo:8 + n + hi] = (b"\0\0" if how == "zero" else b"\xc0\x7f") * ((hi - lo) // 2)
open(dst + "/model.safetensors", "wb").write(b)
PYTHON
}

# config DIR KEY VALUE: a copy of the model whose config says otherwise.
config() {
    mkdir "$1" && cp "$M"/* "$1" && chmod +w "$1"/config.json &&
        jq --argjson v "$3" ".$2 = \$v" "$M/config.json" >"$1/config.json"
}

@test "a model against itself: KL is exactly 0, top-1 exactly 1" {
    run -0 --separate-stderr forge-eval --json "$M" "$M" "$T"
    [ "$(jq -c '[.kl_mean, .kl_p99, .kl_max, .top1, .tokens, .sequences]' <<<"$output")" = "[0,0,0,1,117,3]" ]
    [ "$(jq '.ppl == .ppl_original' <<<"$output")" = true ]
}

@test "two models that differ" {
    run -0 --separate-stderr forge-eval --quiet --json "$M" "$OTHER" "$T"
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 1 ]
    [ "$(jq '.kl_mean > 0.001 and .kl_p99 > .kl_mean and .kl_max >= .kl_p99 and .top1 < 1' <<<"$output")" = true ]
    [ "$(jq -r 'keys_unsorted | join(" ")' <<<"$output")" = \
        "original other dtype text_sha256 seqlen sequences tokens ppl_original ppl kl_mean kl_sem kl_median kl_p99 kl_max top1 kl_histogram by_position" ]
}

@test "the figures say what was evaluated on what" {
    run -0 forge-eval -q --json --dtype bf16 --text-name 'a <text>' "$M" "$OTHER" "$T"
    [ "$(jq -c '[.original, .other, .dtype, .text, .text_sha256, .seqlen, .sequences, .tokens]' <<<"$output")" = \
        "$(jq -nc '$ARGS.positional + [40, 3, 117]' --args "$M" "$OTHER" bf16 'a <text>' \
            "$(sha256sum <"$ROOT/examples/eval.txt" | cut -d' ' -f1)")" ]
    mkstream tokens:0:I32:8:fill=0 -o bare.fts
    run -0 forge-eval -q --json "$M" "$OTHER" bare.fts
    [ "$(jq -c '[has("text", "text_sha256")]' <<<"$output")" = "[false,false]" ]
}

@test "the figures are those of a model and formulas written from the papers" {
    forge-eval -q --json "$M" "$OTHER" "$T" >figures.json
    python3 "$ROOT/tests/reference/eval.py" "$M" "$OTHER" "$T" figures.json
}

@test "the figures do not depend on threads, nor on where the tokens come from" {
    forge-eval -q --json -j 1 "$M" "$OTHER" "$T" >one.json
    forge-eval -q --json -j 2 "$M" "$OTHER" <"$T" >two.json
    # shellcheck disable=SC2002
    cat "$T" | forge-eval -q --json "$M" "$OTHER" >pipe.json
    cmp one.json two.json
    cmp one.json pipe.json
}

@test "--by-layer: the models in between are those of the reference" {
    edit two zero model.layers.2.mlp.down_proj.weight
    cp "$OTHER/model.safetensors" one
    python3 - one two/model.safetensors both <<'PYTHON'
import sys
one, two, both = sys.argv[1:]
a, b = open(one, "rb").read(), open(two, "rb").read()
open(both, "wb").write(bytes(x if x == y else 0 for x, y in zip(a, b)))
PYTHON
    mv both two/model.safetensors
    run -0 --separate-stderr forge-eval -q --by-layer --json "$M" two "$T"
    [ "${#lines[@]}" -eq 4 ]
    printf '%s\n' "$output" >layers.json
    python3 "$ROOT/tests/reference/eval.py" --by-layer "$M" two "$T" layers.json
    # layers 1 and 3 are the same in both, and the last line is the whole model
    jq -es 'def same(a; b): (a / b - 1) | fabs < 1e-5; map(.kl_mean) |
        same(.[0]; .[1]) and same(.[2]; .[3]) and .[1] != .[2]' layers.json
    forge-eval -q --json "$M" two "$T" >whole.json
    jq -es '(.[-1].kl_mean / .[3].kl_mean - 1) | fabs < 1e-5' layers.json whole.json
}

@test "--by-layer without --json: a row for each layer; the last decides --max-ppl-ratio" {
    run -1 --separate-stderr forge-eval -q --by-layer --max-ppl-ratio 1.0001 "$M" "$OTHER" "$T"
    [ "$(grep -cE '^ +[0-3]  ' <<<"$output")" -eq 4 ]
    run -0 forge-eval -q --by-layer --max-ppl-ratio 1 "$M" "$M" "$T"
}

@test "without --json a table" {
    run -0 --separate-stderr forge-eval -q "$M" "$OTHER" "$T"
    [ "${lines[2]}" = "tokens scored        117 in 3 sequences" ]
    [[ "${lines[5]}" == "KL mean "* ]]
    # by position, as the JSON has it; 39 of 40 tokens have a next one
    forge-eval -q --json "$M" "$OTHER" "$T" |
        jq -r '.by_position[] | .from, .tokens, .ppl_original, .ppl, .kl_mean, .kl_sem' |
        xargs -n 6 printf '%s %8d  %13.4f  %10.4f  %.6f +- %.6f\n' |
        sed 's/^0 /0-15           /; s/^16 /16-31          /; s/^32 /32-38          /' >rows
    tail -n 3 <<<"$output" | cmp - rows
}

# Highest resident memory of a command, MiB.
peak() {
    /usr/bin/python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)' "$@"
}

@test "a 4-bit model is not dequantized: its layers take the memory of their words" {
    [ -e "${FAIL_SO:-/nonexistent}" ] || skip "memory is the sanitizer's in this mode"
    cp -r "$FORGE_TREE/examples/llama-4m" big
    jq '. + {hidden_size: 1024, intermediate_size: 8192, num_attention_heads: 8, num_key_value_heads: 8, head_dim: 128, num_hidden_layers: 1,
        tie_word_embeddings: false}' "$FORGE_TREE/examples/llama-4m/config.json" >big/config.json
    mkmodel big/model.safetensors "$(jq .vocab_size big/config.json)" 1024 8192 8 8 1
    forge-weights -q big | forge-grid -q | forge-solve -q | forge-pack -q --layout gptq | forge-shard -q --from big small
    forge-tokens -q -n 1 -t 32 big "$FORGE_TREE/examples/eval.txt" >tokens
    # 29 million weights: 56 MiB in bf16 and 112 in f32, 14 and scales in 4 bits
    [ "$(($(peak forge-eval -q --dtype bf16 big big tokens) - $(peak forge-eval -q --dtype bf16 small small tokens)))" -gt 28 ]
    [ "$(($(peak forge-eval -q --dtype f32 big big tokens) - $(peak forge-eval -q --dtype f32 small small tokens)))" -gt 56 ]
}

@test "bf16 is near f32" {
    a=$(forge-eval -q --json "$M" "$OTHER" "$T" | jq .kl_mean)
    b=$(forge-eval -q --json --dtype bf16 "$M" "$OTHER" "$T" | jq .kl_mean)
    [ "$(jq -n "($b / $a - 1) | fabs < 0.05")" = true ]
}

@test "--max-ppl-ratio: exit 1 above it, with the figures" {
    run -0 forge-eval -q --max-ppl-ratio 1 "$M" "$M" "$T"
    run -1 --separate-stderr forge-eval --max-ppl-ratio 1.0001 --json "$M" "$OTHER" "$T"
    [[ "$output" == *'"ppl":'* ]]
    [[ "$stderr" == *"forge-eval: warning: perplexity is "*" times the original's, above --max-ppl-ratio 1.0001"* ]]
}

@test "another model is exit 78 and names the size" {
    config vocab vocab_size 2049
    run -78 --separate-stderr forge-eval "$M" vocab "$T"
    [ "$stderr" = "forge-eval: 'vocab': vocab_size is 2049, '$M' has 2048: not the same model" ]
    config depth num_hidden_layers 3
    run -78 --separate-stderr forge-eval depth "$M" "$T"
    [[ "$stderr" == *"num_hidden_layers is 4, 'depth' has 3: not the same model" ]]
    # layers without keys of their own: with none of them, states have no keys of others
    python3 "$ROOT/tests/reference/forward.py" make gemma3n g
    cp -r g keys
    sed -i 's/"num_kv_shared_layers": 3/"num_kv_shared_layers": 0/' keys/config.json
    run -78 --separate-stderr forge-eval g keys "$T"
    [[ "$stderr" == "forge-eval: 'keys': the width of states is "*": not the same model" ]]
}

@test "what is missing is exit 66" {
    run -66 --separate-stderr forge-eval "$M" nowhere "$T"
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -66 --separate-stderr forge-eval "$M" "$M" nowhere
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "logits that are not finite are exit 65, with their place" {
    edit broken nan model.layers.3.mlp.down_proj.weight
    run -65 --separate-stderr forge-eval "$M" broken "$T"
    [ "$stderr" = "forge-eval: 'broken': logits of sequence 0, position 0 are not finite" ]
    [ -z "$output" ]
}

@test "no tokens, or none to predict, is exit 65" {
    printf '{"input_ids":[5]}\n' | forge-tokens "$M" --sequences 1 --seqlen 1 >one.fts
    run -65 --separate-stderr forge-eval "$M" "$M" one.fts
    [ "$stderr" = "forge-eval: every sequence is one token long: nothing to predict" ]
}

@test "a cut stream is exit 65 and prints nothing" {
    for n in 0 10 100 "$(($(stat -c %s "$T") - 1))"; do
        head -c "$n" "$T" >cut.fts
        run -65 --separate-stderr forge-eval "$M" "$M" cut.fts
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" -eq 1 ]
    done
}

# bare MODEL DIR: the model stored without its head, as one for embeddings is.
bare() { python3 "$ROOT/tests/reference/families.py" bare "$1" "$2" headless; }

@test "without a head: against itself the cosine is exactly 1, the error exactly 0" {
    bare "$M" a
    for dtype in f32 bf16; do
        run -0 --separate-stderr forge-eval -q --json --dtype $dtype a a "$T"
        [ -z "$stderr" ]
        [ "$(jq -r 'keys_unsorted | join(" ")' <<<"$output")" = "original other dtype text_sha256 seqlen sequences tokens \
cosine_mean cosine_sem cosine_min cosine_last cosine_last_sem error_rms error_sem" ]
        [ "$(jq -c '[.tokens, .sequences, .cosine_mean, .cosine_sem, .cosine_min, .cosine_last, .cosine_last_sem, .error_rms, .error_sem]' \
            <<<"$output")" = "[120,3,1,0,1,1,0,0,0]" ]
    done
}

@test "without a head: states are compared as NumPy does, layer by layer, too, on any number of threads" {
    bare "$M" a
    bare "$OTHER" b
    forge-eval -q --json -j 1 a b "$T" >figures.json
    python3 "$ROOT/tests/reference/eval.py" --states "$M" "$OTHER" "$T" figures.json
    jq -e '.cosine_mean < 0.999 and .cosine_min < .cosine_mean and .error_rms > 0.01' figures.json
    forge-eval -q --json -j 2 --report report a b <"$T" | cmp - figures.json
    cmp report figures.json
    forge-eval -q --json --by-layer a b "$T" >layers.json
    python3 "$ROOT/tests/reference/eval.py" --states --by-layer "$M" "$OTHER" "$T" layers.json
    forge-eval -q --json --dtype bf16 a b "$T" >half.json
    jq -es '(.[0].error_rms / .[1].error_rms - 1) | fabs < 0.05' figures.json half.json
    # more tokens than are compared at a time
    forge-tokens -q --sequences 3 --seqlen 400 "$M" "$ROOT/examples/eval.txt" >long.fts
    forge-eval -q --json a b long.fts >figures.json
    python3 "$ROOT/tests/reference/eval.py" --states "$M" "$OTHER" long.fts figures.json
}

@test "without a head: tables" {
    bare "$M" a
    bare "$OTHER" b
    run -0 --separate-stderr forge-eval -q a b "$T"
    forge-eval -q --json a b "$T" >figures.json
    {
        echo 'tokens compared      120 in 3 sequences'
        jq '.cosine_mean, .cosine_sem' figures.json | xargs printf 'cosine mean          %.6f +- %.6f\n'
        jq '.cosine_min' figures.json | xargs printf 'cosine min           %.6f\n'
        jq '.cosine_last, .cosine_last_sem' figures.json | xargs printf 'cosine last token    %.6f +- %.6f\n'
        jq '.error_rms, .error_sem' figures.json | xargs printf 'relative error RMS   %.6f +- %.6f\n'
    } >want
    tail -n +3 <<<"$output" | diff - want
    run -0 --separate-stderr forge-eval -q --by-layer a b "$T"
    [ "${lines[3]}" = "up to layer  cosine mean        min  last token  error RMS" ]
    forge-eval -q --json --by-layer a b "$T" | jq '.layer, .cosine_mean, .cosine_min, .cosine_last, .error_rms' |
        xargs -n 5 printf '%11d  %11.6f  %9.6f  %10.6f  %9.6f\n' >want
    tail -n 4 <<<"$output" | diff - want
}

@test "without a head: one token has a state, nothing to predict is no error" {
    bare "$M" a
    printf '{"input_ids":[5]}\n' | forge-tokens -q "$M" --sequences 1 --seqlen 1 >one.fts
    run -0 forge-eval -q --json a a one.fts
    [ "$(jq -c '[.tokens, .cosine_last, .cosine_last_sem]' <<<"$output")" = "[1,1,0]" ]
    mkstream tokens:0:I32:0:fill=0 -o none.fts
    run -65 --separate-stderr forge-eval a a none.fts
    [ "$stderr" = "forge-eval: no tokens in the input" ]
}

@test "without a head: what wants predictions is exit 64 before any token is read; a tied head is a head" {
    bare "$M" a
    run -64 --separate-stderr forge-eval --max-ppl-ratio 1.1 a a nowhere
    [ "$stderr" = "forge-eval: --max-ppl-ratio: the model has no output head, so no predictions to compare" ]
    # with a head in one of them alone, too
    run -64 --separate-stderr forge-eval --max-ppl-ratio 1.1 "$M" a nowhere
    forge-eval -q --json "$M" a "$T" | jq -e '.cosine_min == 1 and (has("ppl") | not)'
    run -64 --separate-stderr forge eval a a --text "$ROOT/examples/eval.txt" --max-ppl-ratio 1.1
    [ "$stderr" = "forge: --max-ppl-ratio: the model has no output head, so no predictions to compare" ]
    jq '.tie_word_embeddings = true' a/config.json >config && mv config a/config.json
    forge-eval -q --json --max-ppl-ratio 1.1 a a "$T" | jq -e '.kl_max == 0 and (has("cosine_mean") | not)'
}

@test "--states: the same of models with a head" {
    forge-eval -q --json --states "$M" "$OTHER" "$T" >figures.json
    bare "$M" a
    bare "$OTHER" b
    forge-eval -q --json a b "$T" >bare.json
    jq -es 'map(del(.original, .other)) | .[0] == .[1]' figures.json bare.json
    run -0 forge eval "$M" "$OTHER" --text "$ROOT/examples/eval.txt" --sequences 1 --quiet --json --states
    jq -e 'has("cosine_last") and (has("ppl") | not)' <<<"$output"
    run -64 --separate-stderr forge-eval --states --max-ppl-ratio 2 "$M" "$M" nowhere
    [ "$stderr" = "forge-eval: --states compares no predictions: no --max-ppl-ratio" ]
    run -64 --separate-stderr forge eval nowhere nowhere --text nowhere --states --max-ppl-ratio 2
    [ "$stderr" = "forge: --states compares no predictions: no --max-ppl-ratio" ]
}

@test "without a head: states that are not finite are exit 65, with their place" {
    bare "$M" a
    edit broken nan model.layers.3.mlp.down_proj.weight
    bare broken b
    run -65 --separate-stderr forge-eval a b "$T"
    [ "$stderr" = "forge-eval: 'b': hidden states of sequence 0, position 0 are not finite" ]
    run -65 --separate-stderr forge-eval b a "$T"
    [ "$stderr" = "forge-eval: 'b': hidden states of sequence 0, position 0 are not finite" ]
    [ -z "$output" ]
}

@test "a temporary directory that takes no file is exit 73, a full output 74" {
    run -73 --separate-stderr forge-eval --tmp /nonexistent "$M" "$M" "$T"
    [[ "$stderr" == "forge-eval: '/nonexistent': takes no temporary file: "* ]]
    TMPDIR=/nowhere run -73 --separate-stderr forge-eval "$M" "$M" "$T"
    [[ "$stderr" == "forge-eval: '/nowhere': takes no temporary file: "* ]]
    TMPDIR=/nowhere forge-eval -q --tmp . "$M" "$M" "$T"
    [ -e /dev/full ] || skip "no /dev/full"
    # shellcheck disable=SC2016
    for o in -q --json; do
        run -74 bash -c 'forge-eval "$1" "$M" "$M" "$T" >/dev/full' . "$o"
    done
}

@test "a wrong command line is exit 64 and one line on stderr" {
    for a in "" "$M" "$M $M $T more" "--max-ppl-ratio x $M $M" "--max-ppl-ratio 0 $M $M $T" "--dtype f16 $M $M"; do
        # shellcheck disable=SC2086
        run -64 --separate-stderr forge-eval $a
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" -eq 1 ]
    done
}

# Fail the n-th call of one kind, n = 1, 2, ..., in growing steps, until the
# tool needs no more of them; exit is one of CODES.
fail_some() {
    local n rc
    [ -e "${FAIL_SO:-none}" ] || skip "no fail.so in this mode"
    forge-tokens -q --sequences 2 --seqlen 8 "$M" "$ROOT/examples/eval.txt" >few.fts
    for ((n = 1; n < 100000; n += 1 + n / 8)); do
        rc=0
        FAIL=$1:$n LD_PRELOAD=$FAIL_SO forge-eval -q -j 1 --json "$M" "$OTHER" few.fts >out 2>err || rc=$?
        [ "$rc" -ne 0 ] || break
        echo "$1:$n: exit $rc, $(<err)"
        [[ ",$2," == *",$rc,"* ]]
        [[ "$(wc -l <err)" = 1 && "$(<err)" == "forge-eval: "* ]]
        [ ! -s out ]
    done
    [ "$n" -gt 1 ]
    [ "$n" -lt 100000 ]
}

@test "whichever malloc fails: exit 75, one line, nothing printed" { fail_some malloc 75; }
@test "whichever pread of a checkpoint fails: exit 74" { fail_some pread 74; }
