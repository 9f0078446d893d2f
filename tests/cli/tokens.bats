#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-tokens as a user meets it.

load cli

PY="$BATS_TEST_DIRNAME/../reference/tokens.py"
FIXTURES="$BATS_TEST_DIRNAME/../reference/tokenizers"

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    model llama3 m
}

model() { # FIXTURE DIR [VOCAB_SIZE]
    mkdir -p "$2"
    cp "$FIXTURES/$1.json" "$2/tokenizer.json"
    echo "{\"model_type\": \"llama\", \"vocab_size\": ${3:-1000}}" >"$2/config.json"
}

# The tool fails with this status and one line that says this.
refused() { # STATUS TEXT ARGUMENT...
    fails "$1" "$2" forge-tokens "${@:3}"
}

@test "a reader that has gone is 141 and no word, also by forge" {
    yes 'the king is here' | head -c 4000000 >long.txt
    for tool in forge-tokens 'forge tokens'; do
        run -0 --separate-stderr bash -c "$tool m --ids <long.txt | head -c 1 >/dev/null; echo \${PIPESTATUS[0]}"
        [ "$output" = 141 ]
        [ -z "$stderr" ]
    done
}

@test "a closed standard input is named once" {
    run -74 --separate-stderr bash -c 'forge-tokens m --ids <&-'
    [ "$stderr" = "forge-tokens: '<stdin>': cannot read: Bad file descriptor" ]
}

@test "ids of a whole text, with the special tokens of the file" {
    run -0 --separate-stderr forge-tokens m --ids <<<"the king"
    [[ $output == "0 "* ]] # <|begin_of_text|>
    [ "${#lines[@]}" -eq 1 ]
    model llama2 l2
    run -0 forge-tokens l2 --ids </dev/null
    [ "$output" = "1 2" ] # <s> </s>
    model gpt2 g
    printf 'a\r\nb' | forge-tokens g --ids >crlf
    printf 'a\nb' | forge-tokens g --ids >lf
    run ! cmp -s crlf lf
    # MODEL may be the tokenizer.json itself
    forge-tokens --ids g/tokenizer.json lf >from-file
    forge-tokens --ids g <lf | cmp - from-file
}

@test "sequences are the text's ids, cut, each with prefix and suffix" {
    python3 "$PY" text 40000 >t.txt
    for kind in llama3:1:0 llama2:1:1 mistral:1:1 qwen2:0:0 deepseek:1:0 gpt2:0:0; do
        IFS=: read -r name pre suf <<<"$kind"
        model "$name" "$name"
        forge-tokens "$name" --ids t.txt | python3 "$PY" cut 12 40 "$pre" "$suf" >want
        forge-tokens -q "$name" --sequences 12 --seqlen 40 t.txt >s.fts
        python3 "$PY" rows s.fts >got
        diff want got
        [ "$(wc -l <got)" -eq 12 ]
        forge-tokens -q "$name" --ids -n 12 -t 40 t.txt | diff want -
    done
}

@test "what does not fit on one read: a pipe, a text of megabytes, few ids per byte" {
    { head -c 3000000 /dev/zero | tr '\0' ' '; python3 "$PY" text 1500000; } >t.txt
    forge-tokens m --ids t.txt | python3 "$PY" cut 200 512 1 0 >want
    [ "$(wc -l <want)" -eq 200 ]
    # shellcheck disable=SC2002 # a pipe is the point
    cat t.txt | forge-tokens -q m -n 200 >s.fts
    python3 "$PY" rows s.fts | diff want -
}

@test "--skip-chars counts characters, and line ends as one" {
    python3 "$PY" text 5000 >t.txt
    python3 -c 'import sys; sys.stdout.write(sys.stdin.read()[777:])' <t.txt >rest.txt
    forge-tokens -q m -n 3 -t 100 --skip-chars 777 t.txt >a
    forge-tokens -q m -n 3 -t 100 rest.txt >b
    python3 "$PY" rows a >a.rows
    python3 "$PY" rows b >b.rows
    diff a.rows b.rows
    sed 's/$/\r/' t.txt >crlf.txt
    forge-tokens -q m -n 3 -t 100 --skip-chars 777 crlf.txt >c
    python3 "$PY" rows c >c.rows
    diff a.rows c.rows
    refused 65 "one sequence takes 99" m -t 100 --skip-chars 6000 t.txt
    [[ $stderr == *"gives 0 ids"* ]]
}

@test "JSON lines with text: each record by itself, joined" {
    printf '%s\n' '{"text": "the king", "n": 1}' '' '{"text": "the queen \u00e9"}' >t.jsonl
    { printf 'the king' | forge-tokens m --ids; printf 'the queen é' | forge-tokens m --ids; } >want
    forge-tokens m --ids t.jsonl | diff want -
    cut -d' ' -f2- want | tr '\n' ' ' | sed 's/^/0 /; s/ $//' >joined
    n=$(wc -w <joined)
    forge-tokens -q m -n 1 -t "$n" t.jsonl --ids | diff -w joined -
    # skipped characters run over records
    forge-tokens -q m -n 1 -t 4 --skip-chars 8 --ids t.jsonl >got
    printf 'the queen é' | forge-tokens -q m -n 1 -t 4 --ids | diff - got
    # as text it is text
    forge-tokens m --ids --format text t.jsonl >as-text
    [ "$(wc -l <as-text)" -eq 1 ]
    printf '\xef\xbb\xbf{"text": "the king"}\n' | forge-tokens m --ids >got
    head -1 want | diff - got
}

