#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-text(1): chats against transformers' own text, files in every form, mixtures.

bats_require_minimum_version 1.5.0

GOLDEN="$BATS_TEST_DIRNAME/../reference/chat_golden.jsonl"
EXAMPLE="$BATS_TEST_DIRNAME/../../examples/llama-4m"

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

# A model that is nothing but a template and special tokens.
template() { # DIR TEMPLATE [TOKENS]
    mkdir -p "$1"
    jq -n --arg t "$2" --argjson k "${3:-"{}"}" '$k + {chat_template: $t}' >"$1/tokenizer_config.json"
}

texts() { jq -j '.text + "|"'; }

@test "chats as transformers renders them" {
    local n=0 line
    while IFS= read -r line; do
        template M "$(jq -r .template <<<"$line")" "$(jq -c .tokens <<<"$line")"
        jq -c '{messages, tools}' <<<"$line" >chat.jsonl
        if jq -e .text >want <<<"$line"; then
            forge-text M chat.jsonl | jq .text >got
            cmp want got
        else
            run -65 --separate-stderr forge-text M chat.jsonl
            [[ $stderr == *"$(jq -r .error <<<"$line")" ]]
        fi
        n=$((n + 1))
    done <"$GOLDEN"
    [ "$n" -eq 24 ]
}

@test "tools: absent, null, empty and as JSON text; what is none is refused" {
    template M '{{ tools is none }}{{ tools | tojson if tools }}'
    local m='"messages": [{"role": "user", "content": "x"}]'
    {
        echo "{$m}"
        echo "{$m, \"tools\": null}"
        echo "{$m, \"tools\": \"\"}"
        echo "{$m, \"tools\": []}"
        echo "{$m, \"tools\": \"[{\\\"type\\\": 1}]\"}"
        echo "{$m, \"tools\": [{\"type\": 1}]}"
    } >tools.jsonl
    [ "$(forge-text M tools.jsonl | texts)" = 'True|True|True|False|False[{"type": 1}]|False[{"type": 1}]|' ]
    for tools in 1 '[1]' false '{}' '"[x"'; do
        run -65 --separate-stderr forge-text M <<<"{$m, \"tools\": $tools}"
    done
    run -65 --separate-stderr forge-text M <<<"{$m, \"tools\": [1]}"
    [ "$stderr" = "forge-text: '<stdin>': record 1: 'tools' is no list of objects" ]
}

@test "what is nested too deep is 65 and named, what cannot be read 66" {
    local chat='{"messages": [{"role": "user", "content": "x"}]}' deep
    deep=$(printf '%0200000d' 0 | tr 0 '[')
    says() { # STATUS MESSAGE
        run "-$1" --separate-stderr forge-text M <<<"$chat"
        [ "$stderr" = "forge-text: '<stdin>': record 1: $2" ]
    }
    template M 'x'
    printf '{"post_processor":%s' "$deep" >M/tokenizer.json
    says 65 "'M/tokenizer.json': is nested too deep"
    rm M/tokenizer.json
    template M "{{ $(printf '%03000d' 0 | tr 0 '(')1$(printf '%03000d' 0 | tr 0 ')') }}"
    says 65 "'M/tokenizer_config.json': the chat template: is nested too deep"
    jq -r .chat_template M/tokenizer_config.json >M/chat_template.jinja
    says 65 "'M/chat_template.jinja': the chat template: is nested too deep"
    jq -c . M/tokenizer_config.json >M/chat_template.json
    rm M/chat_template.jinja
    says 65 "'M/chat_template.json': the chat template: is nested too deep"
    rm M/chat_template.json
    printf '{"a":%s' "$deep" >M/tokenizer_config.json
    says 65 "'M/tokenizer_config.json': is nested too deep"
    template M 'x'
    printf '{"messages": [], "tools": "%s"}\n' "$deep" >deep.jsonl
    run -65 --separate-stderr forge-text M deep.jsonl
    [ "$stderr" = "forge-text: 'deep.jsonl': record 1: 'tools': is nested too deep" ]
    rm M/tokenizer_config.json
    mkdir M/tokenizer_config.json # a mode would not stop root
    says 66 "'M/tokenizer_config.json': cannot read: Is a directory"
}

