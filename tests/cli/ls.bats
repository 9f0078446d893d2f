#!/usr/bin/env bats
# forge-ls(1) as a user meets it; and the rules of streams that hold for all.

bats_require_minimum_version 1.5.0
load ../helper/fail_each

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    fts=$BATS_TEST_DIRNAME/../reference/fts.py
    mkstream weight:m.a:F32:4x8 codes:m.a:U4:4x8:group=4 \
        hessian:m.attn_in:F32:6:modules=m.a,m.b:samples=3:last \
        'note:run:{"bits":4}' tensor:big:BF16:1024x1024 \
        tokens:0:I32:5:sequence=1 qmeta:m.a:QMETA4:4x2:group=4:scale=F16 >s.fts
}

python() { /usr/bin/env -S /usr/bin/python3 "$@"; }
have_python() { python -c 'import xxhash' 2>/dev/null || skip "no python3-xxhash"; }

@test "a line for each tensor" {
    run -0 --separate-stderr forge-ls s.fts
    [ "${lines[0]}" = "$(printf 'weight\tm.a\tF32\t4x8\t128')" ]
    [ "${lines[1]}" = "$(printf 'codes\tm.a\tU4\t4x8\t16')" ]
    [ "${lines[4]}" = "$(printf 'tensor\tbig\tBF16\t1024x1024\t2097152')" ]
    [ "${#lines[@]}" = 7 ]
    [ -z "$stderr" ]
}

@test "names have no control sequences on the screen" {
    cp -r "$FORGE_TREE/examples/llama-4m" m
    # shellcheck disable=SC1091
    . "$BATS_TEST_DIRNAME/../helper/edit.bash"
    edit m 'head["a\n\x1b[31mX"] = head.pop("model.norm.weight")'
    run -0 forge-ls m
    [[ $output == *$'\ta??[31mX\t'* ]]
    rm m/model.safetensors
    printf '{"weight_map": {"w": "a\\n\\u001b[31mX"}}' >m/model.safetensors.index.json
    run ! --separate-stderr forge-ls -q --verify m
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *'a??[31mX'* ]]
}

@test "a pipe, a file and standard input list the same" {
    forge-ls s.fts >a
    forge-ls <s.fts >b
    # shellcheck disable=SC2002
    cat s.fts | forge-ls >c
    cmp a b
    cmp a c
}

@test "the reader written from the page agrees, and so does its writer" {
    have_python
    forge-ls s.fts >ours
    python "$fts" list s.fts >theirs
    cmp ours theirs
    python "$fts" copy s.fts copy.fts
    run -0 forge-ls --verify copy.fts
    forge-ls copy.fts | cmp - ours
    tail -c +4097 s.fts >/dev/null
}

@test "--json has all metadata" {
    command -v jq >/dev/null || skip "no jq"
    run -0 forge-ls --json s.fts
    [ "$(jq -r .modules[1] <<<"${lines[2]}")" = m.b ]
    [ "$(jq -r .samples <<<"${lines[2]}")" = 3 ]
    [ "$(jq -r .last <<<"${lines[2]}")" = true ]
    [ "$(jq -c .shape <<<"${lines[4]}")" = "[1024,1024]" ]
    [ "$(jq -r .sequence <<<"${lines[5]}")" = 1 ]
    [ "$(jq -r .scale_dtype <<<"${lines[6]}")" = F16 ]
}

@test "--head, --stats and --histogram" {
    run -0 forge-ls --head m.a s.fts
    [ "${lines[1]}" = "$(printf '0\t1\t2\t3\t4\t5\t6\t7')" ]
    [ "${lines[6]}" = "$(printf '0\t0\t1\t0\t2\t0\t3\t0')" ]
    run -0 forge-ls --head run s.fts
    [ "${lines[1]}" = '{"bits":4}' ]
    run -0 forge-ls --stats m.attn_in s.fts
    [ "${lines[3]}" = "$(printf 'max\t5')" ]
    [ "${lines[4]}" = "$(printf 'mean\t2.5')" ]
    mkstream tensor:x:F32:4:fill=nan >nan.fts
    run -0 forge-ls --stats x nan.fts
    [ "${lines[7]}" = "$(printf 'nonfinite\t4')" ]
    run -0 forge-ls --histogram m.attn_in s.fts
    [ "${#lines[@]}" = 17 ]
    run -1 forge-ls --head nobody s.fts
}