@test "ids: JSON lines and .npy are sequences as they are" {
    printf '%s\n' '1 2 3 4' '5 6 7 8' '9 10 11 12' >want
    sed 's/ /,/g; s/.*/{"input_ids": [&], "attention_mask": [1]}/' want >t.jsonl
    forge-tokens m --ids t.jsonl | diff want -
    for dtype in '<i4' '<i8'; do
        python3 "$PY" npy a.npy "$dtype" <want
        forge-tokens m --ids a.npy | diff want -
        forge-tokens -q m a.npy >s.fts
        python3 "$PY" rows s.fts | diff want -
        forge-tokens -q m -n 2 -t 3 a.npy >s.fts
        python3 "$PY" rows s.fts >got
        head -2 want | cut -d' ' -f1-3 | diff - got
    done
    head -1 want | python3 "$PY" npy flat.npy '<i4' 1
    forge-tokens m --ids <flat.npy >got
    head -1 want | diff - got
    rm m/tokenizer.json # nobody needs it
    forge-tokens m --ids t.jsonl | diff want -
}

@test "few sequences are a warning, none an error with both numbers" {
    python3 "$PY" text 2000 >t.txt
    run -0 --separate-stderr forge-tokens --progress never m -t 64 t.txt -o s.fts
    [[ $stderr == *"sequences, 128 were asked for"* ]]
    [ "$(python3 "$PY" rows s.fts | wc -l)" -gt 3 ]
    refused 65 "the text gives 1 ids, and one sequence takes 511" m <<<""
    refused 64 "--seqlen 1 leaves no room" m -t 1 t.txt
    echo '1' | python3 "$PY" npy bad.npy '<f4'
    refused 65 "int32 or int64" m bad.npy
}

@test "input that is not what it should be" {
    printf 'abc\xffdef' >bad.txt
    refused 65 "'bad.txt': byte 3 is not valid UTF-8" m bad.txt
    { head -c 2000000 /dev/zero | tr '\0' x; printf '\xe4\xb8'; } >cut.txt
    refused 65 "byte 2000000 is not valid UTF-8" m --ids cut.txt
    printf '%s\n' '{"text": "a"}' '{"text": "b"' >bad.jsonl
    refused 65 "line 2" m --ids bad.jsonl
    printf '%s\n' '{"text": "a"}' '{"input_ids": [1]}' >mixed.jsonl
    refused 65 "line 2: records with 'text' and with 'input_ids' are mixed" m --ids mixed.jsonl
    echo '{"text": "a", "input_ids": [1]}' >both.jsonl
    refused 65 "both" m --ids both.jsonl
    echo '{"content": "a"}' >other
    refused 65 "neither 'text' nor 'input_ids'" m --ids other
    printf '\n \r\n{"content": "a"}\n' >blank
    refused 65 "line 3: neither 'text' nor 'input_ids'" m --ids blank
    echo '{"text": "a",' >cut.jsonl
    refused 65 "line 1" m --ids cut.jsonl
    echo '{"messages": []}' >chat.jsonl
    refused 65 "chat template" m --ids chat.jsonl
    echo '{"input_ids": [1, 1000]}' >high.jsonl
    refused 65 "id 1000 is not below the model's vocab_size 1000" m --ids high.jsonl
    echo '{"input_ids": [1, -1]}' >low.jsonl
    refused 65 "no id" m --ids low.jsonl
    refused 64 "--skip-chars" m --skip-chars 1 --ids high.jsonl
    echo '1 2 1000' | python3 "$PY" npy high.npy '<i8'
    refused 65 "row 0, column 2: id 1000" m --ids high.npy
    head -c 100 high.npy >cut.npy
    refused 65 "header" m --ids cut.npy
    head -c -1 high.npy >cut.npy
    refused 65 "cut short" m --ids cut.npy
    cp high.npy long.npy
    echo >>long.npy
    model llama3 big 2000
    refused 65 "beyond the array" big --ids long.npy
    refused 65 "not a .npy file" m --format npy bad.txt
    refused 65 "" m --format jsonl bad.txt
}

