#!/usr/bin/env bats
# forge-text where its packages are: transformers' chats, pyarrow's tables.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    TREE="$BATS_TEST_DIRNAME/../.."
    python="${PYTHON:-python3}"
}

@test "the chats of the test are what transformers renders today" {
    "$python" "$TREE/tests/reference/make_chat_golden.py" >golden
    cmp golden "$TREE/tests/reference/chat_golden.jsonl"
}

@test "a parquet file of chats and one of texts" {
    mkdir M
    echo '{"chat_template": "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"}' >M/tokenizer_config.json
    "$python" - <<'PYTHON'
import pyarrow
import pyarrow.parquet as parquet
chat = lambda i: [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "é"}]
parquet.write_table(pyarrow.table({"id": range(3), "messages": [chat(i) for i in range(3)]}), "chats.parquet")
parquet.write_table(pyarrow.table({"text": ["a", None, "b"]}), "texts.parquet", row_group_size=1)
PYTHON
    "$python" "$TREE/scripts/forge-text" M chats.parquet | jq -r .text >got
    printf 'user:q%d;assistant:é;\n' 0 1 2 | cmp - got
    "$python" "$TREE/scripts/forge-text" M texts.parquet | jq -r .text >got
    printf 'a\nb\n' | cmp - got
    head -c 100 chats.parquet >cut.parquet
    run "$python" "$TREE/scripts/forge-text" M cut.parquet
    [ "$status" -eq 65 ]
    [[ $output == "forge-text: 'cut.parquet': "* ]]
}