@test "--verify says ok, or why not and exit 1, and goes on" {
    head -c 3000 s.fts >cut.fts
    run -1 --separate-stderr forge-ls -q --verify cut.fts s.fts
    [ "$output" = "s.fts: ok, 7 tensors" ]
    [ "$stderr" = "forge-ls: 'cut.fts': frame 5: input ends early" ]
    run -1 --separate-stderr forge-ls --verify cut.fts s.fts
    [[ $stderr == "forge-ls: 'cut.fts': "* && ${#stderr_lines[@]} -eq 1 ]]
    run -66 forge-ls --verify absent.fts
}

@test "a changed payload is seen by --verify" {
    size=$(stat -c %s s.fts)
    printf '\377' |
        dd of=s.fts bs=1 count=1 seek=$((size / 2)) conv=notrunc status=none
    run -1 --separate-stderr forge-ls -q --verify s.fts
    [[ "$stderr" == *"frame 5: 'big': payload checksum differs" ]]
}

@test "a stream cut anywhere is exit 65, listed or piped" {
    mkstream weight:a:F32:4x4 >t.fts
    size=$(stat -c %s t.fts)
    for ((n = 0; n < size; n += 37)); do
        head -c "$n" t.fts >cut.fts
        run -65 forge-ls cut.fts
        run -65 bash -c 'cat cut.fts | forge-ls'
    done
    mkstream weight:a:F32:4 cut >cut.fts
    run -65 --separate-stderr forge-ls cut.fts
    [ "$stderr" = "forge-ls: 'cut.fts': frame 0: the input is empty (did what writes it fail?)" ]
    run -65 --separate-stderr bash -c 'true | forge-ls'
    [ "$stderr" = "forge-ls: '<stdin>': frame 0: the input is empty (did what writes it fail?)" ]
}

@test "streams may follow one another" {
    cat s.fts s.fts >two.fts
    [ "$(forge-ls two.fts | wc -l)" = 14 ]
    echo x >>two.fts
    run -65 forge-ls two.fts
}

@test "an upstream tool's error comes through with its exit code" {
    # It has been said by who had it; what a file keeps may not have been.
    run -75 --separate-stderr bash -c \
        'mkstream weight:a:F32:4 "error:75:layer 3: out of memory" | forge-ls'
    [ -z "$stderr" ]
    mkstream weight:a:F32:4 "error:75:layer 3: out of memory" >kept
    run -75 --separate-stderr forge-ls kept
    [ "$stderr" = "forge-ls: mkstream: layer 3: out of memory" ]
}

@test "a tensor twice is refused by the writer and by the reader" {
    have_python
    run -65 mkstream -o x.fts weight:a:F32:4 weight:a:F32:4
    [ ! -e x.fts ]
    mkstream weight:a:F32:4 weight:a:F32:4:sequence=1 codes:a:U4:4 \
        note:a:1 note:a:2 routing:r:I32:2x2 routing:r:F32:2x2 >ok.fts
    run -0 forge-ls ok.fts
    python - "$fts" <<'END'
import importlib.util, sys
spec = importlib.util.spec_from_file_location("fts", sys.argv[1])
fts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fts)
t = fts.Tensor("weight", "a", b"1234")
fts.write(open("twice.fts", "wb"), [t, t])
END
    run -65 --separate-stderr forge-ls twice.fts
    [ "$stderr" = "forge-ls: 'twice.fts': frame 2: weight 'a' appears twice" ]
}

@test "a payload by reference is read below --ref-root and nowhere else" {
    mkdir root
    printf '0123456789abcdef' >root/blob
    ln -s /etc/passwd root/out
    ln -s blob root/in
    refer() { (cd root && mkstream "tensor:a:U8:4:ref=$1"); }
    refer blob@4 >ref.fts
    refer out >out.fts
    refer in >in.fts
    refer ../root/blob >up.fts
    refer /etc/passwd >abs.fts
    run -0 forge-ls --ref-root root --head a ref.fts
    [ "${lines[1]}" = "$(printf '52\t53\t54\t55')" ]
    # shellcheck disable=SC2002
    cat ref.fts | forge-ls --ref-root root
    run -0 forge-ls --verify --ref-root root ref.fts in.fts
    run -1 forge-ls --verify ref.fts
    for bad in out up abs; do
        run -1 --separate-stderr forge-ls -q --verify --ref-root root $bad.fts
        [[ "$stderr" == *"path leaves the directory" ]]
    done
    printf x >root/blob
    run -1 forge-ls --verify --ref-root root ref.fts
}

@test "a reader that has seen enough ends the list without a word" {
    local many=()
    for _ in {1..2000}; do many+=(s.fts); done
    forge-ls "${many[@]}" 2>err | head -n 1
    [ ! -s err ]
}

@test "/dev/full is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c 'forge-ls s.fts >/dev/full'
    run -74 bash -c 'mkstream weight:a:F32:4 >/dev/full'
    run -74 mkstream -o /dev/full weight:a:F32:4
}

@test "a file appears whole or not at all, and an old one stays" {
    echo old >x.fts
    run -65 mkstream -o x.fts weight:a:F32:4 weight:a:F32:4
    [ "$(cat x.fts)" = old ]
    mkstream -o x.fts weight:a:F32:4
    run -0 forge-ls x.fts
    [ "$(echo ./*)" = "./s.fts ./x.fts" ]
}

@test "the same frames give the same bytes" {
    mkstream weight:m.a:F32:4x8 >a.fts
    mkstream weight:m.a:F32:4x8 >b.fts
    cmp a.fts b.fts
}

@test "usage: exit 64 and one line" {
    run -64 --separate-stderr forge-ls --verify --head x s.fts
    [ "$(wc -l <<<"$stderr")" = 1 ]
    run -64 forge-ls --nonsense
    run -66 forge-ls absent
}

@test "whichever call fails: one line, the right code, nothing published" {
    fail_each malloc 75 forge-ls s.fts
    fail_each malloc 75 forge-ls --stats big --json s.fts
    fail_each pread 74 forge-ls -q --verify s.fts
    fail_each malloc 75 mkstream -o out.fts weight:a:F32:4 note:n:1
    fail_each write 74 mkstream -o out.fts weight:a:F32:4
    fail_each fsync 74 mkstream -o out.fts weight:a:F32:4
    fail_each rename 73 mkstream -o out.fts weight:a:F32:4
    fail_each write 74 mkstream weight:a:F32:300000 codes:a:U4:8
}

@test "whichever read of a pipe fails" {
    # shellcheck disable=SC2034
    fail_stdin=s.fts
    fail_each read 74 forge-ls
    fail_each malloc 75 forge-ls
}

@test "the filter of forge-stream(5) compiles and works" {
    tree=$BATS_TEST_DIRNAME/../..
    lib=$(dirname "$(command -v forge-ls)")/../libforge.a
    [ -e "$lib" ] || skip "no libforge.a beside the tools"
    nm "$lib" 2>/dev/null | grep -q __asan && skip "not with ASan"
    sed -n '/^\/\* keep/,/^\.Ed/p' "$tree/man/forge-stream.5" |
        sed '/^\.Ed/d' >keep.c
    read -ra cc <<<"${CC:-gcc}"
    "${cc[@]}" -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -I"$tree/src" \
        -o keep keep.c "$lib" -lcjson -lxxhash -luring -lm -pthread
    ./keep m. <s.fts >kept.fts
    [ "$(forge-ls kept.fts | cut -f 1 | tr '\n' ' ')" = \
        "weight codes hessian note qmeta " ]
    head -c 3000 s.fts >cut.fts
    run -65 bash -c './keep m. <cut.fts >kept.fts'
    run -65 forge-ls kept.fts
    run -64 ./keep
    [ "$(./keep --help | head -n 1)" = "usage: keep [OPTION]... PREFIX" ]
    # shellcheck disable=SC2034
    fail_stdin=s.fts
    PATH=$PWD:$PATH
    fail_each malloc 75 keep -o out.fts m.
}

@test "without io_uring the bytes are the same" {
    command -v strace >/dev/null || skip "no strace"
    mkstream tensor:big:F32:3000x1000 tensor:odd:U8:5000001 >big.fts
    cold() {
        dd if=big.fts iflag=nocache count=0 status=none
        strace -f -o trace -e trace=io_uring_setup "$@" \
            forge-ls -q --verify big.fts
    }
    run -0 cold
    run -0 cold -e inject=io_uring_setup:error=ENOSYS
    run -0 cold -e inject=io_uring_setup:error=EPERM
}