@test "--skip-refused leaves out what the template refuses, and counts it" {
    template M '{% for m in messages %}{% if m.role == "x" %}{{ raise_exception("no x") }}{% endif %}{{ "" + m.content }}{% endfor %}'
    chat() { echo '{"messages": [{"role": "'"$1"'", "content": '"$2"'}]}'; }
    { chat user '"a"'; chat assistant null; chat x '"c"'; chat user '"d"'; } >chats
    run -65 --separate-stderr forge-text M chats
    [[ $stderr == "forge-text: 'chats': record 2: the chat template fails: "* ]]
    forge text --skip-refused M chats 2>said | texts >got
    [ "$(<got)" = 'a|d|' ]
    [[ $(<said) == "forge-text: warning: 'chats': 2 of 4 records are left out: record 2: the chat template fails: "* ]]
    # nothing is left; what the template does not judge
    chat x '"c"' >none
    run -65 --separate-stderr forge-text --skip-refused M none
    [[ $stderr == *"1 of 1 records"*$'\n'"forge-text: 'none': holds no text" ]]
    echo '{"prompt": 1}' >>chats
    run -65 --separate-stderr forge-text --skip-refused M chats
    [[ $stderr == *"record 5: has no messages"* ]]
    chat user '"a"' >good
    run -0 --separate-stderr forge-text --skip-refused M good
    [ -z "$stderr" ]
    # half of a surrogate pair; both are a character
    printf '{"text": "a"}\n{"text": "b \\ud83d"}\n{"text": "\\ud83d\\ude00"}\n' >half
    run -65 --separate-stderr forge-text M half
    [ "$stderr" = "forge-text: 'half': record 2: character 3 is half of a surrogate pair" ]
    forge-text --skip-refused M half 2>said | texts >got
    [ "$(<got)" = 'a|😀|' ]
    [[ $(<said) == *"'half': 1 of 3 records are left out: record 2: character 3 is half of a surrogate pair" ]]
}

@test "a template in a file of its own, in a list, with the tokenizer's own bos" {
    local chat='{"messages": [{"role": "user", "content": "hi"}]}'
    template M '{{ bos_token }}{{ messages[0].content }}' '{"bos_token": {"content": "<s>"}}'
    [ "$(forge-text M <<<"$chat" | texts)" = '<s>hi|' ]
    echo '{"post_processor": {"special_tokens": {"<s>": {}}}}' >M/tokenizer.json
    [ "$(forge-text M <<<"$chat" | texts)" = 'hi|' ]
    echo 'file: {{ messages[0].content }}' >M/chat_template.jinja
    [ "$(forge-text M <<<"$chat" | texts)" = 'file: hi|' ]
    mkdir N
    echo '{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]}' \
        >N/tokenizer_config.json
    [ "$(forge-text N <<<"$chat" | texts)" = 'yes|' ]
}

@test "a template is told a fixed date" {
    template M "{{ strftime_now('%d %b %Y') }}"
    local chat='{"messages": [{"role": "user", "content": "hi"}]}'
    [ "$(forge-text M <<<"$chat" | texts)" = '26 Jul 2024|' ]
    [ "$(SOURCE_DATE_EPOCH=86400 forge-text M <<<"$chat" | texts)" = '02 Jan 1970|' ]
}

@test "a template cannot leave the sandbox" {
    template M "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    run -65 --separate-stderr forge-text M <<<'{"messages": [{"role": "user", "content": "hi"}]}'
    [[ $stderr == *"record 1: the chat template fails"* ]]
    template M "{{ messages.append(1) }}"
    run -65 forge-text M <<<'{"messages": [{"role": "user", "content": "hi"}]}'
}