@test "a first record that is no JSON is refused under any name, text that begins with { is not" {
    local deep line
    deep=$(printf '[%.0s' {1..70})$(printf ']%.0s' {1..70})
    for line in '{"text": "a \u0000 b"}' '{"text": "a \ud800 b"}' '{"text": "a", "text": "b"}' \
        "{\"meta\": $deep, \"text\" : \"a\"}" '{"text": "a"' '{ "input_ids": [01]}' '{"messages": [}'; do
        printf '%s\n' "$line" '{"text": "b"}' | tee t.json >t.jsonl
        refused 65 "'t.jsonl': record on line 1" m --ids t.jsonl
        why=${stderr#*record on}
        refused 65 "'t.json': record on$why" m --ids t.json
        fails 65 "'<stdin>': record on$why" bash -c 'forge-tokens m --ids <t.json'
        forge-tokens m --ids --format text t.json >as-text
        [ -s as-text ]
    done
    for line in '{' '{{ text }}' '{% if "text": %}' '{"a" "text"}' '{ return; }' "{'text': 'a'}" '{"say \"text\": }'; do
        printf '%s\n' "$line" 'the king' >t.json
        forge-tokens m --ids --format text t.json >want
        forge-tokens m --ids <t.json | diff want -
    done
}

@test "a model that does not fit" {
    model llama3 small 50
    python3 "$PY" text 3000 >t.txt
    refused 78 "not below the model's vocab_size 50: wrong tokenizer" small -t 64 t.txt
    mkdir empty
    refused 66 "tokenizer.json" empty t.txt
    refused 66 "nowhere" nowhere t.txt
    refused 66 "none.txt" m none.txt
    refused 66 "directory" m m
    sed 's/"type":"BPE"/"type":"Unigram"/' m/tokenizer.json >u
    mkdir u.d
    mv u u.d/tokenizer.json
    refused 78 "'u.d/tokenizer.json': model 'Unigram' is not supported" u.d t.txt
    echo '{' >small/tokenizer.json
    refused 65 "'small/tokenizer.json'" small t.txt
}

@test "wrong command lines are exit 64" {
    refused 64 "MODEL"
    refused 64 "MODEL" a b c
    refused 64 "unknown option" m --no-such-option
    refused 64 "--sequences" m -n 0
    refused 64 "--key" m --ids --key k
}

@test "a stream that cannot be written is exit 74, and no file is left" {
    python3 "$PY" text 3000 >t.txt
    run -74 bash -c 'forge-tokens m -t 64 t.txt >/dev/full'
    run -74 bash -c 'forge-tokens m --ids t.txt >/dev/full'
    [ "$output" = "forge-tokens: cannot write '<stdout>': No space left on device" ]
    run -73 forge-tokens m -t 64 t.txt -o nowhere/out.fts
    run -65 forge-tokens m t.txt -t 64 -n 4 --skip-chars 3000 -o out.fts
    [ ! -e out.fts ]
    [ "$(ls)" = "$(printf 'm\nt.txt')" ]
}

@test "equal input gives equal bytes, from a file or a pipe; a pipe is read to its end" {
    python3 "$PY" text 9000 >t.txt
    forge-tokens -q m -t 64 -n 9 t.txt >a
    forge-tokens -q m -t 64 -n 9 <t.txt >b
    forge-tokens -q m -t 64 -n 9 t.txt -o c
    cmp a b
    cmp a c
    set -o pipefail
    # another text, as its digest says, but the same ids
    { cat t.txt; head -c 5000000 /dev/zero; } | forge-tokens -q m --ids -t 64 -n 9 >got
    forge-tokens -q m --ids -t 64 -n 9 t.txt >want
    cmp got want
}

@test "the next tool learns why there are no tokens" {
    run -65 bash -c 'echo x | forge-tokens m 2>/dev/null | forge-hessian'
    [[ $output == *"one sequence takes 511"* ]]
}

@test "the n-th malloc, read or write that fails is one clean line" {
    [ -n "$FAIL_SO" ] || skip "not with sanitizers"
    python3 "$PY" text 3000 >t.txt
    model qwen2 q
    model mistral s
    for dir in q s; do
        for what in malloc read write; do
            n=1
            while run --separate-stderr env LD_PRELOAD="$FAIL_SO" FAIL=$what:$n forge-tokens -q $dir -t 64 -n 4 t.txt -o out.fts; [ "$status" -ne 0 ]; do
                [ "$status" -eq 75 ] || [ "$status" -eq 74 ] || { echo "$what $n: exit $status: $stderr"; return 1; }
                [ "$(wc -l <<<"$stderr")" -eq 1 ]
                [ ! -e out.fts ]
                n=$((n + (n < 60 ? 1 : n / 8)))
                [ $n -lt 100000 ]
            done
            [ $what != malloc ] || [ $n -gt 40 ]
            rm -f out.fts
        done
    done
}

@test "memory follows what arrives, not what a header or a tokenizer asks for" {
    python3 - <<'PYTHON'
import json, struct
text = b"{'descr': '<i4', 'fortran_order': False, 'shape': (4000000000,), }\n"
open("claim.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64))
t = json.load(open("m/tokenizer.json"))
longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 40}
t["normalizer"] = {"type": "Sequence", "normalizers": [longer] * 8}  # 40^8 a
json.dump(t, open("m/tokenizer.json", "w"))
PYTHON
    limit='ulimit -v 1000000' # which AddressSanitizer's own map is beyond
    [ -n "$FAIL_SO" ] || limit=:
    fails 65 "cut short" bash -c "$limit; forge-tokens -q m claim.npy"
    fails 65 "normalizers make a text longer than" bash -c "$limit; forge-tokens --ids m <<<a"
}