@test "JSON lines, a list, ShareGPT, plain text, compressed or not: the same text" {
    template M '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}'
    local want='user:a;assistant:é;|'
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "é"}]}' >l.jsonl
    echo '[{"id": 1, "conversations":
        [{"from": "human", "value": "a"}, {"from": "gpt", "value": "é"}]}]' >list.json
    [ "$(forge-text M l.jsonl | texts)" = "$want" ]
    [ "$({ printf '\xef\xbb\xbf'; cat l.jsonl; } | forge-text M | texts)" = "$want" ]
    [ "$(forge-text M list.json | texts)" = "$want" ]
    gzip -k l.jsonl
    xz -k l.jsonl
    [ "$(forge-text M l.jsonl.gz | texts)" = "$want" ]
    [ "$(forge-text M l.jsonl.xz | texts)" = "$want" ]
    printf '{"text": "t1"}\n\n{"text": ""}\n{"text": null}\n{"text": "t2"}\n' | forge-text M | texts >got
    [ "$(<got)" = 't1|t2|' ]
    seq 3000 >plain
    forge-text M plain | jq -j .text | cmp - plain
    [ "$(forge-text M plain | wc -l)" -gt 2 ]
    printf 'no newline' | forge-text M | texts >got
    [ "$(<got)" = 'no newline|' ]
}

@test "--column takes a text or messages" {
    template M '{{ messages | length }}'
    local record='{"q": "why", "turns": [{"role": "user", "content": "x"}], "text": "t"}'
    [ "$(forge-text M <<<"$record" | texts)" = 't|' ]
    [ "$(forge-text -c q M <<<"$record" | texts)" = 'why|' ]
    [ "$(forge-text --column turns M <<<"$record" | texts)" = '1|' ]
    run -65 --separate-stderr forge-text --column z M <<<"$record"
    [ "$stderr" = "forge-text: '<stdin>': record 1: has no z; --column chooses of: q, turns, text" ]
}

@test "a mixture has its shares at every point, and goes on when a file ends" {
    template M ''
    for f in a b c; do
        for i in {1..300}; do echo "{\"text\": \"$f$(head -c $((RANDOM % 50 + 20)) /dev/zero | tr '\0' x)\"}"; done >$f
    done
    head -n 60 c >short
    forge-text -w 3,1,2 M a b short >got
    jq -r .text got | head -n 100 | awk '{ n[substr($0, 1, 1)] += length($0); all += length($0) } END {
        exit !(n["a"] / all > .47 && n["a"] / all < .53 && n["b"] / all > .14 && n["b"] / all < .20) }'
    [ "$(wc -l <got)" -eq 660 ]
    jq -r .text b >want
    jq -r .text got | grep ^b | diff want -
}

@test "forge-tokens and forge quantize take its output; both point to it" {
    cp -r "$EXAMPLE" M
    jq '. + {chat_template: "{% for m in messages %}{{ m.content }}\n{% endfor %}"}' \
        "$EXAMPLE/tokenizer_config.json" >M/tokenizer_config.json
    for i in {1..20}; do echo '{"messages": [{"role": "user", "content": "'"$(seq -s ' ' $i 90)"'"}]}'; done >chats.jsonl
    run -65 --separate-stderr forge-tokens -n 2 -t 64 M chats.jsonl
    [[ $stderr == *"forge-text MODEL FILE does" ]]
    gzip -k chats.jsonl
    run -65 --separate-stderr forge-tokens -n 2 -t 64 M chats.jsonl.gz
    [[ $stderr == *"'chats.jsonl.gz': is gzip: forge-text MODEL FILE reads it" ]]
    forge-text M chats.jsonl.gz >text.jsonl
    jq -j .text text.jsonl >want
    jq -r ".messages[].content" chats.jsonl | diff want -
    forge text M chats.jsonl | cmp - text.jsonl
    forge-tokens -q -n 2 -t 64 M text.jsonl -o t.fts
    forge-ls -q t.fts >list
    grep -q tokens list
}

# 40 texts with a record in the middle that is none.
broken() {
    for i in {1..40}; do
        [ "$i" -eq 21 ] && echo '{"text"'
        jq -nc --arg t "$(seq -s ' ' "$i" 300)" '{text: $t}'
    done >broken.jsonl
}

@test "forge-text fails: no program behind it in the pipe takes what it wrote for the text" {
    broken
    for words in "forge-tokens -n 1000 -t 64 $EXAMPLE -o t.fts" "forge tokens $EXAMPLE --ids" \
        "forge eval $EXAMPLE $EXAMPLE --text - --sequences 1000 --seqlen 64" \
        "forge quantize $EXAMPLE out --text - -q --sequences 2 --seqlen 64 --work work"; do
        run bash -c "forge text $EXAMPLE broken.jsonl | $words; echo \"\${PIPESTATUS[*]}\""
        [ "${#lines[@]}" -eq 2 ]
        [[ $output == "forge-text: 'broken.jsonl': line 21: "*$'\n'"65 65" ]]
    done
    for file in t.fts out work/text; do [ ! -e $file ]; done
    run bash -c "forge text $EXAMPLE none.jsonl | forge-tokens $EXAMPLE -o t.fts; echo \"\${PIPESTATUS[*]}\""
    [ "$output" = "forge-text: 'none.jsonl': no such file"$'\n'"66 66" ]
    # kept in a file; the line is looked for in JSON lines only
    forge text "$EXAMPLE" broken.jsonl >kept 2>/dev/null || [ $? -eq 65 ]
    tail -n 1 kept | jq -e '.exit == 65'
    run -65 --separate-stderr forge-tokens -n 1000 -t 64 "$EXAMPLE" kept -o t.fts
    [[ $stderr == "forge-tokens: 'kept': line 21: forge-text: 'broken.jsonl': line 21: "* ]]
    run -65 forge quantize "$EXAMPLE" out --text kept -q --sequences 1000 --seqlen 64
    # what is in front of it may be enough
    forge-tokens -q -n 2 -t 64 "$EXAMPLE" kept -o enough.fts
    { seq 2000; tail -n 1 kept; } >plain
    forge-tokens -q -n 2 -t 64 "$EXAMPLE" plain -o plain.fts
    { echo '{"text": "'"$(seq -s ' ' 500)"'"}'; echo '{"error": "x", "exit": 0}'; } >odd
    run -65 forge-tokens -n 1000 -t 64 "$EXAMPLE" odd
}

@test "forge-text is stopped by a signal: its reader ends, too" {
    { printf '{"text": "%s"}\n' "$(seq -s ' ' 300)"; sleep 3; } | {
        timeout 1 forge-text "$EXAMPLE" || [ $? -eq 124 ]
    } >kept
    [ "$(tail -n 1 kept)" = '{"error": "forge-text: Terminated", "exit": 75}' ]
    run -75 forge-tokens -n 1000 -t 8 "$EXAMPLE" kept -o t.fts
    [ ! -e t.fts ]
}

@test "forge quantize --text -: the bytes that a file gives, also of a run that is repeated" {
    head -c 20000 "$BATS_TEST_DIRNAME/../../examples/eval.txt" >text
    quantize() { # OUT TEXT [OPTION...]
        forge quantize "$EXAMPLE" "$1" --text "$2" -q --effort fast --sequences 4 --seqlen 64 "${@:3}"
    }
    quantize file text
    run -65 --separate-stderr quantize none - </dev/null
    [ "$stderr" = "forge: '<stdin>': is empty" ]
    [ ! -e none ]
    cat text | quantize one - --work work
    diff -r file one
    cmp text work/text
    before=$(stat -c %y work/solve-*/codes-0.fts)
    cat text | quantize two - --work work
    diff -r file two
    [ "$(stat -c %y work/solve-*/codes-0.fts)" = "$before" ]
    run -0 forge gc work
    [ -e work/text ]
    run -64 --separate-stderr script -qec "forge quantize $EXAMPLE tty --text -" /dev/null
    [[ $output == *"standard input is a terminal"* ]]
    [ ! -e tty ]
    run -64 forge eval "$EXAMPLE" one --text - --card <text
}

@test "two texts are refused, not the first of them left out" {
    echo a >A
    echo b >B
    for words in "quantize M out" "eval M M" "tokens M" "prune M out --keep 1" "report M"; do
        # shellcheck disable=SC2086 # words are arguments
        run -64 --separate-stderr forge $words --text A --text=B
        [ "$stderr" = "forge: --text is given twice: forge text -w 1,1 MODEL 'A' 'B' makes one text of several" ]
    done
}

@test "a Hugging Face id is its snapshot in the local cache" {
    local repository=hub/models--org--Tiny-1
    mkdir -p $repository/{refs,blobs,snapshots/0123abc}
    printf 0123abc >$repository/refs/main
    for f in "$EXAMPLE"/*; do
        id=$(sha1sum "$f" | cut -d' ' -f1)
        cp "$f" $repository/blobs/"$id"
        ln -s ../../blobs/"$id" $repository/snapshots/0123abc/"${f##*/}"
    done
    export HF_HUB_CACHE=$PWD/hub
    forge quantize org/Tiny-1 out --method rtn -q
    forge-verify -q out
    grep -q 'base_model: org/Tiny-1' out/README.md
    forge quantize org/Tiny-1 again --method rtn -q --work work
    forge report work >page.html
    grep -q '<h1>org/Tiny-1 in 4 bits</h1>' page.html
    head -c 20000 "$BATS_TEST_DIRNAME/../../examples/eval.txt" |
        forge eval org/Tiny-1@0123abc out --text - --sequences 2 --seqlen 64 -q >got
    [ "$(forge tokens org/Tiny-1 --ids <<<hello)" = "$(forge tokens "$EXAMPLE" --ids <<<hello)" ]
    # tools that forge only starts find it, too
    echo '{{ messages[0].content }}' >$repository/snapshots/0123abc/chat_template.jinja
    [ "$(forge text org/Tiny-1 <<<'{"messages": [{"role": "user", "content": "hi"}]}' | texts)" = 'hi|' ]
    forge generate --raw -n 4 org/Tiny-1 "Once upon" >one
    forge generate --raw -n 4 "$EXAMPLE" "Once upon" >two
    cmp one two
    run -66 --separate-stderr forge text org/other
    run -66 --separate-stderr forge quantize org/other out2 --method rtn
    [ "$stderr" = "forge: 'org/other': no such directory, and no such model in the Hugging Face cache '$PWD/hub'" ]
    run -66 --separate-stderr forge quantize org/Tiny-1@fff out2 --method rtn
    [[ $stderr == *"has no snapshot 'fff' of it" ]]
    # a branch or a tag; one whose commit is not there
    printf 0123abc >$repository/refs/v1.0
    printf 4567 >$repository/refs/gone
    for rev in main v1.0; do
        [ "$(forge tokens org/Tiny-1@$rev --ids <<<hello)" = "$(forge tokens "$EXAMPLE" --ids <<<hello)" ]
    done
    run -66 --separate-stderr forge tokens org/Tiny-1@gone --ids <<<hello
    [[ $stderr == *"has no snapshot '4567' of it" ]]
    printf ../x >$repository/refs/odd
    run -66 --separate-stderr forge tokens org/Tiny-1@odd --ids <<<hello
    [[ $stderr == *"has no snapshot 'odd' of it" ]]
    unset HF_HUB_CACHE
    mkdir -p home/.cache/huggingface
    mv hub home/.cache/huggingface/
    HOME=$PWD/home forge tokens org/Tiny-1 --ids <<<hello
    HF_HOME=$PWD/home/.cache/huggingface forge tokens org/Tiny-1 --ids <<<hello
    for odd in ../x a/b/c /a x/ org/.. org/@x org/Tiny-1@ org/Tiny-1@..; do
        run -66 --separate-stderr forge quantize $odd out3 --method rtn
        [ "$stderr" = "forge: '$odd': no such directory" ]
    done
}

@test "what it refuses, in one line" {
    refuses() { # CODE WORDS ARGUMENT...
        local code=$1 words=$2
        shift 2
        run "-$code" --separate-stderr forge-text "$@" </dev/null
        [[ ${#stderr_lines[@]} -eq 1 && $stderr == "forge-text: "*"$words"* ]] &&
            jq -e --arg words "$words" "(.error | contains(\$words)) and .exit == $code" <<<"$output" ||
            { echo "$*: $stderr"; return 1; }
    }
    template M '{{ messages }}'
    template bad '{% for %}'
    mkdir bare
    echo '{"messages": [{"role": "user", "content": "x"}]}' >chat
    echo '{"prompt": 1}' >columns
    echo '{"messages": [3]}' >three
    printf '{"text": "a"}\n{"text"\n' >broken
    printf '\xff\xfe' >binary
    head -c 20 <(gzip <chat) >cut.gz
    { gzip <chat | head -c 10; head -c 100 /dev/zero | tr '\0' '\377'; } >bad.gz
    echo garbage >bad.zst
    head -c 100000 /dev/zero | tr '\0' '[' >deep
    template lines '{{ raise_exception("no\nway") }}'
    refuses 64 "want MODEL"
    refuses 64 "--weights wants 2 positive numbers" -w 1 M chat chat
    refuses 64 "--weights wants 1 positive numbers" -w -1 M chat
    refuses 64 "unrecognized arguments: --colum" --colum x M
    refuses 66 "'none': no such directory" none chat
    refuses 66 "'none': no such file" M three none
    refuses 66 "'x.parquet': no such file" M x.parquet
    refuses 66 "'bare': Is a directory" M bare
    refuses 65 "'<stdin>': is empty" M
    refuses 65 "'columns': record 1: has no messages and no text; --column chooses of: prompt" M columns
    refuses 65 "'three': record 1: a message is neither" M three
    refuses 65 "'binary': line 1: is not UTF-8" M binary
    refuses 65 "'cut.gz': Compressed file ended" M cut.gz
    refuses 65 "'bad.gz': Error -3 while decompressing" M bad.gz
    refuses 65 "'bad.zst': zstd: " M bad.zst
    refuses 65 "'deep': line 1: is nested too deep" M deep
    refuses 65 "record 1: the chat template says: no way" lines chat
    refuses 78 "'bare': the model has no chat template" bare chat
    refuses 78 "'bad': the chat template: " bad chat
    mkdir list latin
    echo '[]' >list/tokenizer_config.json
    refuses 65 "'list/tokenizer_config.json': is no object" list chat
    printf '\xff' >latin/chat_template.jinja
    refuses 65 "'latin/chat_template.jinja': " latin chat
    SOURCE_DATE_EPOCH=soon refuses 64 "SOURCE_DATE_EPOCH is 'soon'" M chat
    run -65 --separate-stderr forge-text M broken
    [[ $stderr == "forge-text: 'broken': line 2: "* ]]
}

@test "streams that are closed or full: the status says so, and no file takes their place" {
    template M ''
    echo '{"text": "a"}' >good
    for tool in forge-text 'forge text'; do
        run -66 bash -c "$tool none good 2>&-"
        [ "$(jq .exit <<<"$output")" = 66 ]
        [ "${#lines[@]}" -eq 1 ]
        run -74 --separate-stderr bash -c "$tool M - <&-"
        [ "$stderr" = "forge-text: '<stdin>': cannot read: Bad file descriptor" ]
        run -0 bash -c "$tool M good <&- 2>&-"
        [ "$output" = '{"text": "a"}' ]
        for words in 'M good >&-' 'M good >/dev/full' '--help >/dev/full'; do
            run -74 --separate-stderr bash -c "$tool $words"
            [[ ${#stderr_lines[@]} -eq 1 && $stderr == "forge-text: cannot write '<stdout>': "* ]]
        done
    done
}
